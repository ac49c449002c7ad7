"""The window's twins by themselves: the same steps in both, and all of their numbers after each.

A story of whole calls seldom reaches a full log together with refunds, resets and new limits.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import redis

from headgate.gate.sliding_window import FULL
from headgate.gate.sliding_window import SlidingWindowRule as Rule
from tests.twins import wire
from tests.twins.wire import NOON

Step = tuple[Any, ...]  # the function and its arguments; or ("adopt", per, t)
AMOUNT, STEPS = 5_000, 600
NUMBERS = ("used", "last", "pending", "freed_at", "opened", "merges_until")
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
  local words = { answer or 0, rule.used, rule.last, rule.pending, rule.freed_at, rule.opened,
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
    """The numbers of the Lua after each step."""
    defined, _, _ = wire.LUA.whole.text.decode().rpartition("\n")  # all of the script but its call
    said = client.eval(f"{defined}\n{PLAY}", 0, AMOUNT, per, json.dumps(steps))
    return [each.decode() for each in said]  # type: ignore[union-attr]


class Author:
    """Draws steps, and takes each in Python at once: so it knows the edges of the window."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.per = self.dice.choice([1_000, 99_999, 1_000_000, 60_000_000])
        self.gap = max(1, self.per // self.dice.randint(130, 600))
        self.rule = Rule("requests", AMOUNT, self.per)
        self.now, self.taken = NOON, [NOON]
        self.steps: list[Step] = []
        self.said: list[str] = []

    def do(self, *step: Any) -> None:
        self.steps.append(step)
        name, *arguments = step
        answer = None
        if name == "adopt":
            new = Rule("requests", AMOUNT, arguments[0])
            new.adopt(self.rule, arguments[1])
            self.rule = new
        else:
            answer = getattr(self.rule, name)(*arguments)
        log = self.rule.log[self.rule.skipped :]
        numbers = (answer or 0, *(getattr(self.rule, number) for number in NUMBERS), *log)
        self.said.append(" ".join(map(str, numbers)))

    def draw(self) -> Step:
        dice, rule = self.dice, self.rule
        jumps = [self.per // 3, 2 * self.per, *[rule.merges_until - 1 - self.now] * 4]
        self.now += max(0, dice.choice(jumps if dice.random() < 0.01 else [0, 1, self.gap]))
        edges = [rule.merges_until, rule.freed_at - rule.per, rule.opened, rule.opened - 1]
        then = dice.choice(edges if dice.random() < 0.2 else self.taken[-200:])
        if dice.random() < 0.15:
            return "give", dice.randint(1, 3), then + dice.choice([0, 0, 0, 1])
        rare: list[Step] = [
            ("open", self.now),
            ("adopt", dice.choice([self.per, self.per, self.per // 2 + 1]), self.now),
            ("drain", AMOUNT - dice.randint(0, 300), dice.choice([self.now, then]), self.now),
            ("settle", dice.randint(-5, 5), then, self.now),
            ("ready", dice.randint(1, AMOUNT), self.now),
            ("ahead", dice.randint(1, 2 * AMOUNT), self.now, self.now),
            ("left", self.now),
        ]
        if dice.random() < 0.05:
            return dice.choices(rare, [1, 2, 4, 4, 4, 4, 4])[0]
        self.taken.append(self.now)
        return "take", dice.randint(1, 5), self.now


@pytest.mark.parametrize("seed", range(20))
def test_both_twins_of_a_window_have_the_same_numbers_after_each_step(
    client: redis.Redis, seed: int
) -> None:
    """T1, T2, T5, T9, S9."""
    author = Author(seed)
    for _ in range(STEPS):
        author.do(*author.draw())

    assert played(client, author.per, author.steps) == author.said


def test_both_twins_give_nothing_back_for_a_grant_that_expires_this_very_moment(
    client: redis.Redis,
) -> None:
    """T5: though a later grant of its cell counts, and the window merges from then on."""
    author = Author(0)
    per, cell = author.per, author.rule.cell
    first = NOON - NOON % cell
    for moment in (0, cell - 1, *range(cell, 63 * cell, cell // 2 + 1)):
        author.do("take", 1, first + moment)
    while len(author.rule.log) < FULL:
        author.do("take", 1, author.rule.last + 1)
    for late in range(3):
        author.do("take", 1, first + per + late)

    author.do("give", 1, first)

    assert author.rule.merges_until == first + 2 * per + 1
    assert author.said[-1].split()[1:] == author.said[-2].split()[1:]
    assert played(client, per, author.steps) == author.said
