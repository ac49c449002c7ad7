"""The Lua on a real server answers as the Python gate does: every grant, wait, refusal, remaining
number and notification.

A story that fails is cut short and printed; saved as a JSON file in tests/seeds it is played ever
after.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis

from headgate.stores.redis.transport.node import PLACEHOLDERS
from tests.twins.driver import Player, Story
from tests.twins.stories import Author, cut
from tests.twins.wire import NOON, Acquire, Call, Caller, Release, Status, Wire

SEEDS = sorted((Path(__file__).parent.parent / "seeds").glob("*.json"))
STORIES, LENGTH = 3, 120
LENGTH_OF_CROWD = 400
WAYS = [
    "functions",
    "scripts",
]  # how a server is asked that has functions, and how one that has none


def first_difference(wire: Wire, story: Story) -> str:
    """The difference, and the steps before; nothing when both twins agree."""
    player = Player(wire, story)
    try:
        player.play(story["steps"])
    except (AssertionError, redis.ResponseError) as difference:
        return "\n".join([*player.trace, str(difference) or repr(difference)])
    finally:
        wire.forget()
    return ""


# The short run keeps one story in three. The way over functions is every sixth.
CROWDED = [pytest.param(seed, marks=[pytest.mark.proof] * (seed > 3)) for seed in range(60)]
DRAWN = [
    pytest.param(seed, marks=[pytest.mark.proof] * (seed % 6 not in (0, 3))) for seed in range(60)
]


def agree(made: Callable[[], Wire], story: Story) -> None:
    """Fail with the shortest story that shows the difference."""
    if first_difference(made(), story):
        story = cut(story, lambda shorter: bool(first_difference(made(), shorter)))
        pytest.fail(f"{first_difference(made(), story)}\n\nfor tests/seeds: {json.dumps(story)}")


@pytest.mark.parametrize("seed", DRAWN)
def test_both_twins_answer_drawn_stories_alike(made: Callable[..., Wire], seed: int) -> None:
    """Given any limits and any calls of three sessions at any times, when both twins run them, then
    their replies and states are the same.

    So the gate's promises are kept on a server (T1, T2, T3, T4, T5, T6, T8, T9), by the fast
    script and the whole one. The parts beyond the gate are as plain as in the model. One acquire
    gets one grant, also if it is sent again or comes late (S3, T10). Only held permits are released
    or renewed (S4). Leases end, and the dead lose their places (L1, L3); the work of a call is
    bounded (S9). The witness holds S1, S2, S3, S5, S6, S7, T3, T6, S8 and T12 against both besides.
    """
    way = WAYS[seed % 6 == 0]
    for number in range(STORIES):
        agree(partial(made, way == "functions"), Author(f"{seed}.{number}").story(LENGTH))


@pytest.mark.parametrize("seed", CROWDED)
def test_both_twins_merge_the_same_entries_of_a_crowded_window(
    made: Callable[..., Wire], seed: int
) -> None:
    """T1, T2, T5, S9: given more moments in a period than a window keeps."""
    agree(partial(made, seed % 2 == 0), Author(f"crowded.{seed}").crowded_window(LENGTH_OF_CROWD))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.stem)
def test_both_twins_answer_the_kept_stories_alike(
    made: Callable[..., Wire], seed: Path, way: str
) -> None:
    """Each seed names its subject, and the invariant that was broken when it was found."""
    story = json.loads(seed.read_text())

    assert story["about"]
    agree(partial(made, way == "functions"), story)


def test_an_acquire_that_is_in_the_queue_keeps_its_place(wire: Wire) -> None:
    """S3: given the first waiter of two, when the same acquire is asked for once more, then it
    waits once, and still first.
    """
    limits = "bucket requests 2 1000000 1 1 0"
    first, second = Acquire(1, asked="requests=1"), Acquire(2, asked="requests=1")
    asked = Call(limits, f"{wire.token}-1.1", 1, (first, second, first, Status()))

    received = wire.call(asked, NOON)
    *_, (_, waiting, delay, *_) = received.each()
    later = wire.call(
        Call(limits, f"{wire.token}-1.1", 2, received=received.beginning, waits=True),
        NOON + 2_000_000,
    )

    assert (waiting, delay) == (2, 3_000_000)
    assert [number for number, *_ in later.outbox] == [1, 2]


def test_a_queue_lost_while_the_clock_stands_still_lapses_its_session_once(wire: Wire) -> None:
    """L2: given a waiter and a clock that has stepped back, when the queue is lost, then its
    session lapses, and only once.
    """
    limits, first, second = "slots permits 1 30000000", f"{wire.token}-1.1", f"{wire.token}-1.2"
    asked = wire.call(Call(limits, first, 1, (Acquire(1, 2),)), NOON)
    wire.lose("who")

    received = [
        wire.call(Call(limits, first, 2, received=asked.beginning, waits=True), NOON - 1_000_000)
    ]
    received += [wire.call(Call(limits, second, 1, (Acquire(2, 2),)), NOON - 1_000_000)]
    received += [
        wire.call(
            Call(limits, second, 2, received=received[-1].beginning, waits=True), NOON - 1_000_000
        )
    ]

    assert [reply.verdict for reply in received] == ["lapsed", "ok", "ok"]


@pytest.mark.parametrize("created", ["by a client", "by the fast path"])
def test_a_waiter_keeps_its_place_after_its_members_were_lost(
    wire: Wire, made: Callable[[], Wire], created: str
) -> None:
    """L2: given a session of a Cluster whose members were lost and created anew, when it waits and
    another session calls, then its waiter stays in the queue. Calls of other names change nothing.
    """
    limits, first, other = "slots permits 2 30000000", *(f"{wire.token}-{n}.1" for n in (1, 2))
    asking = Call(limits, first, 1, (Acquire(1),), clustered=True)
    wire.call(asking, NOON)
    wire.lose("who")
    asking = replace(asking, declares=0)
    if created == "by the fast path":
        wire.call_fast(replace(asking, number=2, requests=(Acquire(2),)), NOON + 1)
    else:
        for key, (verb, *words) in zip(wire.keys, PLACEHOLDERS, strict=True):
            wire.client.execute_command(verb, key, *words)

    asked = wire.call(replace(asking, number=3, requests=(Acquire(3, 3),)), NOON + 2)
    elsewhere = made()
    elsewhere.call(Call(limits, other, 1, (Status(),), clustered=True), NOON + 2)
    seen = wire.call(Call(limits, other, 1, (Status(),), clustered=True), NOON + 3)
    elsewhere.forget()

    (*_, (verdict, waiting, *_)), (status, *_) = asked.answers, seen.answers
    assert verdict == "wait"
    assert status[:2] == ("status", waiting)


def test_a_copy_of_a_call_to_a_lost_name_gives_the_session_no_place(wire: Wire) -> None:
    """L5, S3: given a waiter, when the name is lost and a copy of its call is carried out there,
    then it has lapsed.
    """
    limits, first, second = "slots permits 1 30000000", f"{wire.token}-1.1", f"{wire.token}-2.1"
    wire.call(Call(limits, second, 1, (Acquire(1),)), NOON)
    asks = Call(limits, first, 1, (Acquire(1),), declares=0)
    asked = wire.call(asks, NOON + 1)
    wire.lose("")
    wire.call(Call(limits, second, 2, (Status(),)), NOON + 2)

    copied = wire.call(asks, NOON + 3)
    later = wire.call(Call(limits, first, 2, received=asked.beginning, waits=True), NOON + 4)

    assert [reply.answers[0][0] for reply in (asked, copied)] == ["wait", "grant"]
    assert later.verdict == "lapsed"


def test_a_place_taken_by_a_copied_call_is_lost_with_its_session(wire: Wire) -> None:
    """L3, S7: given a copy that waits, when its session has lapsed and asks anew, then only holders
    stand before it.
    """
    limits, other, first, anew = (
        "slots permits 1 30000000",
        *(f"{wire.token}-{session}" for session in ("1.1", "2.1", "2.2")),
    )
    wire.call(Call(limits, other, 1, (Acquire(1),)), NOON)
    asks = Call(limits, first, 1, (Acquire(1),), declares=0)
    asked = wire.call(asks, NOON + 1)
    wire.lose("")
    wire.lose("who")
    wire.call(Call(limits, other, 2, (Acquire(2),)), NOON + 2)
    wire.call(asks, NOON + 3)

    wire.call(Call(limits, first, 2, received=asked.beginning, waits=True), NOON + 4)
    again = wire.call(Call(limits, anew, 1, (Acquire(1),)), NOON + 5)
    wire.call(Call(limits, other, 3, (Release(Caller(other, 2, "-")),)), NOON + 6)
    later = wire.call(Call(limits, anew, 2, received=again.beginning, waits=True), NOON + 7)

    assert [number for number, *_ in later.outbox] == [1]


def test_the_folder_of_kept_stories_has_stories() -> None:
    """A folder that was moved would be a set of no seeds, and no test would miss them."""
    assert len(SEEDS) >= 6
