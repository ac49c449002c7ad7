"""Shares of limits: all together allow no more than the whole, and each is the whole divided, to
the microsecond.
"""

from __future__ import annotations

import pytest

from headgate.gate.compile import Declaration, rules_of
from headgate.gate.gate import Gate, Grant
from headgate.gate.split import share_of
from headgate.limits import Concurrency, Limit, Quota, Rate, Window

SECOND = 1_000_000


def shares(limit: Limit, processes: int) -> list[Gate]:
    """The gates of so many processes, none of which knows of the others."""
    share = share_of(Declaration(rules_of([limit])).program, processes)
    return [Gate(share.rules(), 0) for _ in range(processes)]


def granted(gates: list[Gate], moments: range) -> list[int]:
    """The moments of all grants to callers that ask each gate again and again."""
    found = []
    for t in moments:
        for gate in gates:
            while isinstance(gate.acquire(t, object(), {}, max_sleep=0), Grant):
                found.append(t)
    return found


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "limit",
    [
        Rate(10, per=1),
        Rate(10, per=1, capacity=25),
        Rate(10, per=1, capacity=25, initial=7),
        Rate(3, per=1, capacity=8, steps=True),
        Rate(10, per=1, capacity=10, steps=True),
    ],
    ids=str,
)
def test_the_shares_of_a_rate_are_no_more_than_the_rate(limit: Rate, processes: int) -> None:
    """T1: in every interval from the start, by processes that all ask as often as can be, a burst
    and the rate at most.
    """
    moments = granted(shares(limit, processes), range(0, 4 * SECOND, SECOND // 20))

    start = limit.burst if limit.initial is None else limit.initial
    for count, moment in enumerate(moments, start=1):
        assert count <= start + limit.amount * moment / SECOND
    assert len(moments) >= (limit.amount * 3 / 2 if processes == 1 else processes)


@pytest.mark.parametrize("processes", [2, 4, 7])
def test_a_share_of_a_rate_is_slower_by_the_number_of_processes(processes: int) -> None:
    """Its tokens come exactly when those of the rate `amount` in `per * processes` seconds
    would.
    """
    (share, *_) = shares(Rate(10, per=1, capacity=20), processes)
    alone = Gate(rules_of([Rate(10, per=processes, capacity=20 // processes)]), 0)

    moments = range(0, 4 * SECOND, 10_000)
    assert granted([share], moments) == granted([alone], moments)


def test_a_share_of_a_rate_in_steps_gets_its_part_of_each_step() -> None:
    """10 every second for 4 are 2.5 every second for one, of which 2 and 3 can be used by turns."""
    (share, *_) = shares(Rate(10, per=1, capacity=12, steps=True), 4)

    moments = granted([share], range(0, 5 * SECOND, SECOND // 10))

    assert [moments.count(t * SECOND) for t in range(5)] == [3, 2, 3, 2, 3]
    assert len(moments) == 13


@pytest.mark.parametrize(("processes", "each"), [(1, 10), (3, 3), (4, 2), (10, 1)])
def test_windows_quotas_and_permits_are_divided_and_the_rest_is_left_out(
    processes: int, each: int
) -> None:
    """S1, T2: 10 among 4 are 2 for each."""
    for limit in (Window(10, per=3600), Quota(10, per=3600), Concurrency(10)):
        gates = shares(limit, processes)
        assert [len(granted([gate], range(0, SECOND, SECOND))) for gate in gates] == [
            each
        ] * processes


def test_a_share_differs_from_its_limit_in_the_amount_only() -> None:
    """The period of a window, the anchor and slack of a quota, a lease and all units stay."""
    limits = [
        Concurrency(8, lease=7, unit="mb"),
        Window(8, per=5, unit="calls", slack=0.5),
        Quota(8, per=3600, anchor=600, slack=2),
        Rate(8, per=60, initial=6, unit="tokens"),
    ]
    halves = [
        Concurrency(4, lease=7, unit="mb"),
        Window(4, per=5, unit="calls", slack=0.5),
        Quota(4, per=3600, anchor=600, slack=2),
    ]

    *programs, rate = share_of(Declaration(rules_of(limits)).program, 2).program.split(";")

    assert programs == Declaration(rules_of(halves)).program.split(";")
    assert rate.startswith("bucket tokens 4 ")
    assert rate.endswith(" 3")


@pytest.mark.parametrize(
    "limit",
    [Concurrency(3), Rate(100, per=1, capacity=3), Window(3, per=1), Quota(3, per=1)],
    ids=str,
)
def test_a_limit_below_one_unit_for_each_process_cannot_be_divided(limit: Limit) -> None:
    with pytest.raises(ValueError, match=r"no more than 3 .* less than one for each"):
        shares(limit, 4)
    assert shares(limit, 3)
