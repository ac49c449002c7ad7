"""The limiter: what the user holds, and the two thin shells around a store's line.

Here live `async with` and `with` on one noun. Nothing here decides, sleeps or talks to a server: a request is checked and given
to the line, and what comes back is handed to the caller.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal, ParamSpec, Self, TypeVar

from headgate.blocks import made_from
from headgate.checks import check_count, check_name, choice, microseconds, show
from headgate.checks import seconds as check_seconds
from headgate.closing import CLOSINGS, Closing, Owner
from headgate.declaring import Attached
from headgate.decorate import limited
from headgate.entrance import Entrance, Outcome
from headgate.gate.rules import NO_LIMITS, Declaration, declaration
from headgate.grammar import parse_limit
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.line import Front
from headgate.names import encoded, title
from headgate.permit import Permit, Refusal
from headgate.pickles import attributes, remade
from headgate.request import NOTHING, Request, asked, check_settlement, sleep_of
from headgate.stores import MemoryStore, StoreLike, check_portable, store_of
from headgate.stores.fallback import with_fallback
from headgate.stores.status import Status
from headgate.waiting import OnWait, check_on_wait
from headgate.watch import Watched

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Entrance):
    """Holds calls to what a service allows: all `limits` decided together, in the order of arrival.

        api = Limiter("api", "100/minute", Concurrency(5))
        async with api: ...                                  # waits its turn
        with api: ...                                        # the same, in a thread
        async with api.acquire(tokens=1200) as permit: ...   # says what it costs, and holds a permit

    `name`: any text of 1 to 256 bytes. All limiters of one name in one store share one state, over tasks, threads, event loops
    and, on Redis, processes; the limits that were declared last hold for all of them.
    `limits`: `Concurrency`, `Rate`, `Window`, `Quota`, or their texts, such as "100/minute" (a Window: never more than 100
    in any 60 s) and "10/second burst 20" (a Rate). As an attribute: those that this object has declared or updated last.
    `store`: None or "memory://" for this process; a redis://, rediss:// or unix:// URL, a `redis.Redis` or a
    `redis.asyncio.Redis` for a whole fleet.
    `max_sleep`: the longest an acquire is willing to wait, in seconds. None: as long as it takes; 0: not at all.
    `max_waiters`: how many may wait at once; one more is refused with `QueueFullError`.
    `on_lost`: what becomes of a block whose lease is lost. "mark": only `permit.lost` tells. "cancel": a task is cancelled where it
    awaits, and the block raises `LeaseLostError`; a thread's block raises it at its end. In memory no lease is ever lost.
    `on_store_error`: what an acquire does while the store cannot be asked. "raise": StoreError. "open": it passes at once, and
    nothing is limited. "local": the limits divided by `processes`, how many share them (an int from 1), hold in each.
    `retry_for`: for how many seconds an acquire looks again for a store that was there before, until it does that; 10 if
    unsaid, 0: not at all. A waiter that finds the store again after more than 10 seconds may have lost its place, and comes last.
    `on_wait`: called once with a `Waiting` (position, retry_after) for each acquire that has to queue, by its task or thread
    before it sleeps, and not for one that passes at once or is refused. What it raises gives the acquire up and reaches the caller.

    Copied it is the same limiter. Pickled it is made again from these arguments, so that a child process with the same URL shares
    the limits; the pickle holds the URL with its password. A client object cannot be pickled: TypeError. A subclass keeps its
    own attributes, and its `__init__` is not called again.

    Raises ValueError or TypeError for what can never work, before anything is sent.
    """

    __slots__ = (
        "_attached",
        "_closing",
        "_max_sleep",
        "_max_waiters",
        "_on_lost",
        "_on_wait",
        "_options",
        "_store",
        "_unavailable",
        "key",
        "limits",
        "name",
    )

    def __init__(
        self,
        name: str,
        *limits: Limit | str,
        store: StoreLike = None,
        max_sleep: float | None = None,
        max_waiters: int | None = None,
        on_wait: OnWait | None = None,
        on_lost: Literal["mark", "cancel"] = "mark",
        on_store_error: Literal["raise", "open", "local"] = "raise",
        processes: int | None = None,
        retry_for: float | None = None,
    ) -> None:
        self._attached = False
        check_name(name)
        self.limits = declared_limits(f"Limiter({name!r})", limits)
        options = (store, max_sleep, max_waiters, on_wait, on_lost, on_store_error, processes, retry_for)
        self._make(name, declaration(self.limits), *options)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        store: StoreLike = None,
        max_sleep: float | None = None,
        max_waiters: int | None = None,
        on_wait: OnWait | None = None,
        on_lost: Literal["mark", "cancel"] = "mark",
        on_store_error: Literal["raise", "open", "local"] = "raise",
        processes: int | None = None,
        retry_for: float | None = None,
    ) -> Self:
        """A limiter that takes its limits from the store, where another limiter of this name has declared them.

            api = Limiter.attach("api", store="redis://localhost:6379")
            print(api.status())                                   # or api.update("200/minute"), async with api, ...

        No I/O: the first use asks the store. It does all that a limiter does, and never declares limits; costs are checked when
        the limits are known. A key, `attached["k"]`, has the limits of that key in the store, or else those of the whole.
        `limits` is () until an acquire has learned them. The options are those of `Limiter`. While a store cannot be asked that
        was not asked before, on_store_error="open" lets calls pass, and "local" raises StoreError: there is nothing to share.

        Each use raises UnknownLimiterError when the store has no limits for the name. `update`, `pause`, `resume`, `reset` and
        `drain` never block, so on Redis they log that as a warning; `aupdate`, `apause`, `aresume` and `areset` raise it.
        """
        limiter = cls.__new__(cls)
        limiter._attached = True
        limiter.limits = ()
        options = (store, max_sleep, max_waiters, on_wait, on_lost, on_store_error, processes, retry_for)
        limiter._make(name, NO_LIMITS, *options)
        return limiter

    def _make(
        self,
        name: str,
        declared: Declaration,
        store: StoreLike,
        max_sleep: float | None,
        max_waiters: int | None,
        on_wait: OnWait | None,
        on_lost: Literal["mark", "cancel"],
        on_store_error: Literal["raise", "open", "local"],
        processes: int | None,
        retry_for: float | None,
    ) -> None:
        self.name = check_name(name)
        self.key: str | None = None
        self._max_sleep = sleep_of(max_sleep, "Limiter")
        self._max_waiters = check_count(max_waiters)
        self._on_wait = check_on_wait(on_wait, "Limiter")
        self._on_lost = choice("Limiter", "on_lost", on_lost, ("mark", "cancel"))
        self._store = with_fallback(store_of(store), name, declared, on_store_error, processes)
        self._options = {
            "store": store,
            "max_sleep": max_sleep,
            "max_waiters": max_waiters,
            "on_wait": on_wait,
            "on_lost": on_lost,
            "on_store_error": on_store_error,
            "processes": processes,
            "retry_for": retry_for,
        }
        self._unavailable = check_retry_for(retry_for), on_store_error == "raise"
        self._closing = Closing(encoded(name))
        CLOSINGS.add(self._closing)
        request = Request({}, self._max_sleep, self._max_waiters, self._on_wait, *self._unavailable, self._closing)
        self._open(declared, request)
        self._closing.add(self)

    def _open(self, declared: Declaration, request: Request, whole: Front | None = None) -> None:
        line: Front = self._store.line(encoded(self.name, self.key), declared)
        if self._on_lost == "cancel" and not isinstance(self._store, MemoryStore):
            line = Watched(line)
        direct = self._attached or (self.key is not None and line.declared.program == declared.program)
        super().__init__(line, request, None if direct else declared)  # a key is mostly used at once
        if self._attached:
            self._line = Attached(self, line, whole)

    def _begin_again(self, limits: tuple[Limit, ...]) -> None:
        """Be as new: the next acquire declares `limits`, or takes them from the store."""
        if self._closing.closed:
            return
        if self._attached:
            self.limits = ()
            whole = None if self.key is None else self._store.line(encoded(self.name), NO_LIMITS)
            self._open(NO_LIMITS, self._default, whole)
        else:
            self.limits = limits
            self._open(declaration(limits), self._default)

    def __getitem__(self, key: str) -> Limiter:
        """The same limits with a state of its own for `key`, such as a tenant: any text of 1 to 256 bytes.

        An idle key costs nothing after a while, and no key is forgotten while it owes or holds anything.
        """
        if self.key is not None:
            raise TypeError(f"limiter {self.name!r}[{self.key!r}] is one key's already: take limiter[{key!r}] of the whole.")
        child: Limiter = object.__new__(Limiter)
        child.name, child.key = self.name, check_name(key, f"Limiter({self.name!r})[...]", "key")
        child.limits = self.limits
        child._store, child._on_lost = self._store, self._on_lost
        child._max_sleep, child._max_waiters, child._on_wait = self._max_sleep, self._max_waiters, self._on_wait
        child._options, child._unavailable, child._closing = self._options, self._unavailable, self._closing
        child._attached = self._attached
        if self._attached:
            child._open(NO_LIMITS, self._default, self._line)
        else:
            child._open(self._line.declared, self._default)
        child._closing.add(child)
        return child

    def acquire(self, cost: int = 1, *, max_sleep: float | None = None, on_wait: OnWait | None = None, **units: int) -> Acquire:
        """Ask for a permit: `cost` of every limit that counts requests, and so many of each unit named, all or nothing.

            async with limiter.acquire(tokens=900) as permit: ...     # or `with`
            permit = await limiter.acquire(3, max_sleep=2.0)          # then permit.release()

        `max_sleep` (seconds; 0: not at all) and `on_wait` stand for this one acquire; None leaves them to the limiter.

        Raises CostExceedsCapacityError for what can never pass; when entered or awaited, MaxSleepExceededError when its turn
        is further away than `max_sleep`, QueueFullError, and StoreError when the store cannot be asked; from a block (also
        from one that is entered later, `with permit:`), with on_lost="cancel", LeaseLostError. Without a block a lost lease
        shows on the permit alone.
        """
        return Acquire(self, self._request(cost, max_sleep, on_wait, units))

    def acquire_sync(self, cost: int = 1, *, max_sleep: float | None = None, on_wait: OnWait | None = None, **units: int) -> Permit:
        """The permit of `acquire(...)`, by blocking this thread until it is there."""
        return self._line.acquire_sync(self._request(cost, max_sleep, on_wait, units))

    def try_acquire(self, cost: int = 1, **units: int) -> Permit | Refusal:
        """A permit if it can be had this moment; otherwise a `Refusal`, which is false and knows `retry_after`. Never waits.

        On Redis this asks the server, and blocks the thread for one round trip: in a coroutine, use `atry_acquire`.
        """
        return self._line.take(self._request(cost, None, None, units))

    async def atry_acquire(self, cost: int = 1, **units: int) -> Permit | Refusal:
        """`try_acquire` for coroutines."""
        return await self._line.atake(self._request(cost, None, None, units))

    def status(self) -> Status:
        """Per limit what is in use and what is left, how many wait, and when one that comes now could go."""
        return self._line.status()

    async def astatus(self) -> Status:
        """`status` for coroutines."""
        return await self._line.astatus()

    def update(self, *limits: Limit | str) -> None:
        """Other limits from now on, for all who use this name: in this process at once, in every other with its next call.

            api.update("200/minute", Concurrency(10))            # all that are to hold, not only those that change

        Never blocks. Who waits is queued again, in order, under the new limits: more capacity wakes waiters at once, less waits for
        holders, another rate mints nothing for time that has passed. A waiter that asks for more than a limit now holds at all gets
        CostExceedsCapacityError. An update overrules whatever was declared for the name before it, also when that is declared
        again; another update, or limits that are new to the name, replace it. Of a key (`limiter["k"].update(...)`) it changes
        that key alone; of the whole limiter, the keys that are taken from it afterwards.

        Raises ValueError or TypeError as the constructor does, before anything is sent. A server that is away hears of it later.
        """
        said = self._updated(limits)
        self._line.update(declaration(said))
        self.limits = said

    async def aupdate(self, *limits: Limit | str) -> None:
        """`update`, awaited until the store knows. Raises StoreError when it cannot be asked; in this process the limits hold."""
        said = self._updated(limits)
        await self._line.aupdate(declaration(said))
        self.limits = said

    def pause(self, seconds: float) -> None:
        """Nobody passes for so long, whoever uses this name: in this process and in every other, whatever the limits would allow.

            api.pause(30)                                        # the server has said: Retry-After: 30

        Never blocks. Who waits keeps the place, and goes on waiting as long as its `max_sleep` allows. A permit that is held stays
        held. A pause never ends another: of two the one that ends later counts. Meanwhile budgets fill up as ever, to what the
        limits hold at most. `seconds`: from 0 to below ten years.

        Raises ValueError or TypeError before anything is sent. A server that is away hears of it
        when it is back, if that is before the end of the pause.
        """
        if time := self._pause_of(seconds):
            self._line.pause(time)

    async def apause(self, seconds: float) -> None:
        """`pause`, awaited until the store knows: from then on it holds everywhere. Raises StoreError when it cannot be asked."""
        if time := self._pause_of(seconds):
            await self._line.apause(time)

    def resume(self) -> None:
        """End a pause, for all who use this name: in this process and in every other.

        Never blocks. Waiters go on at once, in order, as far as the limits allow. Without a pause nothing happens. Of a key
        (`limiter["k"].resume()`) it ends that key's pause alone. A server that is away does not hear of it: see `aresume`.
        """
        self._line.resume()

    async def aresume(self) -> None:
        """`resume`, awaited until the store knows. Raises StoreError when it cannot be asked."""
        await self._line.aresume()

    def reset(self) -> None:
        """Forget what was counted: each rate, window and quota is as a new one, without debts, for all who use this name.

        Never blocks. A permit that is held stays held, waiters keep their places, and a pause goes on: `resume` ends it. A `Rate`
        has its `initial` tokens again, or is full. A call that was granted before gives nothing back. Of a key
        (`limiter["k"].reset()`) it resets that key alone. A server that is away does not hear of it: see `areset`.
        """
        self._line.reset()

    async def areset(self) -> None:
        """`reset`, awaited until the store knows. Raises StoreError when it cannot be asked."""
        await self._line.areset()

    def flush(self) -> None:
        """Wait until the store has all that this process has said to this limiter and its keys.

        That is each release, settlement, update, pause and drain that returned before. In memory there is nothing to wait for.
        Call it before a process ends by other means than a normal end, such as `os._exit`. In a coroutine, use `aflush`.

        Raises StoreError when the store cannot be asked, and RuntimeError in a thread whose event loop it would block.
        """
        self._line.flush()

    async def aflush(self) -> None:
        """`flush` for coroutines."""
        await self._line.aflush()

    def close(self, refuse_waiters: bool = False) -> None:
        """Take no new acquires, wait for those that wait, and `flush`. For the end of a server or a worker.

        From now on each acquire of this limiter and its keys raises LimiterClosedError, also one that was made before and is
        entered now. Acquires that wait are served first; `refuse_waiters`: they raise LimiterClosedError. Permits that are
        held may be released later. `release`, `settle`, `status`, `update` and `flush` go on. A second call waits in the same
        way. Other limiters of this name go on. In a coroutine, use `aclose`.

        Raises StoreError when the store cannot be told what was said; the limiter is closed nevertheless. Raises RuntimeError
        in a thread whose event loop it would block, and in a signal handler that has interrupted a waiting acquire. Raises
        TypeError for a key: close the limiter that it was taken from.
        """
        self._check_whole("close")
        self._closing.close(refuse_waiters)
        self._line.flush()

    async def aclose(self, refuse_waiters: bool = False) -> None:
        """`close` for coroutines."""
        self._check_whole("aclose")
        await self._closing.aclose(refuse_waiters)
        await self._line.aflush()

    def _check_whole(self, method: str) -> None:
        if self.key is not None:
            raise TypeError(f"{self._called()}.{method}() would close one key of many: call {method}() of the whole limiter.")

    def drain(self, **left: int) -> None:
        """The service says how much is left at this moment: `api.drain(requests=12)`. Where there is more, there is less.

        Whoever else uses the service is so reckoned with. It never raises what is left, and nobody who has passed is called back.
        A `Rate` fills up again from there; of a `Window` and a `Quota` it is as if others had used the rest just now. What is held
        of a `Concurrency` is not told by this. Never blocks. Whole numbers from 0, of units that a limit counts over time.

        Raises ValueError or TypeError before anything is sent. A server that is away hears of it if it is back within 10 s.
        """
        check_settlement(self._line.declared, self._line.name, left, "drain")
        for unit, number in left.items():
            self._line.drain(unit, number)

    def _pause_of(self, seconds: float) -> int:
        return microseconds(check_seconds(f"{self._called()}.pause", "seconds", seconds, zero=True))

    def _called(self) -> str:
        return f"Limiter({self.name!r})" + ("" if self.key is None else f"[{self.key!r}]")

    def _updated(self, limits: tuple[Limit | str, ...]) -> tuple[Limit, ...]:
        return declared_limits(f"{self._called()}.update(...)", limits)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call of a function takes a permit first, of a generator for as long as it runs."""
        return limited(self, function)

    def _request(self, cost: int, max_sleep: float | None, on_wait: OnWait | None, units: dict[str, int]) -> Request:
        if max_sleep is None and not units and type(cost) is int and cost == 1 and on_wait is None:
            return self._default
        declared = self._line.declared
        limit = self._max_sleep if max_sleep is None else sleep_of(max_sleep, "acquire")
        told = self._on_wait if on_wait is None else check_on_wait(on_wait, "acquire")
        wanted = asked(declared, self._line.name, cost, units)
        return Request(wanted, limit, self._max_waiters, told, *self._unavailable, self._closing)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: what another process makes the same limiter from."""
        check_portable(self._called(), self._options["store"])
        kind = made_from(self)
        how = kind, self.name, self.key, () if self._attached else self.limits, self._options
        return unpickled, how, attributes(self, kind, Limiter)

    # Without these, Python would ask for limiter[0], limiter[1] and so on, which no key is.
    __iter__ = None
    __contains__ = None

    def __repr__(self) -> str:
        key = "" if self.key is None else f"[{self.key!r}]"
        return f"<Limiter {self.name!r}{key}: {self._line.describe()}>"


class Acquire(Coroutine[Any, Any, Permit]):
    """A permit that the caller has asked for and not waited for yet.

    Await it, enter it with `async with` or `with`, or give it to a task, as
    `asyncio.create_task(limiter.acquire())` does. Each of these once.
    """

    __slots__ = ("_owner", "_permit", "_request", "_running", "_used")

    def __init__(self, owner: Owner, request: Request) -> None:
        self._owner = owner  # not its line: the limiter may be closed before this is entered
        self._request = request
        self._used = False
        self._running: Coroutine[Any, Any, Permit] | None = None  # once a task runs it
        self.__class__ = Unused

    def __await__(self) -> Generator[Any, None, Permit]:
        return self._owner._line.acquire(self._once()).__await__()

    def send(self, value: Any) -> Any:
        """One step of the coroutine, for the task that runs it."""
        if self._running is None:
            self._running = self._owner._line.acquire(self._once())
        return self._running.send(value)

    def throw(self, *error: Any) -> Any:
        """An exception for the coroutine, from the task that runs it."""
        if self._running is None:
            self._running = self._owner._line.acquire(self._once())
        return self._running.throw(*error)

    def close(self) -> None:
        """The end of the coroutine: a task gives it up."""
        if self._running is not None:
            self._running.close()
        elif not self._used:
            self._once()

    async def __aenter__(self) -> Permit:
        permit = self._permit = await self._owner._line.acquire(self._once())
        return permit if permit.guard is None else await permit.__aenter__()

    async def __aexit__(self, *outcome: Outcome) -> None:
        self._permit.leave(outcome[1])

    def __enter__(self) -> Permit:
        permit = self._permit = self._owner._line.acquire_sync(self._once())
        return permit if permit.guard is None else permit.__enter__()

    def __exit__(self, *outcome: Outcome) -> None:
        self._permit.leave(outcome[1])

    def _once(self) -> Request:
        if self._used:
            raise RuntimeError("This acquire was used before; each permit is asked for by a call of acquire() of its own.")
        self._used = True
        self.__class__ = Acquire
        return self._request

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: it asks for one permit, once, in this process; "
            "send the limiter, and call its acquire() there."
        )

    def __repr__(self) -> str:
        cost = "" if self._request.text == NOTHING else f": {self._request.text.replace(',', ', ')}"
        return f"<acquire() of {title(self._owner._line.name)}{cost}{', used' if self._used else ''}>"


class Unused(Acquire):
    """An acquire that was neither awaited nor entered: dropped before that, it warns."""

    __slots__ = ()

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"acquire() of {title(self._owner._line.name)} was never awaited or entered: nothing was limited",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def check_retry_for(value: float | None) -> float | None:
    """Seconds for which a store is looked for; None: as the store does."""
    return None if value is None else check_seconds("Limiter", "retry_for", value, zero=True, least=0.0)


def unpickled(kind: type[Limiter], name: str, key: str | None, limits: tuple[Limit, ...], options: dict[str, Any]) -> Limiter:
    """The limiter that was pickled so; one without limits was attached."""
    if limits:
        whole: Limiter = remade(kind, Limiter, (name, *limits), options)
    else:
        whole = Limiter.attach.__func__(kind, name, **options)  # type: ignore[attr-defined]  # whatever `kind` makes of it
    return whole if key is None else whole[key]


def declared_limits(call: str, limits: tuple[Limit | str, ...]) -> tuple[Limit, ...]:
    if not limits:
        raise ValueError(f"{call} has no limits: give it at least one, such as '100/minute' or Concurrency(5).")
    for limit in limits:
        if isinstance(limit, str) and "://" in limit:
            raise TypeError(f"{call} got a URL as a limit; where the state lives is said by the keyword store.")
        if not isinstance(limit, (str, Concurrency, Rate, Window, Quota)):
            raise TypeError(
                f"{call} got {show(limit)} as a limit: a limit is a Concurrency, Rate, Window or Quota; "
                "write one of them, or a text such as '100/minute'."
            )
    return tuple(parse_limit(limit) if isinstance(limit, str) else limit for limit in limits)
