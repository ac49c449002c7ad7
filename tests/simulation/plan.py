"""The events of one run, written down before it begins: by a seed.

This module makes the choices: the processes, the limits, the network, the acts of each caller and
the moments of the faults. A run that follows a shorter list of steps is as good a run, so a failing
one can be shrunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.simulation.loop import SECOND
from tests.simulation.network import Weather

WAYS = ("enter", "enter", "block", "block", "block", "hand", "told", "try", "try", "status", "drop")
ENTERING = ("enter",) * 8 + ("block", "told", "drop")  # as many: local hand-offs
FAULTS = (
    *("crash", "stop", "cut", "hold"),  # of a process
    *(
        "freeze",
        "empty",
        "old",
        "failover",
        "flush",
        "delete",
        "forward",
        "back",
        "full",
        "replica",
    ),  # of the server
    "update",
)
# Calls of a process about the service. They are drawn apart from the others, so that seeds stay the
# same.
SAID = ("pause", "drain")
ENDS = {"pause": "resume", "drain": "reset"}  # the calls that undo them: drawn apart, too
OPEN: tuple[
    str, ...
] = ()  # kinds of faults that CI leaves out, while a defect that they show stands open


class Ask(NamedTuple):
    """A caller of process `who` asks for a permit of `name` at a moment, keeps it for `keep`, and
    perhaps is cancelled.
    """

    at: int
    who: int
    name: int
    way: str
    cost: int
    keep: int
    max_sleep: float | None = None
    cancel: tuple[str, int] | None = (
        None  # in which way, at which suspension; or "after", so many microseconds
    )
    actual: int | None = None  # the amount that it settles for


class Fault(NamedTuple):
    """A fault of process `who`, or of the server: for `span` microseconds, or by so much."""

    at: int
    kind: str
    who: int
    span: int


Step = Ask | Fault


class Plan(NamedTuple):
    """All of one run."""

    seed: int
    processes: int
    limits: tuple[tuple[Limit, ...], ...]  # by name
    waiters: int | None  # max_waiters of them all
    weather: Weather
    functions: bool  # whether the server has them
    deaf: float  # chance that a notification is lost
    length: int  # microseconds after which all faults are over
    steps: tuple[Step, ...]
    cluster: bool = False  # whether the names are at two servers of one

    @property
    def longest_lease(self) -> float:
        return max(
            (
                limit.lease
                for limits in self.limits
                for limit in limits
                if isinstance(limit, Concurrency)
            ),
            default=0.0,
        )


def planned(seed: int, without: Sequence[str] = OPEN) -> Plan:
    """The run of a seed, without some kinds of faults."""
    chance = Random(seed)
    processes = chance.choice((2, 3, 4, 6))
    names = chance.choice((1, 1, 2, 3))
    limits = tuple(
        rarer(some_limits(chance), Random(f"limits of {seed}/{name}")) for name in range(names)
    )
    length = chance.choice((20, 40, 80, 160)) * SECOND
    faults = [] if chance.random() < 0.05 else [kind for kind in FAULTS if chance.random() < 0.35]
    lease = max(
        (limit.lease for its in limits for limit in its if isinstance(limit, Concurrency)),
        default=5.0,
    )
    befalls = [
        some_fault(chance, faults, processes, length, lease)
        for _ in range(chance.randrange(1, 14) if faults else 0)
    ]
    befalls += some_words(Random(f"said in {seed}"), processes, length)
    befalls += some_ends(Random(f"undone in {seed}"), befalls)
    moves = some_moves(Random(f"servers of {seed}"), length)
    befalls += (
        some_silences(Random(f"silent servers of {seed}"), names, length)
        if moves is not None
        else []
    )
    befalls += [*(moves or ()), *some_forks(Random(f"forks of {seed}"), processes, length)]
    befalls += some_restores(Random(f"restores of {seed}"), names, length)
    steps: list[Step] = [fault for fault in befalls if fault.kind not in without]
    busy = chance.choice((0.2, 0.5, 1.0, 3.0))  # callers a second
    count = min(200, max(10, int(busy * length / SECOND)))
    cancels = chance.choice((0.0, 0.1, 0.4))
    ways = ENTERING if Random(f"ways of {seed}").random() < 0.3 else WAYS
    steps += [
        some_ask(chance, ways, processes, names, limits, length, cancels) for _ in range(count)
    ]
    weather = some_weather(chance)
    if Random(f"threads of {seed}").random() < 0.15:
        steps = [
            in_a_thread(step) if isinstance(step, Ask) and step.way in ("hand", "try") else step
            for step in steps
        ]
    return Plan(
        seed,
        processes,
        limits,
        chance.choice((None, None, None, 3)),
        weather,
        chance.random() > 0.05,
        chance.choice((0.0, 0.0, 0.2, 1.0)),
        length,
        tuple(sorted(steps, key=lambda step: step.at)),
        moves is not None,
    )


def some_limits(chance: Random) -> tuple[Limit, ...]:
    lease = chance.choice((1.0, 3.0, 8.0))
    slots = Concurrency(chance.choice((1, 1, 2, 4)), lease=lease)
    rate = Rate(
        chance.choice((1, 3, 10)), per=chance.choice((1, 3)), capacity=chance.choice((1, 4, 12))
    )
    window = Window(chance.choice((1, 4, 9)), per=chance.choice((1, 4)))
    tokens = Rate(chance.choice((5, 20)), per=chance.choice((1, 2)), capacity=20, unit="tokens")
    heavy = Concurrency(6, lease=lease, unit="mb")
    forms: tuple[tuple[Limit, ...], ...] = (
        (slots,),
        (slots,),
        (rate,),
        (window,),
        (slots, rate),
        (slots, window),
        (slots, tokens),
        (rate, window),
        (heavy,),
        (heavy, rate),
    )
    return chance.choice(forms)


def rarer(limits: tuple[Limit, ...], chance: Random) -> tuple[Limit, ...]:
    """Mostly these; or others, with more kinds at once."""
    if chance.random() > 0.25:
        return limits
    slots = Concurrency(chance.choice((1, 3)), lease=chance.choice((1.0, 5.0)))
    heavy = Concurrency(6, lease=slots.lease, unit="mb")
    quota = Quota(
        chance.choice((2, 6)),
        per=chance.choice((1, 5)),
        anchor=chance.choice((None, 0.3)),
        slack=chance.choice((0, 0.2)),
    )
    stairs = Rate(chance.choice((1, 4)), per=chance.choice((0.5, 2)), capacity=5, steps=True)
    empty = Rate(3, per=1, capacity=6, initial=0, slack=0.05)
    window = Window(chance.choice((2, 5)), per=1, slack=0.1)
    tokens = Rate(10, per=1, capacity=15, unit="tokens")
    forms: tuple[tuple[Limit, ...], ...] = (
        (quota,),
        (stairs,),
        (empty,),
        (slots, heavy),
        (slots, quota),
        (stairs, window),
        (slots, tokens, quota),
        (heavy, empty, window, Window(3 * window.amount, per=4)),
    )
    return chance.choice(forms)


def changed(limits: tuple[Limit, ...], chance: Random) -> tuple[Limit, ...]:
    """The same kinds of limits, with other numbers."""
    return tuple(another(limit, chance) for limit in limits)


def another(limit: Limit, chance: Random) -> Limit:
    if isinstance(limit, Concurrency):
        return replace(limit, capacity=max(1, limit.capacity + chance.choice((-2, -1, 1, 3))))
    if isinstance(limit, Rate):
        return replace(
            limit,
            amount=limit.amount + chance.choice((0, 1, 5)),
            capacity=limit.burst + chance.choice((0, 2)),
        )
    return replace(limit, amount=limit.amount + chance.choice((1, 3)))


def rates_of(limits: tuple[Limit, ...]) -> list[Rate | Window | Quota]:
    """The limits that count over time."""
    return [limit for limit in limits if not isinstance(limit, Concurrency)]


def unit_of(limits: tuple[Limit, ...]) -> tuple[str, int]:
    """The unit of the costs, and the highest possible cost."""
    for unit in ("tokens", "mb"):
        for limit in limits:
            if limit.unit == unit:
                return unit, 5
    most = [limit.burst if isinstance(limit, Rate) else limit.amount for limit in rates_of(limits)]
    return ("requests", min(most)) if most else ("permits", 1)


def some_ask(
    chance: Random,
    ways: Sequence[str],
    processes: int,
    names: int,
    limits: tuple[tuple[Limit, ...], ...],
    length: int,
    cancels: float,
) -> Ask:
    name = chance.randrange(names)
    _, most = unit_of(limits[name])
    cancel = None
    if chance.random() < cancels:
        way = chance.choice(("asked", "woken", "after", "after"))
        cancel = way, chance.randrange(4) if way != "after" else int(10 ** chance.uniform(1, 6.7))
    keep = (
        int(10 ** chance.uniform(3, 6.5))
        if chance.random() < 0.9
        else chance.randrange(25) * SECOND
    )
    cost = chance.randint(1, min(most, 5)) if chance.random() < 0.5 else 1
    return Ask(
        at=chance.randrange(length)
        if chance.random() < 0.7
        else chance.randrange(8) * length // 8,  # some come together
        who=chance.randrange(processes),
        name=name,
        way=chance.choice(ways),
        cost=cost,
        keep=keep,
        max_sleep=chance.choice((None, None, None, 0.05, 0.4, 2.0, 20.0)),
        cancel=cancel,
        actual=chance.randrange(2 * cost + 1) if chance.random() < 0.2 else None,
    )


def some_fault(
    chance: Random, kinds: list[str], processes: int, length: int, lease: float
) -> Fault:
    kind = chance.choice(kinds)
    span = (
        int(10 ** chance.uniform(4, 7))
        if chance.random() < 0.7
        else int(lease * SECOND * chance.uniform(0.9, 2.2))
    )
    if kind in ("forward", "back"):
        span = int(10 ** chance.uniform(4, 9 if kind == "forward" else 7.3))
    return Fault(chance.randrange(length), kind, chance.randrange(processes), span)


def some_words(chance: Random, processes: int, length: int) -> list[Fault]:
    """The words of services to a client that has asked too much: all shall wait, or less is left
    than they know. Mostly they come after many acquires, and often: one pause in many hits a caller
    that sleeps until its reservation.
    """
    kinds = [kind for kind in SAID if chance.random() < 0.25]
    many = {"pause": chance.randrange(1, 40), "drain": chance.randrange(1, 4)}
    spans = [(kind, int(10 ** chance.uniform(4, 6.5))) for kind in kinds for _ in range(many[kind])]
    moments = [chance.randrange(8) * length // 8 + int(10 ** chance.uniform(4, 6.7)) for _ in spans]
    return [
        Fault(at, kind, chance.randrange(processes), span)
        for at, (kind, span) in zip(moments, spans, strict=True)
    ]


def some_ends(chance: Random, befalls: list[Fault]) -> list[Fault]:
    """In some runs pauses end early, and budgets that a service has reported spent are reset: soon
    after that, or later.
    """
    if chance.random() > 0.2:
        return []
    said = [fault for fault in befalls if fault.kind in ENDS and chance.random() < 0.5]
    return [
        fault._replace(at=fault.at + int(10 ** chance.uniform(2, 6)), kind=ENDS[fault.kind])
        for fault in said
    ]


def some_moves(chance: Random, length: int) -> list[Fault] | None:
    """Slots that move from one server of a Cluster to the other; None: there is no Cluster."""
    if chance.random() > 0.15:
        return None
    moments = [chance.randrange(length) for _ in range(chance.randrange(8))]
    return [Fault(at, "move", 0, int(10 ** chance.uniform(3, 6.8))) for at in moments]


def some_silences(chance: Random, names: int, length: int) -> list[Fault]:
    """One server of a Cluster stands still: the one that keeps name `who`."""
    if chance.random() > 0.3:
        return []
    spans = [int(10 ** chance.uniform(4, 7.2)) for _ in range(chance.randrange(1, 4))]
    return [
        Fault(chance.randrange(length), "silence", chance.randrange(names), span) for span in spans
    ]


def some_forks(chance: Random, processes: int, length: int) -> list[Fault]:
    if chance.random() > 0.15:
        return []
    return [
        Fault(chance.randrange(length), "fork", chance.randrange(processes), 0)
        for _ in range(chance.randrange(1, 4))
    ]


def some_restores(chance: Random, names: int, length: int) -> list[Fault]:
    """The state of a name, here `who`, goes back by `span`, and all connections break."""
    if chance.random() > 0.25:
        return []
    spans = [int(10 ** chance.uniform(5, 6.9)) for _ in range(chance.randrange(1, 4))]
    return [
        Fault(chance.randrange(length), "restore", chance.randrange(names), span) for span in spans
    ]


def in_a_thread(ask: Ask) -> Ask:
    """Threads are not cancelled."""
    return ask._replace(way="thread", cancel=None)


def some_weather(chance: Random) -> Weather:
    return Weather(
        delay=chance.choice((80, 300, 2000, 40_000)),
        spikes=chance.choice((0.0, 0.02, 0.2)),
        spike=chance.choice((50_000, 400_000, 3 * SECOND)),
        torn=chance.choice((0.0, 0.1, 0.5)),
        late=chance.choice((0.0, 0.5, 1.0)),
        again=chance.choice((0.0, 0.02, 0.2)),
    )
