"""A fleet at work: processes with real limiters, the callers in them, and the faults that they
meet, as a plan says.

This module has one run from its first step to the rest after it. The witness and the checks at rest
decide whether it went well. headgate's own clock, chance and identities are bent to the world for
as long as it runs.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, NamedTuple, NoReturn, cast
from weakref import ref

from redis.crc import key_slot

from headgate import Limiter
from headgate.errors import HeadgateError, StoreError
from headgate.internals import queue_of, store_of
from headgate.limits import Limit
from headgate.permit import Issuer, Permit
from headgate.stores import registry
from headgate.stores.redis import permit_issuer, routing
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.session import delivery, loop_session
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.store import RedisStore, _by_identity
from headgate.stores.redis.transport import client
from headgate.stores.redis.transport.portal import NoPortalError
from tests.history.checker import judged
from tests.history.events import History
from tests.history.simulated import Recorder
from tests.simulation.bent import LIGHTER, bent, replaced
from tests.simulation.callers import Callers
from tests.simulation.checks import SESSION_LIFE, Broken, Witness, members_of
from tests.simulation.cluster import PORTS, Slots
from tests.simulation.forks import forked, permit_with
from tests.simulation.loop import SECOND, ProcessLoop, World, start
from tests.simulation.machine import the_lua
from tests.simulation.network import CALM, LATEST, Network
from tests.simulation.plan import ENDS, SAID, Ask, Fault, Plan, changed, rates_of
from tests.simulation.restores import Restores
from tests.simulation.server import Server, is_of_index
from tests.simulation.threads import threaded
from tests.simulation.watching import watched
from tests.stepping import Stepped
from tests.virtual import BEGINNING

REST = 10 * SECOND  # after which only work that needs time is left
# After these faults the server may not know a call: it has turned the call away, or it has lost or
# forgotten its session. Then it runs a copy of the call that the network kept (docs/promises.md). A
# place that this copy takes in the queue is lost when its session has been silent.
FORGETS = ("full", "empty", "old", "failover", "delete", "restore", "forward")
LATE_COPIES = LATEST + SESSION_LIFE + SECOND
AGES = {
    "old": 40 * SECOND,
    "failover": 2 * SECOND,
}  # of the copy that a server starts from, at most
OWN_TASKS = "headgate-"  # the tasks that a client always has


class Outcome(NamedTuple):
    """The outcome of a run."""

    broken: list[Broken]
    simulated: int  # microseconds
    acted: int
    commits: int
    trace: list[str]
    history: History


def run(plan: Plan, replays: bool = True) -> Outcome:
    """Run all of `plan`, the same each time.

    With `replays`, the history of the run (tests/history) may show faults that no other check has
    noticed.
    """
    with quiet(), replaced(LIGHTER):
        outcome = _run(plan)
        while gc.collect():
            pass  # a process that dies may send a last call, and is dead in the next round only
        the_lua().collect()
    if replays and not outcome.broken and (found := judged(outcome.history).broken):
        outcome.broken.append(
            Broken(f"{found.invariant} of the history", found.story, outcome.simulated)
        )
    return outcome


def _run(plan: Plan) -> Outcome:
    fleet = Fleet(plan)
    with replaced(bent(fleet.world) + watched(fleet) + threaded(fleet.world, fleet.network)):
        fleet.live()
        witness = fleet.witness
        outcome = Outcome(
            witness.broken,
            fleet.world.now,
            len(witness.acted),
            witness.commits,
            fleet.trace,
            fleet.recorder.history,
        )
        fleet.end()
    return outcome


@contextmanager
def quiet() -> Iterator[None]:
    """Garbage is collected only when the run says so. The garbage of dead processes logs no
    complaint.

    Its finalizers do nothing: this process's own portal would send their releases to a server that
    is not there, and keep them for ever.
    """
    collecting, hook = gc.isenabled(), sys.unraisablehook
    frozen = gc.get_freeze_count() > 0  # in pytest, for all of its run
    if not frozen:
        gc.freeze()  # all earlier objects need not be looked at
    gc.disable()
    sys.unraisablehook = lambda what: None
    try:
        with warnings.catch_warnings(), replaced(NO_PORTAL):
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        if not frozen:
            gc.unfreeze()
        if collecting:
            gc.enable()


def no_portal() -> NoReturn:
    raise NoPortalError("a simulated process has none")


NO_PORTAL = [
    (module, function, instead)
    for module in (delivery, permit_issuer, routing, loop_session, client)
    for function, instead in (("portal", no_portal), ("portal_loop", lambda: None))
    if hasattr(module, function)
]


class Process:
    """One process of the fleet, from its start to its crash."""

    def __init__(self, fleet: Fleet, number: int, life: int | str) -> None:
        self.name = f"process-{number}-{life}"
        self.loop = ProcessLoop(fleet.world, self.name, fleet.network.connect)  # type: ignore[abstract]  # of what is asked of it
        self.url = fleet.url_of(self.name)
        self.tasks: list[asyncio.Task[Any]] = []
        self.stopped_at: list[int] = []
        self.children: list[Process] = []
        self.permits: list[ref[Permit]] = []  # that it was granted
        waiters = fleet.plan.waiters
        self.limiters = [
            Limiter(f"name-{index}", *limits, store=self.url, max_waiters=waiters)
            for index, limits in enumerate(fleet.plan.limits)
        ]

    @property
    def store(self) -> RedisStore:
        return cast("RedisStore", store_of(self.limiters[0]))

    def fork(self, fleet: Fleet, number: int) -> Process:
        """A child, which has copies of all objects here, and releases permits that are not its
        own.
        """
        child = Process(fleet, number, f"{fleet.world.now}-child")
        child.limiters = forked(self.store, self.limiters)
        still = ProcessLoop(fleet.world, f"{child.name} copy", fleet.network.connect)  # type: ignore[abstract]  # as above
        still.stop()
        lines = {
            queue_of(limiter).name: cast("RedisQueue", queue_of(limiter))
            for limiter in child.limiters
        }
        permits = [
            permit for known in self.permits if (permit := known()) is not None and permit.held
        ]
        copies = [permit_with(permit, lines[queue_of(permit).name], still) for permit in permits]
        child.loop.do(lambda: [permit.release() for permit in copies])
        self.children.append(child)
        return child


class Fleet:
    """All of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(str(plan.seed))
        self.server = Server(self._clock, plan.functions)
        if plan.cluster:
            self.server.slots = Slots(lambda: self.server.look().names())
        self.network = Network(self.world, self.server, plan.weather)
        self.witness = Witness(self.world, self.server, plan.longest_lease)
        self.recorder = Recorder(self.server, self.witness.ran, self.witness.expired)
        self.server.published = self._published
        self.server.failed = partial(self.witness.blame, "S7")
        self.witness.calm_after = self._calm_after
        self._callers = Callers(plan, self.witness, self._calm_after)
        self.trace: list[str] = []
        self._ahead = 0  # of the server's clock
        self._deaf = self.world.chance("announcements")
        self._lives = [0] * plan.processes
        self.processes: list[Process | None] = [
            Process(self, number, 0) for number in range(plan.processes)
        ]
        self._everybody: list[Process] = [process for process in self.processes if process]
        self._trouble_until = 0
        self.befallen: list[Fault] = []
        self._was_calm = True  # before the last of them
        self._restores = Restores(self)
        self._refused_until = 0  # callers may be: they wait for a slot that moves
        self._copies: dict[Fault, tuple[bytes, Any, Fault]] = {}

    def url_of(self, process: str) -> str:
        """Each process has a store of its own, as on another machine."""
        return (
            f"redis+cluster://{','.join(f'{process}:{port}' for port in PORTS)}"
            if self.plan.cluster
            else f"redis://{process}"
        )

    def _clock(self) -> int:
        return BEGINNING + self.world.now + self._ahead

    def _published(self, channel: bytes, message: bytes) -> bool:
        self.witness.published(channel, message)
        return self._deaf.random() >= self.plan.deaf

    def note(self, what: object) -> None:
        self.trace.append(f"{self.world.now / SECOND:12.6f}  {what}")

    # One run --------------------------------------------------------------------------------------

    def live(self) -> None:
        for step in self.plan.steps:
            if isinstance(step, Ask):
                self.world.at(step.at, partial(self._ask, step))
            else:
                if step.kind == "restore":
                    self.world.at(
                        max(0, step.at - step.span), partial(self._restores.take_copy, step)
                    )
                if step.kind in AGES:
                    self.world.at(
                        step.at - step.span % AGES[step.kind], partial(self._take_copy, step)
                    )
                self.world.at(step.at, partial(self._befall, step))
        self.world.run(self.plan.length, self._is_broken)
        if not self._is_broken():
            self._heal()
            self._come_to_rest()
        if not self._is_broken():
            self._look_around()

    def _is_broken(self) -> bool:
        if self.world.complaints:
            for complaint in self.world.complaints:
                self.witness.blame("F7", complaint)
            self.world.complaints.clear()
        return bool(self.witness.broken)

    def end(self) -> None:
        """Nothing more happens, and no process calls any more.

        An object that still holds the world, like a thread with its clock, holds no fleet.
        """
        for process in self._everybody:
            process.loop.crash()
            # Finalizers keep the sockets and clients of a store, and with them the loop.
            process.loop.forget()
            process.store._clients.clear()
            _by_identity.pop(
                process.store.topology.identity, None
            )  # another run has processes of the same names
            registry.by_url.pop(process.url, None)
        self.world.end()
        vars(self).clear()

    # Faults ---------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        self.note(fault)
        self.befallen.append(fault)
        if fault.kind not in (*SAID, *ENDS.values(), "fork"):
            self._was_calm = self.world.now >= self._trouble_until
            lasts = (
                0
                if fault.kind in ("forward", "update", "flush", "delete", "restore")
                else fault.span
            )
            self._trouble_until = max(self._trouble_until, self.world.now + lasts + 12 * SECOND)
            self._refused_until = (
                self._refused_until if fault.kind == "move" else self._trouble_until
            )
        getattr(self, f"_{fault.kind}")(fault)

    def _crash(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        if process is None:
            return
        process.loop.crash()
        self.processes[fault.who] = None
        for cable in self.network.cables_of(process.name):
            cable.cut()
        self.world.after(fault.span, lambda: self._start_again(fault.who))

    def _start_again(self, number: int) -> None:
        self._lives[number] += 1
        process = self.processes[number] = Process(self, number, self._lives[number])
        self._everybody.append(process)

    def _stop(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        if process is not None:
            process.loop.stop()
            process.stopped_at.append(self.world.now)
            self.world.after(fault.span, process.loop.resume)

    def _cut(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        for cable in self.network.cables_of(process.name) if process else []:
            cable.cut()

    def _hold(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        if process is not None:
            self.network.hold(process.name, True)
            self.world.after(fault.span, lambda: self.network.hold(process.name, False))

    def _freeze(self, fault: Fault) -> None:
        self.network.frozen = True
        self.world.after(fault.span, self.network.thaw)

    def _silence(self, fault: Fault) -> None:
        """The server of a Cluster that keeps name `who` stands still, and the other one goes on."""
        if self.server.slots is not None:
            port = self.server.slots.owner(key_slot(f"headgate:{{name-{fault.who}}}".encode()))
            self.network.silent.add(port)
            self.world.after(fault.span, partial(self.network.end_silence, port))

    def _flush(self, fault: Fault) -> None:
        self.server.forget_scripts()

    def _delete(self, fault: Fault) -> None:
        """Delete one key of a name, as an operator or eviction does it."""
        names = [key for key in self.server.look().names() if not is_of_index(key)]
        if names:
            key = self.world.chance("delete", fault).choice(names)
            self.server.keys.delete(key)
            self.recorder.lost(key)
            self.witness.lost_key()

    def _forward(self, fault: Fault) -> None:
        self._ahead += fault.span
        self.witness.stepped(fault.span)

    def _back(self, fault: Fault) -> None:
        self._ahead -= fault.span
        self.witness.stepped_back(fault.span)

    def _full(self, fault: Fault) -> None:
        self.server.full = True
        self.world.after(fault.span, lambda: setattr(self.server, "full", False))

    def _replica(self, fault: Fault) -> None:
        self.server.replica = True
        self.world.after(fault.span, lambda: setattr(self.server, "replica", False))

    def _update(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        if process is not None:
            chance = self.world.chance("update", fault)
            index = chance.randrange(len(process.limiters))
            limits = changed(self.plan.limits[index], chance)
            process.loop.do(process.limiters[index].update, *limits)

    def _pause(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        rated = [index for index, limits in enumerate(self.plan.limits) if rates_of(limits)]
        if process is not None:
            index = self.world.chance("pause", fault).choice(rated or range(len(self.plan.limits)))
            process.loop.do(process.limiters[index].pause, fault.span / SECOND)

    def _resume(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        for limiter in process.limiters if process is not None else ():
            process.loop.do(limiter.resume)

    def _reset(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        for limiter in process.limiters if process is not None else ():
            process.loop.do(limiter.reset)

    def _drain(self, fault: Fault) -> None:
        """The service knows of other users, which have used most of the budget of a rate."""
        process = self.processes[fault.who]
        if process is not None:
            chance = self.world.chance("drain", fault)
            index = chance.randrange(len(process.limiters))
            for unit in sorted({limit.unit for limit in rates_of(self.plan.limits[index])}):
                process.loop.do(
                    partial(process.limiters[index].drain, **{unit: chance.randrange(3)})
                )

    def _fork(self, fault: Fault) -> None:
        process = self.processes[fault.who]
        if process is not None:
            self._everybody.append(process.fork(self, fault.who))

    def _move(self, fault: Fault) -> None:
        """Move the slot of a name to the other server of a Cluster: its keys one by one."""
        slots, chance = self.server.slots, self.world.chance("move", fault)
        key = f"headgate:{{name-{chance.randrange(len(self.plan.limits))}}}".encode()
        if slots is not None and slots.begin(slot := key_slot(key)):
            for part in (b"", b":who"):
                self.world.after(chance.randrange(fault.span), partial(slots.move, key + part))
            self.world.after(fault.span, partial(self.server.end_move, slot))

    def _empty(self, fault: Fault) -> None:
        self._lose(fault.span, None, False)

    def _old(self, fault: Fault) -> None:
        self._lose(fault.span, self._copies.get(fault), False)

    def _failover(self, fault: Fault) -> None:
        """The last writes are not there; the loaded scripts are."""
        self._lose(min(fault.span, 3 * SECOND), self._copies.get(fault), True)

    def _take_copy(self, fault: Fault) -> None:
        self._copies[fault] = self.server.look().copy(), self.witness.copy(), fault
        self.recorder.copied(fault)

    def _restore(self, fault: Fault) -> None:
        if not self.network.down:
            self._restores.restore(fault, self._was_calm)

    def slow(self) -> int:
        """Microseconds after which all that is under way has arrived, however slow the network
        is.
        """
        weather = self.network.weather
        return 20 * weather.delay + (6 * weather.spike if weather.spikes else 0) + SECOND

    def living_links(self) -> set[str]:
        return {link.id for process in self._living() for link in process.store._clients.values()}

    def _lose(self, span: int, copy: Any, keeps_scripts: bool) -> None:
        if self.network.down:
            return
        self.network.down, self.network.frozen = True, False
        self.network.silent.clear()
        self.network.lose_server()
        self.world.after(span, lambda: self._server_again(copy, keeps_scripts))

    def _server_again(self, copy: Any, keeps_scripts: bool) -> None:
        if not self.network.down:
            return
        keys, known, fault = copy or (None, None, None)
        self.recorder.restored(fault)
        self.server.start(keys, keeps_scripts)
        self.server.loading_until = self._clock() + 20_000
        self.witness.lost_state(known)
        self.network.down = False

    # Callers --------------------------------------------------------------------------------------

    def _ask(self, ask: Ask) -> None:
        process = self.processes[ask.who]
        if process is not None:
            if process.children:
                process = self.world.chance("ask", ask).choice([process, *process.children])
            process.loop.do(self._begin, process, ask)

    def _begin(self, process: Process, ask: Ask) -> None:
        work = self._asking(process, ask)
        task = start(process.loop, work, repr(ask))
        process.tasks.append(task)
        if ask.cancel is not None and ask.cancel[0] == "after":
            self.world.after(ask.cancel[1], lambda: process.loop.do(self._cancel, process, task))

    def _cancel(self, process: Process, task: asyncio.Task[Any]) -> None:
        """L4: a cancelled caller returns at once, in any state of the server."""
        if not task.done():
            self.note(f"{process.name}: cancel {task.get_name()}")
            task.cancel()
            self.world.after(2000, lambda: self._returned(process, task, self.world.now))

    def _returned(self, process: Process, task: asyncio.Task[Any], cancelled: int) -> None:
        told = "way='told'" in task.get_name()  # such a caller still waits for its release
        if not (task.done() or told) and process.loop.alive and not process.loop.stopped:
            self.witness.blame("L4", f"{task.get_name()} was cancelled, and still runs")

    async def _asking(self, process: Process, ask: Ask) -> None:
        began = self.world.now
        work = self._callers.asking(process.limiters[ask.name], ask)
        if ask.cancel is not None and ask.cancel[0] != "after":
            work = Stepped(work, *ask.cancel)
        try:
            await work
        except (HeadgateError, asyncio.CancelledError) as outcome:
            self.note(f"{process.name}: {ask.way} ended by {type(outcome).__name__}")
            self._check_patience(process, ask, began)
            self._check_refusal(ask, outcome)
        finally:
            if ask.way == "drop":
                self.world.after(SECOND, self._collect)

    def _check_patience(self, process: Process, ask: Ask, began: int) -> None:
        """A caller that may wait for so long, and could not be served, learns it in time."""
        stopped = any(moment >= began - MAX_STOP for moment in process.stopped_at)
        if ask.max_sleep is None or ask.way not in ("block", "hand") or stopped:
            return
        took = (self.world.now - began) / SECOND
        if took > 2 * ask.max_sleep + 1.0 + ask.keep / SECOND + 0.1:
            self.witness.blame("L4", f"{ask} took {took} s to be refused")

    def _check_refusal(self, ask: Ask, outcome: BaseException) -> None:
        """L5: a caller with enough time has no StoreError while there is a server. (If a reply may
        take 5 s, it may have one.)
        """
        hurries = ask.max_sleep is not None or ask.way == "try"
        slow = self.network.weather.spikes and self.network.weather.spike > SECOND
        if (
            isinstance(outcome, StoreError)
            and self.world.now > self._refused_until
            and not (hurries or slow)
        ):
            self.witness.blame("L5", f"{ask} ended, and nothing had happened: {outcome}")

    def _calm_after(self, seconds: float) -> float:
        """The microseconds since the last fault that callers must wait for, if they are more than
        `seconds`.
        """
        return inf if self.world.now < self._trouble_until + seconds * SECOND else self.slow()

    def permitted(self, issuer: Issuer, permit: Permit) -> None:
        """A caller has just got it."""
        here = self.world.here
        assert here is not None, "an acquire returns in its process"
        self._owner(here).permits.append(ref(permit))
        self.note(f"{here.name}: got {issuer.name} fence {permit.fence} as {permit.key}")
        self.witness.got(issuer.name, str(permit.key), permit, here)

    def _owner(self, loop: ProcessLoop) -> Process:
        return next(process for process in self._everybody if process.loop is loop)

    def handed(self, of_loop: LoopSession, permit: Permit, next_waiter: Any) -> None:
        """A caller that leaves hands its permit to another one."""
        assert isinstance(next_waiter, PendingAcquire), "somebody takes it"
        who = next_waiter.caller[:2]
        self.note(f"{of_loop.queue.name}: {permit.key} goes to {who}")
        waited = of_loop.client.loop.time() - next_waiter.start
        self.witness.take_over(of_loop.queue.name, who, permit, int(waited * SECOND))

    # Rest -----------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """All faults are over, but for their consequences."""
        self.note("all faults are over")
        self._collect()
        self.network.weather = CALM
        self._trouble_until = self._refused_until = max(
            self._trouble_until, self.world.now + 12 * SECOND
        )
        self.server.full = self.server.replica = False
        for process in filter(None, self.processes):
            self.network.hold(process.name, False)
            if process.loop.stopped:
                process.loop.resume()
        self.network.thaw()
        if self.network.down:
            self._server_again(None, False)

    def _collect(self) -> None:
        """Permits that were dropped in a circle of references go back."""
        self.world.nobodys_time = -inf
        gc.collect()
        self.world.nobodys_time = inf

    def _living(self) -> list[Process]:
        return [process for process in self._everybody if process.loop.alive]

    def _pending(self) -> list[asyncio.Task[Any]]:
        return [task for process in self._living() for task in process.tasks if not task.done()]

    def _come_to_rest(self) -> None:
        """L5: all waiters pass in the time that their work takes, and a constant."""
        bound = self._bound()
        self.world.run(self.world.now + bound, lambda: self._is_broken() or not self._pending())
        if not self._is_broken() and (left := self._pending()):
            names = [task.get_name() for task in left]
            self.witness.blame(
                "L5", f"after {bound / SECOND:g} s without faults these are not done: {names}"
            )

    def _bound(self) -> int:
        asks = [ask for ask in self.plan.steps if isinstance(ask, Ask)]
        pending = {task.get_name() for task in self._pending()}
        total = 40.0 + self.plan.longest_lease + self._behind()
        for ask in asks:
            if repr(ask) in pending:
                total += ask.keep / SECOND + (3.5 if self.plan.deaf else 0.5) + self._slowness(ask)
        return int(total * SECOND)

    def _behind(self) -> float:
        """The seconds for which the time stands still in the store: its clock was stepped back
        (T6).
        """
        return max(0, self.witness.latest - self._clock()) / SECOND

    def _slowness(self, ask: Ask) -> float:
        """The seconds until its rates have its cost again, and every charged debt."""
        pace = [limit.per / limit.amount for limit in rates_of(self.plan.limits[ask.name])]
        return 3 * ask.cost * max(pace, default=0.0)

    def _look_around(self) -> None:
        """L6: no caller holds, no caller waits, all capacity is free, and only the standing tasks
        of a client are left.
        """
        forgets = any(isinstance(step, Fault) and step.kind in FORGETS for step in self.plan.steps)
        rest = (LATE_COPIES if forgets else REST) + int(
            (self.plan.longest_lease + self._behind()) * SECOND
        )
        self.world.run(self.world.now + rest, self._is_broken)
        self._collect()
        self.world.run(self.world.now + SECOND, self._is_broken)
        prober = Process(self, len(self.processes), 0)
        self._everybody.append(prober)
        probes = []
        for index, limits in enumerate(self.plan.limits):
            task = start(prober.loop, self._probe(prober, index, limits), f"probe of name-{index}")
            probes.append(task)
        self.world.run(
            self.world.now + 60 * SECOND,
            lambda: self._is_broken() or all(task.done() for task in probes),
        )
        for task in probes:
            if not task.done() or task.exception():
                self.witness.blame(
                    "L6",
                    f"{task.get_name()}: {task.exception() if task.done() else 'it waits'}; "
                    f"{self._members()}",
                )
        self.witness.check_rates()
        self._check_nothing_is_left()

    async def _probe(self, prober: Process, index: int, limits: tuple[Limit, ...]) -> None:
        """Whether all of the capacity can be had at once."""
        limiter = prober.limiters[index]
        status = await limiter.astatus()
        used = [limit.used for limit in status.limits if limit.kind == "Concurrency"]
        if status.waiting or any(used):
            raise AssertionError(f"{status} of {limits}")
        await asyncio.gather(*(self._enter(limiter) for _ in range(3)))

    async def _enter(self, limiter: Limiter) -> None:
        async with limiter:
            await asyncio.sleep(0.001)

    def _members(self) -> str:
        names = range(len(self.plan.limits))
        return "; ".join(
            str(members_of(self.server, f"headgate:{{name-{index}}}:who".encode()))
            for index in names
        )

    def _check_nothing_is_left(self) -> None:
        for process in self._living():
            left = [
                task.get_name()
                for task in asyncio.all_tasks(process.loop)
                if not task.get_name().startswith(OWN_TASKS)
            ]
            if left:
                self.witness.blame("L6", f"{process.name} still has the tasks {left}")
            cables = self.network.cables_of(process.name)
            if len(cables) > (4 if self.plan.cluster else 2):
                self.witness.blame("L6", f"{process.name} has {len(cables)} connections")


MAX_STOP = 60 * SECOND
