"""Shares: the part of a name's limits for one of several processes that cannot ask each other.

All shares together never allow more than the whole: a remainder of the division is left out. The
store knows which process enforces a share, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from headgate.gate.compile import Declaration, parsed
from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.gate import Rule
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.gate.token_bucket import TokenBucketRule


@lru_cache(maxsize=1024)
def share_of(program: str, processes: int) -> Declaration:
    """Raises ValueError if a limit holds fewer units than there are processes."""
    rules = [parsed(text) for text in program.split(";")]
    for rule in rules:
        if rule.capacity < processes:
            raise ValueError(
                f"a limit that holds no more than {rule.capacity} {rule.unit} has less than one "
                "for each process"
            )
    return Declaration([SHARES[type(rule)](rule, processes) for rule in rules])


def of_slots(rule: ConcurrencyRule, processes: int) -> ConcurrencyRule:
    return ConcurrencyRule(rule.unit, rule.capacity // processes, rule.lease)


def of_bucket(rule: TokenBucketRule, processes: int) -> TokenBucketRule:
    """A token costs as many times the parts, so that the rate is divided exactly, in steps too."""
    start = rule.start // rule.price // processes
    return TokenBucketRule(
        rule.unit, rule.capacity // processes, rule.price * processes, rule.gain, rule.tick, start
    )


def of_window(rule: SlidingWindowRule, processes: int) -> SlidingWindowRule:
    return SlidingWindowRule(rule.unit, rule.capacity // processes, rule.per)


def of_quota(rule: FixedWindowRule, processes: int) -> FixedWindowRule:
    return FixedWindowRule(rule.unit, rule.capacity // processes, rule.per, rule.anchor, rule.slack)


SHARES: dict[type[Any], Callable[[Any, int], Rule]] = {
    ConcurrencyRule: of_slots,
    TokenBucketRule: of_bucket,
    SlidingWindowRule: of_window,
    FixedWindowRule: of_quota,
}
