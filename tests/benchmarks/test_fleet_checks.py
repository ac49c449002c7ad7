"""The checks of the fleet's run: each check sees the fault that it is for, and a small fleet passes
those not about speed.
"""

from __future__ import annotations

from benchmarks.fleet import checks
from benchmarks.fleet.__main__ import measured
from benchmarks.fleet.plan import Grant, Plan
from tests.servers import Server

SECOND = 1_000_000


def grant(
    fence: int,
    granted: float = 0.0,
    released: float = 0.0,
    *,
    caller: str = "a:1:-",
    booked: int = 0,
    process: int = 0,
) -> Grant:
    return Grant(process, caller, fence, booked, granted, granted, released)


def test_permits_in_flight_are_counted_and_a_release_at_the_same_instant_comes_first() -> None:
    one_by_one = [grant(1, 0.0, 1.0), grant(2, 1.0, 2.0)]
    assert checks.most_at_once(one_by_one) == 1
    assert checks.most_at_once([*one_by_one, grant(3, 0.5, 1.5)]) == 2


def test_the_check_finds_a_token_too_many_in_any_interval() -> None:
    """Given a burst of 2 and 10 a second, when three go at once, or a third comes 0.05 s later,
    then that is over.
    """
    assert checks.most_over([0, 0, SECOND // 10, 2 * SECOND // 10], rate=10, burst=2) <= 0
    assert checks.most_over([0, 0, 0], rate=10, burst=2) == 1
    assert (
        checks.most_over([0, 9 * SECOND, 9 * SECOND, 9 * SECOND + SECOND // 20], rate=10, burst=2)
        == 0.5
    )


def test_the_check_finds_overtaken_callers_within_a_session_and_by_place() -> None:
    in_order = [grant(5, caller="a:9:-"), grant(7, caller="a:10:-"), grant(6, caller="b:1:-")]
    assert checks.overtaken(in_order) == 0
    assert checks.overtaken([*in_order, grant(4, caller="a:11:-")]) == 1
    assert checks.overtaken_by_place(in_order, {"a:9:-": 1, "b:1:-": 2, "a:10:-": 3}) == (0, 3)
    assert checks.overtaken_by_place(in_order, {"a:9:-": 1, "a:10:-": 2, "b:1:-": 3}) == (1, 3)


def test_the_check_finds_a_caller_that_goes_before_its_reserved_moment() -> None:
    assert checks.early([grant(1, granted=1.0, booked=SECOND)]) == 0
    assert checks.early([grant(1, granted=1.0, booked=SECOND + 1_000)]) == 1


def test_a_hand_off_is_reckoned_from_the_release_that_made_it_possible() -> None:
    """Given a capacity of 2, when the third and fourth follow the first two releases, then those
    are their hand-offs.
    """
    grants = [grant(1, 0.0, 1.0), grant(2, 0.0, 2.0), grant(3, 1.25, 3.0), grant(4, 2.5, 3.0)]
    assert checks.hand_offs(grants, capacity=2) == [0.25, 0.5]
    assert checks.busy(grants, 0.5, 1.5) == 0.5 + 1.0 + 0.25


def test_the_share_of_grants_to_another_process_is_computed() -> None:
    assert checks.abroad([grant(1, process=0), grant(2, process=0), grant(3, process=1)]) == 0.5


def test_a_small_fleet_is_never_over_its_limits_and_keeps_the_order(own_server: Server) -> None:
    """Given two processes on two limits, when they crowd them for a moment, then all checks but
    those of speed hold.
    """
    plan = Plan(
        "both",
        capacity=2,
        rate=500,
        burst=5,
        hold=0.001,
        processes=2,
        waiters=20,
        seconds=0.5,
        spread=0.05,
    )
    report = measured(plan, own_server.url)
    speedy = ("throughput", "the same, in bare round trips")
    wrong = [
        line for line in report.lines if line.reached is False and not line.what.startswith(speedy)
    ]
    assert wrong == []
    assert sum(line.reached is True for line in report.lines) >= 6
