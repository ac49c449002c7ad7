"""The judge must be stricter than its subject: the demo server's decision and the ideal time.

Time is an argument here, in milliseconds; nothing sleeps and no server is started.
"""

from __future__ import annotations

import pytest

from demo.rules import Doorkeeper, Rules, Verdict, ideal_time

MILLISECOND = 1_000_000


class Service:
    """A service whose calls name the time in milliseconds."""

    def __init__(self, amount: int, at_once: int) -> None:
        self._keeper = Doorkeeper(Rules(amount=amount, per=1.0, at_once=at_once))

    def arrive(self, at: float) -> Verdict:
        return self._keeper.arrive(round(at * MILLISECOND))

    def visit(self, at: float) -> Verdict:
        """Arrives, and leaves before the next."""
        verdict = self.arrive(at)
        if verdict == "ok":
            self._keeper.leave()
        return verdict

    def leave(self) -> None:
        self._keeper.leave()

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._keeper.verdicts)


def test_the_server_admits_its_amount_and_refuses_one_more_in_the_same_second() -> None:
    service = Service(amount=3, at_once=100)

    verdicts = [service.visit(at) for at in (0, 10, 20, 30)]

    assert verdicts == ["ok", "ok", "ok", "rate"]


def test_the_window_opens_exactly_one_period_after_the_oldest_call() -> None:
    service = Service(amount=2, at_once=100)
    service.visit(5)
    service.visit(900)

    assert service.visit(1005 - 0.000_001) == "rate"
    assert service.visit(1005) == "ok"


def test_a_burst_at_the_end_of_a_second_prevents_one_at_the_start_of_the_next() -> None:
    service = Service(amount=2, at_once=100)
    service.visit(990)
    service.visit(995)

    assert (
        service.visit(1001) == "rate"
    )  # a window that starts anew every second would have passed this
    assert service.visit(1990) == "ok"
    assert service.visit(1994) == "rate"
    assert service.visit(1995) == "ok"


def test_a_refused_call_does_not_count() -> None:
    service = Service(amount=1, at_once=100)
    service.visit(0)

    for at in range(100, 1000, 100):
        assert service.visit(at) == "rate"

    assert service.visit(1000) == "ok"


def test_the_server_admits_as_many_at_once_as_its_limit_and_a_leaver_makes_room() -> None:
    service = Service(amount=100, at_once=2)
    service.arrive(0)
    service.arrive(0)

    assert service.arrive(1) == "concurrency"
    service.leave()
    assert service.arrive(1) == "ok"
    assert service.arrive(1) == "concurrency"


def test_a_call_refused_for_concurrency_uses_nothing_of_the_rate() -> None:
    service = Service(amount=2, at_once=1)
    service.arrive(0)
    service.arrive(1)  # refused: one is inside
    service.leave()

    assert service.visit(2) == "ok"
    assert service.visit(3) == "rate"


def test_every_call_is_counted_once_by_its_verdict() -> None:
    service = Service(amount=2, at_once=1)

    service.arrive(0)
    service.arrive(1)
    service.leave()
    service.visit(2)
    service.visit(3)

    assert service.counts == {"ok": 2, "rate": 1, "concurrency": 1}


@pytest.mark.parametrize(
    ("calls", "seconds", "because"),
    [
        (1, 0.05, "one call takes as long as a call takes"),
        (5, 0.05, "five run side by side"),
        (6, 0.10, "the sixth waits for a place"),
        (20, 0.20, "four rounds of five"),
        (21, 1.05, "the 21st waits until the first is a second old"),
        (200, 9.20, "nine full seconds, then four rounds of five"),
    ],
)
def test_the_ideal_time_follows_from_both_limits(calls: int, seconds: float, because: str) -> None:
    rules = Rules(amount=20, per=1.0, at_once=5, call_time=0.05)

    assert ideal_time(calls, rules) == pytest.approx(seconds), because


def test_the_concurrency_sets_the_ideal_time_of_slow_calls() -> None:
    rules = Rules(amount=20, per=1.0, at_once=5, call_time=2.0)

    assert ideal_time(50, rules) == pytest.approx(20.0)


def test_the_server_refuses_calls_only_on_a_schedule_faster_than_the_ideal() -> None:
    def refused(period: int) -> int:
        service = Service(amount=20, at_once=20)
        verdicts = [service.visit(batch * period) for batch in range(3) for _ in range(20)]
        return len(verdicts) - verdicts.count("ok")

    assert refused(period=1000) == 0
    assert refused(period=999) > 0
