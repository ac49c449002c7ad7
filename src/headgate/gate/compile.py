"""Each limit becomes a rule of whole numbers.

The choice of units (parts of a token, ticks of time) keeps every number exact and below 2^53, in
Python as in Lua. `program` is the text that goes to the Lua twin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import gcd
from typing import Any

from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.gate import ONE_EACH, Costs, Rule, Units
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.gate.token_bucket import TokenBucketRule
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.validation import BEYOND, TEN_YEARS, microseconds, rational, show

SECOND = 1_000_000
# A full bucket that counts parts of a token has fewer of them than this: a 256th of 2^53. So the
# costs of a queue are added exactly, up to 256 full buckets.
LARGEST = 2**45
LONGEST = TEN_YEARS * SECOND - 1  # the longest period, in microseconds
# The fewest ticks of a period. Their number is rounded up, so the refill is slower by a thousandth
# at most.
FEWEST = 1000
STEP = 100_000  # microseconds: the longest tick that brings several whole tokens
ATTEMPTS = 10  # to find a steady rate that becomes a rule


def rules_of(limits: Iterable[Limit]) -> tuple[Rule, ...]:
    return tuple(rule_of(limit) for limit in limits)


def rule_of(limit: Limit) -> Rule:
    match limit:
        case Concurrency():
            return ConcurrencyRule(limit.unit, limit.capacity, microseconds(limit.lease))
        case Rate():
            return bucket_of(limit)
        case Window():
            return SlidingWindowRule(limit.unit, limit.amount, lengthened(limit))
        case Quota():
            per, anchor = microseconds(limit.per), microseconds(limit.origin)
            return FixedWindowRule(
                limit.unit, limit.amount, per, anchor % per, microseconds(limit.slack)
            )


def lengthened(limit: Rate | Window) -> int:
    """The period with its slack, in microseconds."""
    return microseconds(limit.per) + microseconds(limit.slack)


def bucket_of(limit: Rate) -> TokenBucketRule:
    capacity = limit.burst
    start = capacity if limit.initial is None else limit.initial
    per = lengthened(limit)
    # An int is a fraction already, and needs no import of `fractions`.
    amount = limit.amount if isinstance(limit.amount, int) else rational(limit.amount)
    if limit.steps:
        price, gain, tick = amount.denominator, amount.numerator, per
    else:
        price, gain, tick = smooth(amount.numerator, per * amount.denominator, capacity)
    return TokenBucketRule(limit.unit, capacity, price, gain, tick, start)


def smooth(amount: int, per: int, capacity: int) -> tuple[int, int, int]:
    """Price, gain and tick of a steady refill.

    A tick is a microsecond, or 10, 100, ... of them where the numbers would be too large. The ticks
    of the period are rounded up, so the refill is never too fast. If a period would have fewer
    ticks than FEWEST, as for billions of tokens, each tick brings whole tokens.
    """
    tick = 1
    while True:
        ticks = -(-per // tick)
        shared = gcd(amount, ticks)
        if tick > 1 and ticks < FEWEST:
            # The tokens of a tick: as many as STEP brings, and at least one.
            gain = max(1, min(amount, capacity, amount * STEP // per))
            return 1, gain, -(-gain * per // amount)
        if capacity * ticks // shared < LARGEST:
            return ticks // shared, amount // shared, tick
        tick *= 10


def limit_of(rule: Rule) -> Limit:
    """A limit that becomes `rule`. The slack of a rate or window is part of its period.

    If possible, a steady rate is written as `capacity` tokens for each fill time. A few rates are
    only near `rule`, such as some with a fractional amount in a period of months.
    """
    match rule:
        case ConcurrencyRule():
            return Concurrency(rule.capacity, rule.lease / SECOND, rule.unit)
        case SlidingWindowRule():
            return Window(rule.capacity, rule.per / SECOND, rule.unit)
        case FixedWindowRule():
            anchor = rule.anchor / SECOND if rule.anchor else None
            return Quota(rule.capacity, rule.per / SECOND, anchor, rule.unit, rule.slack / SECOND)
        case TokenBucketRule():
            return rate_of(rule)
    raise TypeError(f"no limit becomes {rule!r}")


def rate_of(rule: TokenBucketRule) -> Rate:
    """A rate that becomes `rule`, steady or in steps: the one with the shorter text."""
    initial = None if rule.start == rule.size else rule.start // rule.price
    rate = partial(Rate, capacity=rule.capacity, initial=initial, unit=rule.unit)
    amount, per, is_exact = steady_refill(rule)
    steady = rate(amount, per / SECOND)
    if rule.tick == 1:
        return steady
    try:
        steps = rate(rule.gain / rule.price, rule.tick / SECOND, steps=True)
    except ValueError:  # the part of a token that a tick brings is too small for a rate
        return steady
    is_shorter = not is_exact or len(str(steps)) < len(str(steady))
    return steps if is_shorter and bucket_of(steps).text == rule.text else steady


def steady_refill(rule: TokenBucketRule) -> tuple[int, int, bool]:
    """An amount and a period, in microseconds, and whether the steady rate of them becomes `rule`.

    If no such rate is found, they are those of the nearest rate that is not faster.
    """
    capacity, price, gain, tick = rule.capacity, rule.price, rule.gain, rule.tick
    # `smooth` has divided the amount and the ticks of a period by a common divisor, which the rule
    # does not keep. So try some. With `whole`, the amount is `capacity`. With a divisor below
    # `least`, `smooth` would have chosen a shorter tick.
    whole = 1 if capacity % gain else capacity // gain
    least = -(-LARGEST // (10 * rule.size))
    for divisor in (whole, *range(least, least + ATTEMPTS)):
        amount, ticks = gain * divisor, price * divisor
        # `smooth` rounds the ticks of a period up. So each of these periods has `ticks`.
        for tenths in range(10 * ticks, 10 * ticks - 10, -1):
            per = tenths * tick // 10
            if per > LONGEST or amount >= BEYOND:
                break
            if smooth(amount, per, capacity) == (price, gain, tick):
                return amount, per, True
    amount = max(1, min(capacity, gain * LONGEST // (price * tick)))
    return amount, min(LONGEST, -(-amount * price * tick // gain)), False


def program(rules: Sequence[Rule]) -> str:
    """The rules as text for the Lua twin. Equal text is equal behaviour."""
    return ";".join(rule.text for rule in rules)


class Declaration:
    """The limits of a name, and the facts about them that a request needs before it is sent."""

    __slots__ = (
        "_limits",
        "_makers",
        "_order",
        "capacity",
        "holds",
        "is_one_rate",
        "lease",
        "make_state",
        "program",
        "rated",
        "timeless",
    )

    def __init__(self, rules: Sequence[Rule], limits: Sequence[Limit] = ()) -> None:
        self.program = program(rules)
        self._limits = tuple(limits)  # as the user wrote them, if that is known
        self._makers = [maker(rule.text) for rule in rules]
        self._order = [rule.unit for rule in rules]
        self.capacity: dict[str, int] = {}
        for rule in rules:
            self.capacity[rule.unit] = min(
                rule.capacity, self.capacity.get(rule.unit, rule.capacity)
            )
        leases = [rule.lease for rule in rules if isinstance(rule, ConcurrencyRule)]
        self.rated = {rule.unit for rule in rules if not rule.holds}
        self.holds = bool(leases)
        # A block takes one token of one limit, and holds nothing.
        self.is_one_rate = self._order == ["requests"] and not self.holds
        # No decision depends on the time, and each acquire takes a permit, which it may hand on.
        self.timeless = not self.rated and "permits" in self.capacity
        self.lease = min(leases, default=0)
        # For the memory store: makes the state of a key that begins at a moment.
        self.make_state: Callable[[int], Any] | None = None

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits, one for each rule: as the user wrote them, or as the rules say them."""
        self._limits = self._limits or tuple(map(limit_of, self.rules()))
        return self._limits

    def costs(self, units: Units) -> Costs:
        return tuple(units.get(unit, ONE_EACH.get(unit, 0)) for unit in self._order)

    def rules(self) -> tuple[Rule, ...]:
        """Fresh rules: each state has its own."""
        return tuple([make() for make in self._makers])

    def maker_of(self, classes: Mapping[Any, Any]) -> Callable[[int], Any]:
        """A function that makes a fresh rule of the first limit, which begins at its argument.

        `classes`: by the class of a rule, the subclass to make.
        """
        make = self._makers[0]
        return partial(classes[make.func], *make.args)

    def __deepcopy__(self, memo: object) -> Declaration:
        """It never changes."""
        return self


# For a limiter that is attached to a name, until it has asked the store.
NO_LIMITS = Declaration(())


def declaration(limits: Sequence[Limit]) -> Declaration:
    return Declaration(rules_of(limits), limits)


def parsed(text: str) -> Rule:
    return maker(text)()


def maker(text: str) -> partial[Rule]:
    kind, unit, *numbers = text.split(" ")
    return partial(KINDS[kind], unit, *map(int, numbers))


def read_program(program: str) -> Declaration:
    """The limits of `program`, which a server has kept. Raises ValueError if it was damaged."""
    texts = program.split(";")
    for text in texts:
        if not is_sound(text):
            raise ValueError(f"{show(text)} is not the text of a limit: it was damaged")
    return Declaration([parsed(text) for text in texts])


def is_sound(text: str) -> bool:
    """Whether the rule of a checked limit could have written `text`. Twin: limits.lua."""
    found = re.fullmatch(WRITTEN, text)
    numbers = [int(number) for number in found[2].split()] if found else []
    if max(numbers, default=BEYOND) >= BEYOND:  # too large a number, or none
        return False
    match text.split(" ")[0], numbers:
        case "bucket", [capacity, price, gain, tick, start]:
            least, parts = min(capacity, price, gain, tick), capacity * price
            return least > 0 and start <= capacity and parts < BEYOND
        case "window" | "slots", [capacity, time]:
            return min(capacity, time) > 0
        case "quota", [capacity, per, anchor, slack]:
            return min(capacity, per) > 0 and max(anchor, slack) < per
    return False


# Each number has one spelling.
WRITTEN = "([a-z]+ [a-z][a-z0-9_]*)((?: (?:0|[1-9][0-9]*))*)"  # `re` compiles it when it is used
KINDS: dict[str, Callable[..., Rule]] = {
    "bucket": TokenBucketRule,
    "window": SlidingWindowRule,
    "quota": FixedWindowRule,
    "slots": ConcurrencyRule,
}
