"""Exceptions that arrive at any moment: raised by a signal handler, or by another thread (Celery,
pytest-timeout, RQ, Ctrl-C).
"""

from __future__ import annotations

import subprocess
from itertools import product

import pytest

from tests.processes import command, environment

WAYS = ["block", "acquire", "acquire_sync", "try_acquire", "decorator"]
KINDS = [
    f"{limits}-{way}" for limits, way in product(["rate", "window", "concurrency", "both"], WAYS)
]
CONTENDED = [f"contended-{way}" for way in WAYS if way != "try_acquire"]  # a try does not wait
SHORT = [
    "rate-block",
    "concurrency-block",
    "both-block",
    "both-acquire",
    "both-acquire_sync",
    "both-try_acquire",
    "both-decorator",
]


def interrupted(how: str, which: str, interrupts: int, inside: float) -> tuple[int, int, int, int]:
    """The exceptions raised and arrived, and the leaks of the limiter and its peer.

    It fails when it hangs.
    """
    call = [
        part
        for part in command("interrupts", how, which, interrupts, inside)
        if part not in ("-X", "dev", "-W", "error")
    ]
    done = subprocess.run(
        call,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60 + interrupts / 50,
        check=True,
    )
    raised, caught, ignored, leaks, peer, turns, early = map(int, done.stdout.split())
    assert turns > 0
    assert ignored <= raised / 100  # of a finalizer, which Python lets raise nothing
    assert which not in CONTENDED or early >= raised / 4  # most of these came in a wait
    inside = which.startswith(("concurrency", "both", "contended"))  # the program itself
    return raised, caught + ignored, leaks - inside, peer


def no_more(leaks: int, peer: int) -> bool:
    """Whether the difference is within three standard deviations. Both counts are random, so the
    variance of their difference is their sum.
    """
    return leaks - peer <= 3 * (leaks + peer) ** 0.5


@pytest.mark.parametrize("which", SHORT)
def test_an_exception_of_a_signal_handler_reaches_the_caller_and_leaves_no_lock_locked(
    which: str,
) -> None:
    """H1: each of 500 handlers' exceptions comes out, and the limiter can be used afterwards."""
    raised, arrived, leaks, peer = interrupted("alarm", which, 500, 0.001)
    assert raised == arrived == 500
    assert no_more(leaks, peer)


def test_an_exception_of_a_signal_handler_in_a_wait_reaches_the_caller() -> None:
    """H1: each of 300, most of them while helper threads hold both permits; then all can be
    used.
    """
    raised, arrived, leaks, peer = interrupted("alarm", CONTENDED[0], 300, 0.0002)
    assert raised == arrived == 300
    assert no_more(leaks, peer)


def test_a_settlement_swallows_no_exception_of_a_signal_handler() -> None:
    """H1: its arguments are valid, and shown only in an error."""
    raised, arrived, _, _ = interrupted("alarm", "rate-settle", 500, 0)
    assert raised == arrived == 500


@pytest.mark.parametrize("which", ["rate-block", "both-acquire"])
def test_an_exception_that_another_thread_raises_leaves_no_lock_locked(which: str) -> None:
    """H1: PyThreadState_SetAsyncExc, 300 times."""
    _, arrived, leaks, peer = interrupted("thread", which, 300, 0)
    assert 0 < arrived <= 300
    assert no_more(leaks, peer)


@pytest.mark.proof
@pytest.mark.parametrize("which", KINDS)
def test_signal_handlers_that_raise_20000_times_lose_no_exception_and_few_permits(
    which: str,
) -> None:
    """H1: 0.3 to 4 ms apart, around a body of a millisecond; no more permits leak than of a
    threading.Semaphore.
    """
    raised, arrived, leaks, peer = interrupted("alarm", which, 20_000, 0.001)
    assert raised == arrived == 20_000
    assert no_more(leaks, peer)


@pytest.mark.proof
@pytest.mark.parametrize("which", CONTENDED)
def test_signal_handlers_that_raise_5000_times_in_waits_lose_no_exception_and_few_permits(
    which: str,
) -> None:
    """H1: helper threads hold both permits most of the time; no more permits leak than of a
    threading.Semaphore.
    """
    raised, arrived, leaks, peer = interrupted("alarm", which, 5_000, 0.0002)
    assert raised == arrived == 5_000
    assert no_more(leaks, peer)
