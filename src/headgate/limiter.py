"""The limiter: the object that the user holds.

A method checks a request, gives it to the queue, and hands the result to the caller. Nothing here
decides, sleeps or talks to a server. The blocks of a limiter are in entrance.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Self, TypeVar

from headgate.changes import Drain, Pause, Reset, Resume, Update
from headgate.closing import CLOSINGS, Closing
from headgate.counts import permits_are_timed
from headgate.declaring import Attached
from headgate.entrance import Entrance, made_from
from headgate.gate.compile import NO_LIMITS, Declaration, declaration
from headgate.keys import encoded, is_plain_key, title
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.permit import Outcome, Permit, Refusal
from headgate.pickles import attributes, remade
from headgate.request import NOTHING, Request, check_settlement, check_units, sleep_of
from headgate.stores.memory.key_queue import KeyQueue
from headgate.stores.memory.store import MemoryStore
from headgate.stores.registry import StoreLike, check_portable, store_of
from headgate.stores.status import Status
from headgate.validation import (
    check_count,
    check_name,
    choice,
    flag,
    may_hold_url,
    microseconds,
    show,
)
from headgate.validation import seconds as check_seconds
from headgate.waiting import OnWait, check_on_wait

if TYPE_CHECKING:
    from headgate.interfaces import Queue, Store

# Functions import modules that a plain limiter in memory does not need, so `import headgate` takes
# less time. An acquire or a release imports none.

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Entrance):
    """Keeps calls within limits: an acquire takes from all `limits` or none, in order of arrival.

        api = Limiter("api", "100/minute", Concurrency(5))
        async with api: ...                                  # waits its turn
        with api: ...                                        # the same, in a thread
        async with api.acquire(tokens=1200) as permit: ...   # names its cost

    `name`: any text of 1 to 256 bytes. All limiters of one name in one store share one state, over
    tasks, threads, event loops and, on Redis, processes. The limits that were declared last hold
    for all of them.
    `limits`: `Concurrency`, `Rate`, `Window`, `Quota`, or their texts. "100/minute" is a Window,
    never more than 100 in any 60 s; "10/second burst 20" is a Rate. The first acquire declares
    them. As an attribute: the limits that this object has declared or updated last.
    `store`: None or "memory://" for this process. For a fleet: a redis://, rediss://, unix://,
    redis+sentinel:// or redis+cluster:// URL (rediss+... for TLS), or a client of redis-py or
    valkey-py.
    `max_sleep`: the longest wait of an acquire, in seconds. None: as long as it takes; 0: none.
    `max_waiters`: how many may wait at once, an int from 0. One more raises `QueueFullError`. None:
    any number.
    `on_wait`: a plain function. An acquire that has to wait calls it once with a `Waiting`, in its
    own task or thread, before it sleeps. If it raises, the acquire ends with that exception.
    `on_lost`: the consequence for a block whose lease is lost. "mark": only `permit.lost` shows it.
    "cancel": a task is cancelled where it awaits, and the block raises `LeaseLostError`; a thread's
    block raises it at its end. In memory no lease is lost.
    `on_store_error`: how an acquire behaves while the store cannot be asked. "raise": it raises
    StoreError. "open": it passes at once, without any limit. "local": it keeps to this process's
    share, the limits divided by `processes`.
    `processes`: how many processes use the name, an int from 1. Only for, and needed by,
    on_store_error="local".
    `retry_for`: for how many seconds an acquire tries again to reach a store that answered before.
    After that, `on_store_error` applies. None: 10; 0: not at all. After more than 10 seconds a
    waiter may have lost its place; then it is last.

    A copy is the same limiter. A pickle holds these arguments, with the URL's password, so a child
    process shares the limits. A limiter whose store is a client object cannot be pickled:
    TypeError. A pickle of a subclass keeps its own attributes, and does not call its `__init__`.

    Raises ValueError or TypeError for bad arguments. The constructor does no I/O.
    """

    __slots__ = ("_attached", "_options", "_store", "key", "limits", "name")

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
        self.name = check_name(name)
        self.limits = declared_limits(f"Limiter({self.name!r})", limits)
        self._set_up(
            declaration(self.limits),
            store=store,
            max_sleep=max_sleep,
            max_waiters=max_waiters,
            on_wait=on_wait,
            on_lost=on_lost,
            on_store_error=on_store_error,
            processes=processes,
            retry_for=retry_for,
        )

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
        """A limiter that takes its limits from the store, where another limiter of this name has
        declared them.

            api = Limiter.attach("api", store="redis://localhost:6379")
            print(api.status())                       # or api.update("200/minute"), async with api

        No I/O: the first use asks the store. It does all that a limiter does, and declares no
        limits of its own. It checks costs when it knows the limits. A key, `attached["k"]`, has the
        limits of that key in the store, or else those of the whole. `limits` is () until an acquire
        has read them. The options are those of `Limiter`. If the store is unreachable before this
        process has read the limits, on_store_error="open" passes calls, and "local" raises
        StoreError.

        Each use raises UnknownLimiterError when the store has no limits for the name. `update`,
        `pause`, `resume`, `reset` and `drain` never block, so on Redis they log that as a warning;
        `aupdate`, `apause`, `aresume` and `areset` raise it.
        """
        limiter = cls.__new__(cls)
        limiter._attached = True
        limiter.name = check_name(name)
        limiter.limits = ()
        limiter._set_up(
            NO_LIMITS,
            store=store,
            max_sleep=max_sleep,
            max_waiters=max_waiters,
            on_wait=on_wait,
            on_lost=on_lost,
            on_store_error=on_store_error,
            processes=processes,
            retry_for=retry_for,
        )
        return limiter

    def _set_up(self, declared: Declaration, **options: Any) -> None:
        self.key: str | None = None
        self._options = options
        max_sleep = sleep_of(options["max_sleep"], "Limiter")
        max_waiters = check_count(options["max_waiters"])
        on_wait = check_on_wait(options["on_wait"], "Limiter")
        choice("Limiter", "on_lost", options["on_lost"], ("mark", "cancel"))
        mode, retry_for = options["on_store_error"], options["retry_for"]
        self._store = find_store(self.name, declared, options)
        if retry_for is not None:
            retry_for = check_seconds("Limiter", "retry_for", retry_for, zero=True, least=0.0)
        own_closing = Closing(encoded(self.name))
        CLOSINGS.add(own_closing)
        raises = mode == "raise"
        request = Request({}, max_sleep, max_waiters, on_wait, retry_for, raises, own_closing)
        self._open(encoded(self.name), declared, request)
        own_closing.add(self)

    def _open(
        self, name: str, declared: Declaration, request: Request, whole: Queue | None = None
    ) -> None:
        """Use the queue of `name`, wrapped as the options say.

        `whole`: the queue of the whole limiter, if this is the limiter of a key.
        """
        queue: Queue = self._store.queue(name, declared)
        if permits_are_timed():
            from headgate.permit_timing import Timed

            queue = Timed(queue)
        elif isinstance(queue, KeyQueue):
            # It needs no wrapper: it declares its limits itself, and memory loses no lease. Many
            # keys are used only once, so this way is short.
            self._use(queue, request)
            return
        if self._options["on_lost"] == "cancel" and not isinstance(self._store, MemoryStore):
            from headgate.lease_watch import Watched

            queue = Watched(queue)
        # An attached limiter has no limits to declare. The queue of a key may have them already.
        declares_nothing = self._attached or (
            self.key is not None and queue.declared.program == declared.program
        )
        super().__init__(queue, request, None if declares_nothing else declared)
        if self._attached:
            self._queue = Attached(self, queue, whole)

    def _begin_again(self, limits: tuple[Limit, ...]) -> None:
        """For headgate.testing: forget the declared limits. The next acquire declares `limits`, or
        takes them from the store. A closed limiter stays closed.
        """
        if self._default.closing.closed:
            return
        name = encoded(self.name, self.key)
        if self._attached:
            self.limits = ()
            whole = None if self.key is None else self._store.queue(encoded(self.name), NO_LIMITS)
            self._open(name, NO_LIMITS, self._default, whole)
        else:
            self.limits = limits
            self._open(name, declaration(limits), self._default)

    def __getitem__(self, key: str) -> Limiter:
        """A limiter with the same limits and options, and a state of its own for `key`, such as a
        tenant.

        `key`: any text of 1 to 256 bytes. A store forgets a key after a while without holders,
        waiters and debts. Raises TypeError on a limiter that is one key's.
        """
        if self.key is not None:
            raise TypeError(
                f"limiter {self.name!r}[{self.key!r}] is one key's already: take [{key!r}] of the "
                "whole limiter."
            )
        # A key is always a plain Limiter: the attributes of a subclass would be missing.
        child: Limiter = object.__new__(Limiter)
        if type(key) is str and is_plain_key(key):
            name = f"{self._default.closing.name}:{key}"  # a closing has the encoded name
        else:
            key = check_name(key, f"Limiter({self.name!r})[...]", "key")
            name = encoded(self.name, key)
        child.name, child.key = self.name, key
        child.limits, child._attached = self.limits, self._attached
        child._store, child._options = self._store, self._options
        declared = NO_LIMITS if self._attached else self._queue.declared
        child._open(name, declared, self._default, whole=self._queue)
        self._default.closing.add(child)
        return child

    def acquire(
        self,
        cost: int = 1,
        *,
        max_sleep: float | None = None,
        on_wait: OnWait | None = None,
        **units: int,
    ) -> Acquire:
        """Ask for a permit: `cost` of each limit that counts requests, and the given number of each
        named unit, all or nothing.

            async with limiter.acquire(tokens=900) as permit: ...     # or `with`
            permit = await limiter.acquire(3, max_sleep=2.0)          # then permit.release()

        `max_sleep` (seconds; 0: not at all) and `on_wait` hold for this one acquire; None leaves
        them to the limiter.

        Raises ValueError or TypeError for bad arguments, and CostExceedsCapacityError for a cost
        that can never pass. When it is entered or awaited, it raises MaxSleepExceededError if its
        turn is further away than `max_sleep`, or has not come by then. It also raises
        QueueFullError and LimiterClosedError; UnknownLimiterError, of an attached limiter;
        StoreError when the store cannot be asked. It raises RuntimeError if it would block its own
        event loop for ever, or in the child of a process that forked during the wait. With
        on_lost="cancel" its block, or a later `with permit:`, raises LeaseLostError. Without a
        block a lost lease shows on the permit alone.
        """
        return Acquire(self, self._request(cost, max_sleep, on_wait, units))

    def acquire_sync(
        self,
        cost: int = 1,
        *,
        max_sleep: float | None = None,
        on_wait: OnWait | None = None,
        **units: int,
    ) -> Permit:
        """`acquire(...)` for threads: blocks this thread until it has the permit.

        In a coroutine, use `acquire`.
        """
        return self._queue.acquire_sync(self._request(cost, max_sleep, on_wait, units))

    def try_acquire(self, cost: int = 1, **units: int) -> Permit | Refusal:
        """A permit if one is free now; otherwise a `Refusal`, which is false and has `retry_after`.
        Never waits its turn.

        On Redis this asks the server, and blocks the thread for one round trip: in a coroutine, use
        `atry_acquire`. Raises the errors of `acquire`, except MaxSleepExceededError and
        QueueFullError.
        """
        return self._queue.take(self._request(cost, None, None, units))

    async def atry_acquire(self, cost: int = 1, **units: int) -> Permit | Refusal:
        """`try_acquire` for coroutines."""
        return await self._queue.atake(self._request(cost, None, None, units))

    def status(self) -> Status:
        """Each limit's used and free units, the number of waiters, and when a new caller could go.
        Changes and declares nothing.

        On Redis this asks the server, and blocks the thread for one round trip: in a coroutine, use
        `astatus`. Raises StoreError when the store cannot be asked; UnknownLimiterError, of an
        attached limiter.
        """
        return self._queue.status()

    async def astatus(self) -> Status:
        """`status` for coroutines."""
        return await self._queue.astatus()

    def update(self, *limits: Limit | str) -> None:
        """Replace the limits of this name: in this process at once, in every other with its next
        call.

            api.update("200/minute", Concurrency(10))   # all limits, not only those that change

        Never blocks. Waiters queue again, in order, under the new limits. More capacity wakes
        waiters at once, and less takes no permit back. A new rate grants no extra tokens for the
        time before it. A waiter that asks for more than a limit now holds gets
        CostExceedsCapacityError. An update overrules all declarations before it, also when a
        process declares those again. Another update replaces it. So does a declaration of limits
        that the name has never had. `limiter["k"].update(...)` changes that key alone. An update of
        the whole limiter also changes the keys taken afterwards.

        Raises ValueError or TypeError as the constructor does, before anything is sent. An
        unreachable server gets the update when it is back.
        """
        updated = self._updated(limits)
        self._queue.change(Update(declaration(updated)))
        self.limits = updated

    async def aupdate(self, *limits: Limit | str) -> None:
        """`update`, awaited until the store knows.

        Raises StoreError when the store cannot be asked. It gets the update later.
        """
        updated = self._updated(limits)
        await self._queue.achange(Update(declaration(updated)))
        self.limits = updated

    def pause(self, seconds: float) -> None:
        """Stop all acquires of this name for `seconds`, in this process and in every other.

            api.pause(30)                               # the server has said: Retry-After: 30

        Never blocks. Waiters keep their places, and wait as long as their `max_sleep` allows. Held
        permits stay held. Of two pauses the one that ends later counts. Budgets refill meanwhile,
        up to their capacity. `resume` ends a pause early. `seconds`: from 0, which changes nothing,
        to below ten years. A pause of the whole limiter holds all its keys;
        `limiter["k"].pause(...)` holds that key alone. On Redis, another process may apply it to
        its keys up to 3 s late if notifications are lost.

        Raises ValueError or TypeError before anything is sent. An unreachable server gets the pause
        when it is back, unless the pause is over by then.
        """
        if time := self._pause_of(seconds):
            self._queue.change(Pause(time))

    async def apause(self, seconds: float) -> None:
        """`pause`, awaited until the store knows: from then on it holds everywhere. Raises
        StoreError when the store cannot be asked.
        """
        if time := self._pause_of(seconds):
            await self._queue.achange(Pause(time))

    def resume(self) -> None:
        """End a pause of this name, in this process and in every other.

        Never blocks. Waiters go on at once, in order, as far as the limits allow. Without a pause
        nothing happens. `limiter["k"].resume()` ends that key's own pause alone, and a resume of
        the whole limiter ends no key's own pause. An unreachable server gets it if it is back
        within 10 s.
        """
        self._queue.change(Resume())

    async def aresume(self) -> None:
        """`resume`, awaited until the store knows. Raises StoreError when it cannot be asked."""
        await self._queue.achange(Resume())

    def reset(self) -> None:
        """Forget the counts: each rate, window and quota is as new, without debts, for all that use
        this name.

        Never blocks. Held permits stay held, waiters keep their places, and a pause goes on. A
        `Rate` has its `initial` tokens again, or is full. A permit that was granted before gives no
        tokens back. `limiter["k"].reset()` resets that key alone. An unreachable server gets it if
        it is back within 10 s.
        """
        self._queue.change(Reset())

    async def areset(self) -> None:
        """`reset`, awaited until the store knows. Raises StoreError when it cannot be asked."""
        await self._queue.achange(Reset())

    def flush(self) -> None:
        """Block until the store has every earlier release, settlement, update, pause, resume, reset
        and drain of this process, for this limiter and its keys.

        In memory there is nothing to wait for. Call it before an abnormal end of the process, such
        as `os._exit`. In a coroutine, use `aflush`. Raises StoreError when the store cannot be
        asked. On Redis it raises RuntimeError in a thread whose event loop runs.
        """
        self._queue.flush()

    async def aflush(self) -> None:
        """`flush` for coroutines."""
        await self._queue.aflush()

    def close(self, refuse_waiters: bool = False) -> None:
        """Refuse new acquires, wait for those that wait, and `flush`.

        From now on each acquire of this limiter and its keys raises LimiterClosedError, also one
        that was made before and is entered now. Acquires that wait are served first; with
        `refuse_waiters` they raise it, too. All else still works, and other limiters of this name
        go on. A second call waits in the same way. In a coroutine, use `aclose`.

        Raises StoreError when `flush` does; the limiter is closed nevertheless. Raises
        RuntimeError, and closes nothing, in a thread whose event loop runs, and in a signal handler
        or finalizer that interrupted a waiting acquire. In memory, a handler or finalizer may have
        interrupted another call of a limiter. If acquires wait then, this raises RuntimeError, too,
        and the limiter is closed. Raises TypeError for a key, and for a `refuse_waiters` that is no
        bool.
        """
        self._default.closing.close(self._check_close("close", refuse_waiters))
        self._queue.flush()

    async def aclose(self, refuse_waiters: bool = False) -> None:
        """`close` for coroutines."""
        await self._default.closing.aclose(self._check_close("aclose", refuse_waiters))
        await self._queue.aflush()

    def _check_close(self, method: str, refuse_waiters: bool) -> bool:
        if self.key is not None:
            raise TypeError(
                f"{self._in_messages()}.{method}() would close one key of many: call {method}() of "
                "the whole limiter."
            )
        return flag(f"{self._in_messages()}.{method}", "refuse_waiters", refuse_waiters)

    def drain(self, **left: int) -> None:
        """Lower the remaining budget to the number that the service states; never raise it:
        `api.drain(requests=12)`.

        A `Rate` refills from there. A `Window` and a `Quota` count the difference as used now.
        Granted permits stay granted. Never blocks.
        `left`: whole numbers from 0, of units that a Rate, Window or Quota counts.

        Raises ValueError or TypeError before anything is sent. An unreachable server gets it if it
        is back within 10 s.
        """
        units = check_settlement(self._queue.declared, self._queue.name, left, "drain")
        for unit, number in units.items():
            self._queue.change(Drain(unit, number))

    def _pause_of(self, seconds: float) -> int:
        return microseconds(
            check_seconds(f"{self._in_messages()}.pause", "seconds", seconds, zero=True)
        )

    def _in_messages(self) -> str:
        return f"Limiter({self.name!r})" + ("" if self.key is None else f"[{self.key!r}]")

    def _updated(self, limits: tuple[Limit | str, ...]) -> tuple[Limit, ...]:
        return declared_limits(f"{self._in_messages()}.update(...)", limits)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: each call of the function holds a permit until it ends, and a generator
        as long as it runs.

        For functions, coroutine functions, generators and async generators. Raises TypeError for a
        class and for anything else.
        """
        from headgate.decorator import limited

        return limited(self, function)

    def _request(
        self, cost: int, max_sleep: float | None, on_wait: OnWait | None, units: dict[str, int]
    ) -> Request:
        if max_sleep is None and not units and type(cost) is int and cost == 1 and on_wait is None:
            return self._default
        usual, declared = self._default, self._queue.declared
        longest = usual.max_sleep if max_sleep is None else sleep_of(max_sleep, "acquire")
        callback = usual.on_wait if on_wait is None else check_on_wait(on_wait, "acquire")
        wanted = check_units(declared, self._queue.name, cost, units)
        rest = usual.retry_for, usual.raises, usual.closing
        return Request(wanted, longest, usual.max_waiters, callback, *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        check_portable(self._in_messages(), self._options["store"])
        kind = made_from(self)
        how = kind, self.name, self.key, () if self._attached else self.limits, self._options
        return unpickled, how, attributes(self, kind, Limiter)

    # Without these methods, Python would ask for limiter[0], limiter[1] and so on.
    def __iter__(self) -> NoReturn:
        raise TypeError(self._lists_no_keys("iteration over "))

    def __contains__(self, key: object) -> NoReturn:
        raise TypeError(self._lists_no_keys(f"{show(key)} in "))

    def _lists_no_keys(self, asked: str) -> str:
        return (
            f"{asked}{self._in_messages()}: a limiter does not list its keys. "
            'Write limiter["key"] for the limiter of one key.'
        )

    def __repr__(self) -> str:
        key = "" if self.key is None else f"[{self.key!r}]"
        return f"<Limiter {self.name!r}{key}: {self._queue.describe()}>"


class Acquire(Coroutine[Any, Any, Permit]):
    """The result of `limiter.acquire(...)`: a request for one permit, not sent yet.

    Await it, enter it with `async with` or `with`, or make it a task:
    `asyncio.create_task(limiter.acquire())`. A second use raises RuntimeError.
    """

    __slots__ = ("_owner", "_permit", "_request", "_running", "_used")

    def __init__(self, owner: Limiter, request: Request) -> None:
        self._owner = owner  # not its queue: a close replaces that
        self._request = request
        self._used = False
        self._running: Coroutine[Any, Any, Permit] | None = None  # once a task runs it
        # Only `Unused` has a finalizer: Python swallows a signal handler's exception inside one.
        self.__class__ = Unused

    def __await__(self) -> Generator[Any, None, Permit]:
        return self._owner._queue.acquire(self._once()).__await__()

    def send(self, value: Any) -> Any:
        if self._running is None:
            self._running = self._owner._queue.acquire(self._once())
        return self._running.send(value)

    def throw(self, *error: Any) -> Any:
        if self._running is None:
            self._running = self._owner._queue.acquire(self._once())
        return self._running.throw(*error)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
        elif not self._used:
            self._once()

    async def __aenter__(self) -> Permit:
        permit = self._permit = await self._owner._queue.acquire(self._once())
        return permit if permit.guard is None else await permit.__aenter__()

    async def __aexit__(self, *outcome: Outcome) -> None:
        self._permit.leave(outcome[1])

    def __enter__(self) -> Permit:
        permit = self._permit = self._owner._queue.acquire_sync(self._once())
        return permit if permit.guard is None else permit.__enter__()

    def __exit__(self, *outcome: Outcome) -> None:
        self._permit.leave(outcome[1])

    def _once(self) -> Request:
        if self._used:
            raise RuntimeError(
                f"{self!r} asks for one permit, once: call acquire() again for another permit."
            )
        self._used = True
        self.__class__ = Acquire  # without a finalizer: see `__init__`
        return self._request

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be copied or pickled: it asks for one permit, once, in this process; "
            "send the limiter, and call its acquire() there."
        )

    def __repr__(self) -> str:
        cost = "" if self._request.text == NOTHING else f": {self._request.text.replace(',', ', ')}"
        return (
            f"<acquire() of {title(self._owner._queue.name)}{cost}{', used' if self._used else ''}>"
        )


class Unused(Acquire):
    """It was neither awaited nor entered: dropped before that, it warns."""

    __slots__ = ()

    def __del__(self) -> None:
        if not self._used:
            warnings.warn(
                f"acquire() of {title(self._owner._queue.name)} was never awaited or entered, so "
                "it limited nothing: write `async with`, `with` or `await` before it.",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def find_store(name: str, declared: Declaration, options: dict[str, Any]) -> Store:
    """The store of a limiter, with the fallback that its options demand."""
    store = store_of(options["store"])
    mode, processes = options["on_store_error"], options["processes"]
    if isinstance(store, MemoryStore) and mode == "raise" and processes is None:
        return store
    from headgate.stores.fallback import with_fallback

    return with_fallback(store, name, declared, mode, processes)


def unpickled(
    kind: type[Limiter],
    name: str,
    key: str | None,
    limits: tuple[Limit, ...],
    options: dict[str, Any],
) -> Limiter:
    if limits:
        whole: Limiter = remade(kind, Limiter, (name, *limits), options)
    else:  # it was attached
        attach = Limiter.attach.__func__  # type: ignore[attr-defined]  # a subclass may have its own
        whole = attach(kind, name, **options)
    return whole if key is None else whole[key]


def declared_limits(call: str, limits: tuple[Limit | str, ...]) -> tuple[Limit, ...]:
    if not limits:
        raise ValueError(
            f"{call} has no limits: give it at least one, such as '100/minute' or Concurrency(5)."
        )
    for limit in limits:
        if isinstance(limit, str) and may_hold_url(limit):
            raise TypeError(
                f"{call} got a URL as a limit: pass it by keyword, store='redis://...'."
            )
        if not isinstance(limit, (str, Concurrency, Rate, Window, Quota)):
            raise TypeError(
                f"{call} got {show(limit)} as a limit: a limit is a Concurrency, Rate, Window or "
                "Quota; write one of them, or a text such as '100/minute'."
            )
    return tuple(parsed(limit) if isinstance(limit, str) else limit for limit in limits)


def parsed(text: str) -> Limit:
    from headgate.limit_parser import parse_limit

    return parse_limit(text)
