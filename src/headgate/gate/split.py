"""Shares: the part of a name's limits for one of several processes that cannot ask each other.

All shares together never allow more than the whole: a remainder of the division is left out. The
store knows which process enforces a share, and when.
"""

from __future__ import annotations

from functools import lru_cache

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
    return Declaration([divide(rule, processes) for rule in rules])


def divide(rule: Rule, processes: int) -> Rule:
    capacity = rule.capacity // processes
    match rule:
        case ConcurrencyRule():
            return ConcurrencyRule(rule.unit, capacity, rule.lease)
        case SlidingWindowRule():
            return SlidingWindowRule(rule.unit, capacity, rule.per)
        case FixedWindowRule():
            return FixedWindowRule(rule.unit, capacity, rule.per, rule.anchor, rule.slack)
        case TokenBucketRule():
            # A token has `processes` times as many parts, and each tick brings the same number. So
            # the rate is divided exactly, also in steps.
            price, start = rule.price * processes, rule.start // rule.price // processes
            return TokenBucketRule(rule.unit, capacity, price, rule.gain, rule.tick, start)
    raise TypeError(f"no share of {rule!r}")
