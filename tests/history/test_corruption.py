"""A history with a false event is rejected, by the invariant that it breaks.

The history is that of a simulated run, with made-up clients around it: each call is made before it
is run and answered after it, but some are never answered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import count, islice

import pytest

from tests.history.checker import judged
from tests.history.events import Commit, Event, History, Invoked, Lost, Op, Returned, event_of
from tests.simulation.fleet import run
from tests.simulation.plan import planned

pytestmark = pytest.mark.proof("simulates fleets")
RUNS, ENOUGH = 12, 20  # simulated runs, and calls that grant in each
UNHEARD = 7  # each such call is of unknown outcome


@cache
def simulated() -> tuple[History, ...]:
    histories = (run(planned(seed), replays=False).history for seed in count())
    return tuple(
        islice((known for known in histories if len(places_of(known, grants)) >= ENOUGH), RUNS)
    )


def with_clients(history: History) -> History:
    """A client makes the call of every commit just before it, and gets most of the answers just
    after.
    """
    events: History = []
    for event in history:
        events.append(event)
        if isinstance(event, Commit):
            events.insert(-1, Invoked(event.op))
            if event.seq % UNHEARD:
                events.append(Returned(event.op, event.reply))
    return events


def corrupted(change: Callable[[Commit], Commit | None]) -> Iterable[History]:
    """One history after another, each changed in the first commit for which `change` has a
    different one.
    """
    for history in simulated():
        for at, event in enumerate(history):
            other = change(event) if isinstance(event, Commit) else None
            if other is not None and other != event:
                yield [*history[:at], other, *history[at + 1 :]]
                break


def replaced(pattern: str, other: str) -> Callable[[Commit], Commit | None]:
    """The answers with `other` in place of the first match."""
    return lambda commit: commit._replace(reply=re.sub(pattern, other, commit.reply, count=1))


def blamed(histories: Iterable[History]) -> set[str]:
    """The invariants that are broken in so many histories; "none" if one of them is accepted."""
    found = [
        verdict.broken.invariant if verdict.broken else "none" for verdict in map(judged, histories)
    ]
    assert len(found) >= 3, "there was hardly anything to change"
    return set(found)


def test_a_history_without_a_change_is_accepted() -> None:
    for history in simulated():
        verdict = judged(with_clients(history))
        assert verdict.broken is None, str(verdict)
        assert verdict.unknown == verdict.run > 0


# The store's answers ------------------------------------------------------------------------------

LIES = {  # the change of an answer, and the invariants that it breaks
    "a grant too many": (r" (late|full|wait) 1 \d+ \d+", " grant 1 0 9999", {"S1"}),
    "a grant kept back": (r" grant 1 0 \d+", " late 1 1000 0", {"S7"}),
    "a grant before its moment": (r"(@\d+ \d+ \d+) [1-9]\d* ", r"\1 0 ", {"T1"}),
    "a refund that is lost": (r" done 1 1 0", " done 1 0 0", {"S4"}),
    "a refund out of nothing": (r" done 1 0 0", " done 1 1 0", {"S4"}),
    "a wrong place in the queue": (r"( wait 1 \d+) [1-9]\d*", r"\1 0", {"S6"}),
    "a notification for another caller": (r"(@\d+) (\d+) ", r"\1 9\2 ", {"S6"}),
    "a lease that is longer": (r"(@\d+ \d+ \d+ \d+ \d+) ([1-9]\d*)", r"\1 9\2", {"S2"}),
    "a fence that does not rise": (r"( grant 1 \d+) \d+", r"\1 -99999999999", {"S5"}),
    "a fence that rises too far": (r"( grant 1 \d+) \d+", r"\1 99999999999", {"S5"}),
    "a time that goes back": (r" ok (\d{9})", r" ok 100000000", {"T6"}),
    "an answer to another session": (r"^\w+", "somebody", {"S3"}),
    "an answer to another call": (r"^(\S+) (\d+)", r"\1 9\2", {"S3"}),
    "a session that is said to have lapsed": (r" ok .*", " lapsed", {"S8"}),
    "a call that is said to be late": (r" ok .*", " late", {"T10"}),
    "a queue that is said to be empty": (r"( ok \d+) \d+ \d ", r"\1 -1 0 ", {"L2"}),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_differs_from_the_models_is_rejected(lie: str) -> None:
    pattern, other, broken = LIES[lie]
    assert blamed(corrupted(replaced(pattern, other))) == broken


# The store's calls --------------------------------------------------------------------------------


def numbered(history: Iterable[Event]) -> History:
    """As if no commit had been left out, or put in."""
    seq, renumbered = 0, list[Event]()
    for event in history:
        if isinstance(event, Commit):
            seq += 1
            event = event._replace(seq=seq)
        renumbered.append(event)
    return renumbered


def grants(event: Event) -> bool:
    return isinstance(event, Commit) and " grant 1 0 " in event.reply


def places_of(history: History, wanted: Callable[[Event], bool]) -> list[int]:
    return [at for at, event in enumerate(history) if wanted(event)]


def test_a_call_that_is_run_twice_is_rejected() -> None:
    """T10: its second answer differs from the first."""

    def twice(history: History) -> History:
        at = places_of(history, grants)[3]
        again = history[at]
        assert isinstance(again, Commit)
        later = re.sub(r"ok (\d+)", lambda now: f"ok {int(now[1]) + 1}", again.reply)
        return numbered(
            [*history[: at + 1], again._replace(t=again.t + 1, reply=later), *history[at + 1 :]]
        )

    assert blamed(map(twice, simulated())) == {"T10"}


def test_a_call_that_arrives_twice_and_is_answered_from_memory_is_accepted() -> None:
    def twice(history: History) -> History:
        at = places_of(history, grants)[3]
        return numbered([*history[: at + 1], *history[at:]])

    assert all(judged(twice(history)).broken is None for history in simulated())


def test_a_commit_that_is_missing_is_rejected() -> None:
    def without(history: History) -> History:
        at = places_of(history, grants)[3]
        return [*history[:at], *history[at + 1 :]]

    assert blamed(map(without, simulated())) == {"order"}


def test_commits_in_another_order_are_rejected() -> None:
    """T6, S6: whether their numbers show it, or only their content."""

    def swapped(history: History) -> History:
        at = next(
            at
            for at in places_of(history, grants)[3:]
            if grants(history[at + 1]) and same_name(*history[at : at + 2])
        )
        return [*history[:at], history[at + 1], history[at], *history[at + 2 :]]

    swaps = [swapped(history) for history in simulated() if any_pair(history)]
    assert blamed(swaps) == {"order"}
    assert "none" not in blamed(map(numbered, swaps))


def same_name(one: Event, other: Event) -> bool:
    """Whether both are of one name, and each was run when it came: an answer from memory may stand
    anywhere.
    """
    both = (
        isinstance(one, Commit)
        and isinstance(other, Commit)
        and one.key == other.key
        and one.t != other.t
    )
    return both and all(
        isinstance(each, Commit) and f" ok {each.t} " in each.reply for each in (one, other)
    )


def any_pair(history: History) -> bool:
    places = [at for at in places_of(history, grants)[3:] if at + 1 < len(history)]
    return any(grants(history[at + 1]) and same_name(*history[at : at + 2]) for at in places)


def test_a_loss_of_state_without_an_event_is_rejected() -> None:
    """S8: the state had a session or a permit, and has it no longer."""

    def silent(history: History) -> History:
        return [event for event in history if isinstance(event, Commit | Invoked | Returned)]

    losses = [
        history for history in simulated() if any(isinstance(event, Lost) for event in history)
    ]
    assert any(judged(silent(history)).broken for history in losses)


# The clients' events ------------------------------------------------------------------------------


def test_an_answer_without_a_call_is_rejected() -> None:
    """S3: its call was never made."""

    def unasked(history: History) -> History:
        events = with_clients(history)
        heard = made_once(events) & {event.op for event in events if isinstance(event, Returned)}
        at = places_of(events, lambda event: isinstance(event, Invoked) and event.op in heard)[20]
        return [*events[:at], *events[at + 1 :]]

    assert blamed(map(unasked, simulated())) == {"S3"}


def test_an_answer_that_the_store_never_gave_is_rejected() -> None:
    """S3: another client got it, or it was made up on its way."""

    def crossed(history: History) -> History:
        events = with_clients(history)
        once = made_once(events)
        one, other = places_of(
            events, lambda event: isinstance(event, Returned) and event.op in once
        )[5:7]
        first, second = events[one], events[other]
        assert isinstance(first, Returned)
        assert isinstance(second, Returned)
        events[one] = first._replace(reply=second.reply)
        return events

    assert blamed(map(crossed, simulated())) == {"S3"}


def made_once(history: History) -> set[Op]:
    """The calls that were not sent again."""
    return {
        op
        for op, times in Counter(
            event.op for event in history if isinstance(event, Invoked)
        ).items()
        if times == 1
    }


def moved(history: History, heard: bool) -> History:
    """A call that was made only after a later one had been answered. With `heard` it was answered
    itself.
    """
    events = with_clients(history)
    returned = {event.op for event in events if isinstance(event, Returned)}
    wanted = {op for op in made_once(events) if (op in returned) == heard}
    at = places_of(events, lambda event: isinstance(event, Invoked) and event.op in wanted)[1]
    times = Counter(event.op for event in events if isinstance(event, Commit))
    later = (
        end
        for end in range(at + 3, len(events))
        if isinstance(events[end], Returned) and events[end][0] != events[at][0]
    )
    end = next(
        end for end in later if times[events[end][0]] == 1
    )  # one that is answered from memory may have been answered before
    own = [
        event
        for event in events[at + 1 : end + 1]
        if isinstance(event, Returned) and event.op == events[at][0]
    ]
    between = [event for event in events[at + 1 : end + 1] if event not in own]
    return [*events[:at], *between, events[at], *own, *events[end + 1 :]]


@pytest.mark.parametrize("heard", [True, False], ids=["answered", "of unknown outcome"])
def test_a_call_that_was_run_before_it_was_made_is_rejected(heard: bool) -> None:
    """Real time: an answered call was run before each call that was made after the answer. The
    store runs no call that is not made yet.
    """
    assert blamed(moved(history, heard) for history in simulated()) == {"order"}


def test_an_unknown_outcome_that_was_neither_run_nor_not_is_rejected() -> None:
    """The store has not run it, and the commits after it are as if the store had."""

    def neither(history: History) -> Iterable[History]:
        events = with_clients(history)
        for at, event in enumerate(events):
            if isinstance(event, Commit) and event.seq % UNHEARD == 0 and " wait 1 " in event.reply:
                yield [*numbered([*events[:at], *events[at + 1 :]])]
                return

    assert "none" not in blamed(false for history in simulated() for false in neither(history))


def test_an_unknown_outcome_that_was_not_run_is_accepted() -> None:
    """A call without an answer, and of which the store knows nothing, never arrived."""
    for history in simulated():
        verdict = judged([*with_clients(history), Invoked(("headgate:{name-0}", "somebody", 1))])
        assert verdict.broken is None
        assert verdict.unknown == verdict.run + 1


def test_a_history_is_the_same_after_it_was_kept_and_read() -> None:
    for event in with_clients(simulated()[0])[:50]:
        assert event_of(type(event).__name__, *event) == event
