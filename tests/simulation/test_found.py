"""Runs that have broken an invariant once, shrunk to the necessary steps. Each comment says what
was wrong: the product, or the simulation.

A seed draws another run as soon as a new kind of event is added (plan.py); these runs stay the
same.
"""

from __future__ import annotations

import pytest

from headgate.limits import Concurrency, Rate, Window
from tests.simulation.fleet import run
from tests.simulation.loop import SECOND
from tests.simulation.network import CALM, Weather
from tests.simulation.plan import Ask, Fault, Plan
from tests.simulation.shrink import story

ROUGH = Weather(delay=2000, spikes=0.02, spike=400_000, torn=0.1, late=1.0, again=0.2)
SLOW = Weather(delay=40_000, spikes=0.2, spike=400_000, torn=0.5, late=0.5, again=0.02)
SLOWEST = Weather(delay=40_000, spikes=0.2, spike=3 * SECOND, torn=0.1, late=0.5, again=0.2)

FOUND = {
    # S5. The clock steps back, and the server starts from a copy from before that. Until the clock
    # is beyond its former time, no check can know the fences of the lost state. The replay did not
    # excuse the moment at which the clock stood still (seed 3290).
    "a fence is given again while a clock has stepped back": Plan(
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
    # S5. The clock steps back, and then a name goes back to a copy: here to one from before its
    # first grant. Until the clock is beyond its former time, nothing can know the fences of the
    # lost state. The witness excused a server that starts again, and no name that goes back (seed
    # 11094).
    "a fence is given again to a name that began anew after a clock stepped back": Plan(
        11094,
        6,
        ((Concurrency(1, lease=1.0),),),
        None,
        ROUGH._replace(spikes=0.2, spike=3 * SECOND, torn=0.0),
        True,
        0.0,
        20 * SECOND,
        (
            Ask(0, 5, 0, "block", 1, 16_053, max_sleep=20.0),
            Ask(0, 4, 0, "block", 1, 4333, cancel=("woken", 1)),
            Fault(107_925, "back", 5, 6_414_256),
            Fault(1_718_846, "restore", 0, 5_296_951),
        ),
    ),
    # S5. The same with a copy that knows the name, whose time stands still (seed 7344).
    "a fence is given again to a name that went back after a clock stepped back": Plan(
        7344,
        4,
        ((Concurrency(2, lease=1.0), Rate(20, per=1, capacity=20, unit="tokens")),),
        3,
        CALM._replace(delay=80, spikes=0.2, spike=400_000, torn=0.1, late=1.0, again=0.02),
        True,
        0.0,
        80 * SECOND,
        (
            Ask(30_000_000, 2, 0, "block", 5, 2_709_941, max_sleep=2.0, actual=8),
            Fault(31_840_785, "back", 1, 12_503_466),
            Ask(41_990_151, 2, 0, "enter", 2, 12_266),
            Fault(42_077_534, "restore", 0, 430_572),
            Ask(42_427_770, 2, 0, "enter", 2, 141_386, max_sleep=2.0),
        ),
    ),
    # S5. The same in the other order: first the name goes back, and then the clock.
    "a fence is given again to a name that went back before the clock stepped back": Plan(
        1,
        3,
        ((Concurrency(1, lease=1.0),),),
        None,
        CALM,
        True,
        0.0,
        20 * SECOND,
        (
            Ask(SECOND, 0, 0, "block", 1, 100_000),
            Ask(3 * SECOND, 1, 0, "block", 1, 100_000),
            Fault(3_500_000, "crash", 0, 10 * SECOND),
            Fault(3_500_000, "crash", 1, 10 * SECOND),
            Fault(4 * SECOND, "restore", 0, 2 * SECOND),
            Fault(4_500_000, "back", 0, 3 * SECOND),
            Ask(5 * SECOND, 2, 0, "block", 1, 100_000),
        ),
    ),
    # S6. A caller that gives up before its call arrives stands in the queue for a moment, and no
    # other caller need wait behind it. The witness knew only callers that gave up later (seed
    # 20172).
    "a permit passes over a caller that was cancelled before its call arrived": Plan(
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
    # L6. A server whose memory was full has turned a call away, and remembers nothing of it. The
    # network delivers a copy of the call later (docs/promises.md). Its grant ends with its lease,
    # and its place in the queue when its session has been silent: the simulation looked before that
    # (seed 1848).
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
    # L5. The queue was lost while a clock that had stepped back stood still. It was begun anew in
    # the moment of the waiters' last call. So they went on waiting for ever in a queue that was
    # gone (seed 770166).
    "a queue is lost in the moment of its waiters' last call": Plan(
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
    # S3. The state of a name went back, and did not know a session any more. The session's process
    # said that it was over, and the store kept no record of that. So a copy of its first call,
    # which the network had kept, was granted a permit that no caller had. The permit came back
    # when its lease ended (seed 11920).
    "a late call of a session that is over": Plan(
        11920,
        6,
        ((Concurrency(4, lease=3.0), Rate(1, per=3, capacity=4)),),
        None,
        SLOWEST,
        True,
        0.0,
        20 * SECOND,
        (
            Ask(2_500_000, 5, 0, "block", 1, 3260, max_sleep=2.0, cancel=("asked", 3)),
            Ask(13_354_864, 1, 0, "drop", 3, 2_893_888, max_sleep=2.0, cancel=("after", 2_642_237)),
            Fault(14_650_140, "restore", 0, 631_909),
        ),
    ),
    # S7. An operator deletes the state of a name, and the client hears of nothing. Until it calls
    # again, the store does not know that its caller has given up. A copy of its call is granted
    # then (docs/promises.md), and the witness saw a caller that had given up long before.
    "a late call comes to a name that was deleted": Plan(
        1,
        2,
        ((Concurrency(1, lease=1.0),),),
        None,
        CALM._replace(again=1.0),
        True,
        0.0,
        20 * SECOND,
        (
            Ask(1_000_000, 0, 0, "told", 1, 2_500_000),
            Ask(3_000_000, 1, 0, "told", 1, 1000, cancel=("after", 100_000)),
            Fault(3_300_000, "delete", 0, 1000),
        ),
    ),
    # L6. The state of a name went back, and no process could say that a session was over: its
    # process was killed. So a copy of its call is granted for a lease (docs/promises.md). The
    # simulation looked for holders before the network had delivered all copies.
    "a late call of a killed process": Plan(
        1,
        2,
        ((Concurrency(1, lease=3.0),),),
        None,
        CALM._replace(again=1.0),
        True,
        0.0,
        20 * SECOND,
        (
            Ask(15 * SECOND, 0, 0, "told", 1, 1000),
            Ask(19 * SECOND, 1, 0, "told", 1, 1000),
            Fault(19_100_000, "crash", 1, SECOND),
            Fault(19_200_000, "restore", 0, SECOND),
        ),
    ),
    # S8. The server's clock steps back, and the moment of the calls stands still. The TTL of the
    # keys counted from that moment, so they ended while a permit was held and renewed.
    "a permit is renewed for long after a clock has stepped back": Plan(
        1,
        3,
        ((Concurrency(2, lease=8.0), Rate(1, per=30, capacity=4)),),
        None,
        CALM,
        True,
        0.0,
        400 * SECOND,
        (
            Ask(SECOND, 0, 0, "block", 1, 50_000),
            Fault(5 * SECOND, "back", 0, 300 * SECOND),
            Ask(6 * SECOND, 1, 0, "block", 1, 350 * SECOND),
            Ask(7 * SECOND, 2, 0, "block", 1, 50_000),
            Ask(8 * SECOND, 0, 0, "block", 1, 50_000),
        ),
    ),
    # S6. A delete removed the state and left the members. A late copy of a session's first call
    # then made the state anew, with waiters of the same names. The witness took these for waiters
    # that stay (seed 7102936).
    "a late copy queues anew after the state alone was deleted": Plan(
        7102936,
        2,
        ((Concurrency(1, lease=8.0), Rate(1, per=1, capacity=4)),),
        None,
        SLOWEST._replace(torn=0.0, late=1.0),
        True,
        0.0,
        40 * SECOND,
        (
            Ask(0, 1, 0, "block", 1, 9_000_000),
            Ask(0, 1, 0, "enter", 4, 56_534),
            Fault(11_218_899, "delete", 1, 437_780),
        ),
    ),
    # L2. Two servers of a Cluster wrote their first records in the same millisecond, by which the
    # library named its runs. After a move the new server thought that it notifies the sessions of
    # the other one, and passed over a waiter that lives (seed 7102991).
    "two servers begin in the same millisecond, and a slot moves from one to the other": Plan(
        7102991,
        2,
        (
            (Concurrency(1, lease=1.0),),
            (Concurrency(6, lease=3.0, unit="mb"),),
            (Rate(3, per=1, capacity=6),),
        ),
        None,
        CALM._replace(delay=300, torn=0.5, late=0.5),
        True,
        0.0,
        40 * SECOND,
        (
            Ask(0, 1, 0, "try", 1, 171_974, max_sleep=0.4),
            Ask(0, 0, 2, "try", 2, 2010),
            Ask(19_828_453, 1, 0, "enter", 1, 15_000_000, 20.0, ("asked", 2), 1),
            Ask(20 * SECOND, 1, 0, "block", 1, 12_612),
            Ask(30_322_438, 0, 0, "enter", 1, 25_144, max_sleep=0.05),
            Fault(32_691_069, "move", 0, 842_649),
        ),
        cluster=True,
    ),
}


@pytest.mark.proof("simulates fleets")
@pytest.mark.parametrize("what", FOUND)
def test_a_run_that_once_broke_an_invariant_breaks_none(what: str) -> None:
    """S3, S5, S6, S7, S8, L5, L6."""
    plan = FOUND[what]
    outcome = run(plan)
    assert not outcome.broken, story(plan, outcome)
