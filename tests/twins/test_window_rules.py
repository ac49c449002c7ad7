"""The window's twins by themselves: the same steps in both, and all of their numbers after each.

A story of whole calls seldom reaches a full log together with refunds, resets and new limits.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import redis

from headgate.gate.sliding_window import SlidingWindowRule as Rule
from tests.twins import wire
from tests.twins.wire import NOON

Step = tuple[Any, ...]  # the function and its arguments; or ("adopt", per, t)
AMOUNT = 5_000
NUMBERS = ("used", "last", "pending", "gone", "opened", "merges_until")
PLAY = """
local function made(per) return Limits.parse('window requests ' .. ARGV[1] .. ' ' .. per)[1] end
local rule, told = made(ARGV[2]), {}
rule:open(0)
for _, step in ipairs(cjson.decode(ARGV[3])) do
  local name, a, b, c = unpack(step)
  local answer
  if name == 'adopt' then
    local new = made(string.format('%.0f', a))
    new:adopt(rule, b)
    rule = new
  else
    answer = rule[name](rule, a, b, c)
  end
  local words = { answer or 0, rule.used, rule.last, rule.pending, rule.gone, rule.opened,
    rule.merges_until }
  local log, at = string.sub(rule.log, rule.skipped + 1) .. rule.tail, 1
  while at < #log do
    words[#words + 1], words[#words + 2], at = struct.unpack('<dd', log, at)
  end
  for i, number in ipairs(words) do words[i] = string.format('%.0f', number) end
  told[#told + 1] = table.concat(words, ' ')
end
return told
"""


def played(client: redis.Redis, per: int, steps: list[Step]) -> list[str]:
    """What the Lua says after each step."""
    defined, _, _ = wire.LUA.whole.text.decode().rpartition("\n")  # all of the script but its call
    said = client.eval(f"{defined}\n{PLAY}", 0, AMOUNT, per, json.dumps(steps))
    return [each.decode() for each in said]  # type: ignore[union-attr]


def expected(per: int, steps: list[Step]) -> list[str]:
    """What the Python says."""
    rule, told = Rule("requests", AMOUNT, per), []
    for name, *arguments in steps:
        answer = None
        if name == "adopt":
            new = Rule("requests", AMOUNT, arguments[0])
            new.adopt(rule, arguments[1])
            rule = new
        else:
            answer = getattr(rule, name)(*arguments)
        numbers = [answer or 0, *(getattr(rule, number) for number in NUMBERS), *rule.log]
        told.append(" ".join(map(str, numbers)))
    return told


def drawn(dice: random.Random, per: int) -> list[Step]:
    now, taken, steps = NOON, [NOON], list[Step]()
    gap = max(1, per // dice.randint(130, 600))
    for _ in range(600):
        now += per // 3 if dice.random() < 0.005 else dice.choice([0, 1, gap, gap])
        then = dice.choice(taken[-200:]) + dice.choice([0, 0, 0, 1])
        rare: list[Step] = [
            ("open", now),
            ("adopt", dice.choice([per, per, per // 2 + 1, 2 * per]), now),
            ("drain", AMOUNT - dice.randint(0, 300), dice.choice([now, then]), now),
            ("settle", dice.randint(-5, 5), then, now),
            ("ready", dice.randint(1, AMOUNT), now),
            ("ahead", dice.randint(1, 2 * AMOUNT), now, now),
            ("left", now),
        ]
        step: Step = ("take", dice.randint(1, 5), now)
        if dice.random() < 0.15:
            step = ("give", dice.randint(1, 3), then)
        elif dice.random() < 0.05:
            step = dice.choices(rare, [1, 2, 4, 4, 4, 4, 4])[0]
        if step[0] == "take":
            taken.append(now)
        steps.append(step)
    return steps


@pytest.mark.parametrize("seed", range(20))
def test_both_twins_of_a_window_have_the_same_numbers_after_each_step(
    client: redis.Redis, seed: int
) -> None:
    """T1, T2, T5, T9, S9."""
    dice = random.Random(seed)
    per = dice.choice([1_000, 99_999, 1_000_000, 60_000_000])
    steps = drawn(dice, per)

    assert played(client, per, steps) == expected(per, steps)
