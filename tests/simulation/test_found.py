"""Runs that have broken an invariant once, shrunk to what it took. Each says what was wrong: the
product, or the simulation.

A seed draws another run as soon as anything is added to what can happen (plan.py); these stay what
they are.
"""

from __future__ import annotations

import pytest

from headgate.limits import Concurrency, Quota, Rate, Window
from tests.simulation.fleet import run
from tests.simulation.loop import SECOND
from tests.simulation.network import CALM, Weather
from tests.simulation.plan import Ask, Fault, Plan
from tests.simulation.shrink import story

ROUGH = Weather(delay=2000, spikes=0.02, spike=400_000, torn=0.1, late=1.0, again=0.2)
SLOW = Weather(delay=40_000, spikes=0.2, spike=400_000, torn=0.5, late=0.5, again=0.02)

FOUND = {
    # S5. The clock steps back, a copy from before that is started from: until it shows again what
    # it has shown, nobody can know which fences were given in what was lost. The replay did not
    # excuse the moment at which the clock stood still (seed 3290).
    "a fence comes again in the time that a clock has gone back": Plan(
        3290,
        6,
        ((Concurrency(1, lease=1.0), Rate(10, per=3, capacity=4)),),
        None,
        ROUGH,
        True,
        0.0,
        40 * SECOND,
        (
            Ask(5_789_082, 3, 0, "told", 3, 1249, actual=0),
            Fault(7_564_833, "back", 0, 10_569_706),
            Ask(9_103_517, 2, 0, "enter", 1, 198_643, max_sleep=0.4),
            Fault(10_759_819, "old", 1, 4_443_836),
            Ask(14_983_541, 4, 0, "enter", 3, 2646, max_sleep=2.0),
        ),
    ),
    # S6. Who gives up before the store has heard of it stands in the queue for a moment, and nobody
    # need wait behind it: the witness knew only those who gave up later (seed 20172).
    "a permit goes past one who was cancelled before its call arrived": Plan(
        20172,
        2,
        ((Concurrency(6, lease=8.0, unit="mb"),), (Concurrency(1, lease=1.0),)),
        None,
        SLOW,
        True,
        0.0,
        20 * SECOND,
        (
            Ask(0, 1, 1, "enter", 1, 1265),
            Ask(0, 1, 1, "enter", 1, 3_042_086, max_sleep=0.05, cancel=("after", 18)),
            Ask(0, 1, 1, "enter", 1, 39_641, max_sleep=0.4),
        ),
    ),
    # L6. A server whose memory was full has turned a call away, and remembers nothing of it: a copy
    # that was kept on the way is run when it comes (docs/promises.md). What it was granted ends
    # with its lease, what it waits for when its session has been silent: the simulation looked
    # before that (seed 1848).
    "a call that was turned away comes again when there is room": Plan(
        5,
        2,
        ((Concurrency(1, lease=1.0),),),
        None,
        CALM._replace(late=1.0, again=0.9),
        True,
        0.0,
        20 * SECOND,
        (
            Fault(15_000_000, "full", 0, 5 * SECOND),
            Ask(15_000_000, 1, 0, "told", 1, SECOND),
            Ask(18_391_201, 1, 0, "enter", 1, 15_299),
            Ask(18_562_574, 1, 0, "enter", 1, 107_884),
        ),
    ),
    # L5. The queue is lost while a clock that has stepped back stands still: it was begun anew in
    # the moment in which who waits had been heard last, who so went on waiting in a queue that was
    # gone, for ever (seed 770166).
    "a queue is lost in the moment in which its waiters were heard": Plan(
        770_166,
        3,
        ((Concurrency(1, lease=8.0), Window(9, per=1)),),
        None,
        CALM._replace(delay=2000, torn=0.1),
        True,
        1.0,
        40 * SECOND,
        (
            Ask(1_494_397, 0, 0, "block", 3, 53_544, max_sleep=0.05),
            Fault(1_603_952, "back", 1, 17_831_492),
            Ask(15_328_046, 2, 0, "block", 1, 2_545_186),
            Ask(16_241_383, 2, 0, "block", 1, 8087),
            Fault(16_420_849, "delete", 1, 51_228),
        ),
    ),
    # S8. A name that is new in a slot on its way has all of its keys made where that goes, the log
    # too; where no limit is a window nobody writes it, nor misses it when it ends (seed 770405).
    "a log that nobody needs ends before its name": Plan(
        770_405,
        4,
        ((Concurrency(1, lease=5.0), Quota(2, per=5, anchor=0.3, slack=0.2)),),
        None,
        CALM._replace(delay=2000, spike=50_000),
        True,
        0.0,
        20 * SECOND,
        (
            Ask(0, 2, 0, "told", 2, 41_145),
            Ask(683_483, 3, 0, "drop", 1, 5981, max_sleep=20.0),
            Fault(1_539_749, "move", 0, 1_305_990),
            Ask(1_850_323, 3, 0, "block", 2, 8838, max_sleep=20.0, actual=2),
            Ask(1_959_026, 2, 0, "block", 2, 37_806, max_sleep=20.0),
            Ask(2_384_657, 0, 0, "hand", 2, 15 * SECOND, actual=2),
            Ask(2_500_000, 3, 0, "block", 1, 2647),
            Ask(10_000_000, 3, 0, "hand", 2, 32_192),
            Ask(10_324_687, 1, 0, "enter", 1, 24 * SECOND, max_sleep=0.05),
        ),
        True,
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_mended(what: str) -> None:
    """S5, S6, S8, L5, L6."""
    plan = FOUND[what]
    outcome = run(plan)
    assert not outcome.broken, story(plan, outcome)
