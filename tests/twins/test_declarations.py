"""Which process may replace the limits of another, and when: the script's rule, with the moments of
a test's clock.

The stories also compare it with the model.
"""

from __future__ import annotations

import pytest

from tests.twins.kept import FORMER, HOLD
from tests.twins.model import DAY
from tests.twins.wire import (
    NOON,
    Acquire,
    Call,
    Declared,
    Drain,
    Pause,
    Reply,
    Request,
    Reset,
    Resume,
    Status,
    Update,
    Wire,
)

HOUR = 3_600_000_000


def limits(number: int) -> str:
    return f"slots permits {number} 30000000"


class Party:
    """A process that declares limits at a time."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.session, self.calls = wire, f"{wire.token}-{name}.1", 0

    def says(
        self,
        number: int,
        after: int = 0,
        declares: int = 1,
        requests: tuple[Request, ...] = (Status(),),
    ) -> Reply:
        self.calls += 1
        return self.wire.call(
            Call(limits(number), self.session, self.calls, requests, declares=declares),
            NOON + after,
        )

    def declares(self, number: int, after: int = 0) -> str:
        """The result: "ok", or "held" and for how long, and by which limits."""
        reply = self.says(number, after)
        return (
            reply.verdict
            if reply.verdict == "ok"
            else f"{reply.verdict} {reply.t} by {reply.program.split()[2]}"
        )

    def updates(self, number: int, after: int = 0, former: int | None = None) -> str:
        operations = () if former is None else (Update(limits(former)),)
        return self.says(number, after, declares=2, requests=operations).verdict


@pytest.fixture
def parties(wire: Wire) -> list[Party]:
    return [Party(wire, name) for name in "abc"]


# Declarations -------------------------------------------------------------------------------------


def test_the_last_declaration_wins_if_it_is_new(parties: list[Party]) -> None:
    a, b, c = parties
    assert [a.declares(1), b.declares(2), c.declares(3), a.declares(4)] == ["ok"] * 4


def test_limits_that_were_just_replaced_are_not_taken_again(parties: list[Party]) -> None:
    """Given A's limits and then B's, when A declares its own again, then B's hold until a minute
    after they came.
    """
    a, b, _ = parties
    a.declares(1)
    b.declares(2)

    assert a.declares(1, 10) == f"held {HOLD - 10} by 2"
    assert a.declares(1, HOLD - 1) == "held 1 by 2"
    assert a.declares(1, HOLD) == "ok"
    assert b.declares(2, HOLD + 10) == f"held {HOLD - 10} by 1"
    assert b.declares(1, HOLD + 20) == "ok"


def test_three_processes_that_disagree_settle_on_one_declaration(parties: list[Party]) -> None:
    """Given A, B and C, each with limits of its own, when they declare by turns for a minute, then
    they change twice in all.
    """
    said = [
        party.declares(number, turn)
        for turn in range(100)
        for number, party in enumerate(parties, 1)
    ]

    assert said[:3] == ["ok"] * 3
    assert {word for word in said[3:] if not word.startswith("held")} == {
        "ok"
    }  # C's own, which hold
    assert [number for number, word in enumerate(said) if word == "ok"] == [0, 1, *range(2, 300, 3)]


def test_a_process_may_replace_its_own_declaration(parties: list[Party]) -> None:
    a, b, _ = parties
    assert [a.declares(1), a.declares(2), a.declares(1), a.declares(2)] == ["ok"] * 4
    assert [b.declares(3), b.declares(4), b.declares(3)] == ["ok"] * 3
    assert a.declares(2) == f"held {HOLD} by 3"
    assert a.declares(1) == "ok"  # A itself gave it up


def test_a_process_may_replace_its_own_declaration_by_a_former_one(parties: list[Party]) -> None:
    """Given A's limits replaced by B's and those by C's, when C changes its mind, then it may as
    well take A's.
    """
    a, b, c = parties
    assert [a.declares(1), b.declares(2), c.declares(3)] == ["ok"] * 3

    assert c.declares(1) == "ok"
    assert b.declares(2) == f"held {HOLD} by 1"


def test_another_process_of_the_same_code_changes_nothing(parties: list[Party]) -> None:
    """Given A's limits replaced by B's, when B is started again and declares the same, then A's are
    held off for no longer.
    """
    a, b, c = parties
    a.declares(1)
    b.declares(2)

    assert c.declares(2, 50) == "ok"
    assert a.declares(1, HOLD) == "ok"


def test_a_clock_that_steps_back_only_lengthens_the_hold(parties: list[Party]) -> None:
    """T6: time stands still until the step is made up for."""
    a, b, _ = parties
    a.declares(1, HOUR)
    b.declares(2, HOUR)

    assert a.declares(1, 0) == f"held {HOLD} by 2"
    assert a.declares(1, HOUR + HOLD) == "ok"


def test_a_name_that_was_forgotten_takes_the_first_declaration(
    wire: Wire, parties: list[Party]
) -> None:
    a, b, _ = parties
    a.declares(1)
    b.declares(2)
    wire.lose("")

    assert a.declares(1, 10) == "ok"
    assert b.declares(2, 20) == "ok"


def test_a_refused_declaration_writes_nothing(wire: Wire, parties: list[Party]) -> None:
    """T8: not even the call's number; a client that just knows other limits learns them in the same
    way.
    """
    a, b, _ = parties
    a.declares(1)
    b.declares(2)
    before = wire.client.hgetall(wire.key), wire.lives().keys()

    assert a.says(1, 10, requests=(Acquire(1),)).verdict == "held"
    assert a.says(1, 10, declares=0, requests=(Acquire(1),)).verdict == "stale"
    assert (wire.client.hgetall(wire.key), wire.lives().keys()) == before


def kept(wire: Wire) -> list[int]:
    """The limits that were replaced, as far as they are remembered."""
    return [int(line.split()[4]) for line in wire.state().splitlines()[2:]]


def test_few_former_declarations_are_remembered_and_not_for_long(
    wire: Wire, parties: list[Party]
) -> None:
    """S9: of any declarations, at most eight are kept, and none that is too old to matter."""
    a, _, _ = parties
    for number in range(1, 21):
        a.declares(number, number)
    assert kept(wire) == list(range(20 - FORMER, 20))

    a.declares(100, HOLD + 17)
    assert kept(wire) == [17, 18, 19, 20]


def test_more_declarations_than_are_remembered_do_not_make_limits_flap(wire: Wire) -> None:
    """Given twelve that disagree, when they declare by turns, then the first nine are taken, and
    for a minute no other one.
    """
    parties = [Party(wire, f"p{number}") for number in range(1, 13)]

    said = [
        party.declares(number, turn)
        for turn in range(20)
        for number, party in enumerate(parties, 1)
    ]

    assert [number for number, word in enumerate(said, 1) if word == "ok"] == [
        *range(1, 9),
        *range(9, 240, 12),
    ]
    assert said[9:12] == [f"held {HOLD} by 9"] * 3
    assert parties[11].declares(12, HOLD) == "ok"


# Updates ------------------------------------------------------------------------------------------


def test_an_update_overrules_all_earlier_declarations(parties: list[Party]) -> None:
    """Given an update, when a process declares the overruled limits, then it holds, after hours
    too; new limits replace it.
    """
    a, b, c = parties
    a.declares(1)
    b.declares(2)

    assert c.updates(1, 5) == "ok"
    for after in (10, HOLD, HOUR):
        assert b.declares(2, after) == "held -1 by 1"
    assert c.updates(9, HOUR, former=7) == "ok"
    assert [party.declares(number, 2 * HOUR) for party in parties for number in (1, 2, 7)] == [
        "held -1 by 9"
    ] * 9

    assert b.declares(3, 2 * HOUR) == "ok"
    assert c.declares(9, 2 * HOUR + 1) == f"held {HOLD - 1} by 3"
    assert a.declares(1, 2 * HOUR + 1) == "ok"


def test_an_update_is_always_taken(parties: list[Party]) -> None:
    a, b, _ = parties
    a.declares(1)

    assert [b.updates(2), a.updates(1), b.updates(2), a.updates(1)] == ["ok"] * 4


def test_an_update_to_the_present_limits_overrules_the_former_ones(parties: list[Party]) -> None:
    """Given limits that were declared last, when they are made an update, then the replaced ones
    are overruled for good.
    """
    a, b, _ = parties
    a.declares(1)
    b.declares(2)
    b.updates(2)

    assert a.declares(1, HOLD) == "held -1 by 2"


def test_updates_do_not_make_the_script_forget_declarations(
    wire: Wire, parties: list[Party]
) -> None:
    """Given a program, and a tool of another mind that updates again and again, then nothing that
    was declared comes back.
    """
    worker, tool, late = parties
    worker.declares(1)
    for turn in range(30):
        assert tool.updates(100 + turn, turn, former=7) == "ok"

    assert [late.declares(number, HOUR) for number in (1, 7, 128)] == ["held -1 by 129"] * 3
    assert len(kept(wire)) == FORMER
    assert late.declares(2, HOUR) == "ok"  # new code
    assert tool.declares(129, HOUR + 1) == f"held {HOLD - 1} by 2"


@pytest.mark.parametrize("again", ["an update", "another declaration"])
def test_limits_that_are_declared_and_updated_count_as_declared(
    parties: list[Party], again: str
) -> None:
    """Given limits that were declared before an update has set them, or after, then others do not
    push them out.
    """
    worker, tool, late = parties
    worker.declares(1 if again == "an update" else 2)
    tool.updates(50)
    tool.updates(1)
    if again != "an update":
        late.declares(1)

    for turn in range(30):
        tool.updates(100 + turn, turn)

    assert worker.declares(1, HOUR) == "held -1 by 129"


def test_remembered_declarations_stay_remembered_under_updates(wire: Wire) -> None:
    """S9: eight that disagreed and a ninth that holds by an update: all are overruled, however
    often it is set.
    """
    parties = [Party(wire, f"p{number}") for number in range(1, FORMER + 1)]
    for number, party in enumerate(parties, 1):
        party.declares(number, number)

    for turn in range(5):
        parties[0].updates(100 + turn, 10 + turn)

    assert [party.declares(number, HOUR) for number, party in enumerate(parties, 1)] == [
        "held -1 by 104"
    ] * FORMER
    assert len(kept(wire)) == FORMER + 1


def test_an_update_by_an_attached_limiter_overrules_the_present_limits_alone(
    wire: Wire, parties: list[Party]
) -> None:
    """Given limits that one declared, when an attached limiter updates them, then one is kept."""
    a, b, _ = parties
    a.declares(1)

    b.says(2, declares=2, requests=(Update("-"),))

    assert kept(wire) == [1]


@pytest.mark.parametrize("declared", [True, False])
def test_an_update_is_remembered_for_a_day_at_least(
    wire: Wire, parties: list[Party], declared: bool
) -> None:
    """S8, T12: given a name that is used or new, when it is updated, then no key of it goes before
    the day is over.
    """
    a, _, _ = parties
    if declared:
        a.declares(1)

    a.updates(2, 10, former=1)

    assert min(wire.lives().values()) > DAY // 1_000 - 10_000
    assert a.declares(1, 20) == "held -1 by 2"


# Offers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "declares"),
    [(Declared(), 3), (Status(), 3), (Pause(1), 4), (Drain("permits", 0, 0, 0), 4)],
)
def test_callers_without_limits_learn_the_offer_of_a_name_that_was_only_paused(
    wire: Wire, asked: Request, declares: int
) -> None:
    """T8: given a pause before any declaration, when an attached limiter asks, nothing changes."""
    wire.call(Call(limits(1), f"{wire.token}-1.1", 1, (Pause(HOUR),), declares=4), NOON)
    before = wire.client.hgetall(wire.key), wire.lives().keys()

    attached = Call("", f"{wire.token}-2.1", 1, (asked,), declares=declares)
    assert wire.call(attached, NOON).verdict == "offer"
    assert (wire.client.hgetall(wire.key), wire.lives().keys()) == before


@pytest.mark.parametrize("asked", [Declared(), Status(), Resume(), Reset()])
def test_a_process_that_declares_nothing_leaves_the_offer_of_another_as_it_is(
    wire: Wire, asked: Request
) -> None:
    """T9: given a drain before any declaration, when a limiter with other limits looks, nothing
    changes. It goes by the limits of the offer.
    """
    drain = Drain("permits", 0, 0, 0)
    wire.call(Call(limits(1), f"{wire.token}-1.1", 1, (drain,), declares=4), NOON)
    before = wire.client.hgetall(wire.key), wire.lives().keys()

    other = Call(limits(2), f"{wire.token}-2.1", 1, (asked,), declares=3)
    reply = wire.call(other, NOON)

    assert (reply.verdict, reply.program) == ("offer", limits(1))
    assert (wire.client.hgetall(wire.key), wire.lives().keys()) == before
