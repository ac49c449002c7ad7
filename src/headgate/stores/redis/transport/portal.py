"""The portal: an event loop in its own thread, which makes the calls of threads without a loop.

This module leads from blocking code into asyncio, and knows no limits. One portal serves a process.
It starts with the first blocking call and ends with the process: see shutdown.py.

A signal handler can raise an exception at almost any point of a calling thread. It can also call
the portal itself. So a calling thread takes no lock here. It appends a callback to a deque, wakes
the loop through a pipe, and waits at a queue of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

from headgate.errors import StoreError
from headgate.forks import WAITING, begin_wait, exit_error, fork_error
from headgate.threads import CHECK, NoThreadError, begin, runs

T = TypeVar("T")
# A client's lifecycle task has this name. Cancelling the task ends the client.
LIFECYCLE = "headgate-client"
# The seconds in which the clients can close their connections, after all calls were sent.
CLOSING = 1.0
NO_THREAD = (
    "headgate needs a thread for calls outside an event loop, and this process can start none: it "
    "has too many threads or too little memory. Raise that limit."
)
# The seconds for which a daemon thread waits for the end of the process, rather than fail.
ENDING = 1.0


class Resolver(ThreadPoolExecutor):
    """Looks up host names, even while the interpreter ends.

    At that time ThreadPoolExecutor refuses all work, and perhaps no thread can start.
    """

    def submit(
        self, function: Callable[..., T], /, *args: Any, **named: Any
    ) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **named))
            except BaseException as error:
                future.set_exception(error)

        try:
            threading.Thread(target=run, name="headgate-resolver", daemon=True).start()
        except RuntimeError:
            run()
        return future


class NoPortalError(RuntimeError):
    """This process is about to end, and no further call can be made."""


class Portal:
    """A running loop for blocking callers.

    If no thread can start, each later use tries it again. If none can start any more, because the
    process ends, the loop runs in the thread of each call.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        # The thread with this identifier runs the loop. 0: the loop does not run yet.
        self.thread = 0
        # The error of the last attempt to start a thread. None: a thread runs the loop, or will.
        self.no_thread: NoThreadError | None = None
        # Threads have left these callbacks for the loop.
        self._callbacks: deque[Callable[[], object]] = deque()
        # The thread that has this lock runs the loop.
        self._claim = threading.Lock()
        # This lock is held until the loop runs, or has failed to start.
        self._ready = threading.Lock()
        self._ready.acquire()
        # This error kept the loop from starting.
        self._trouble: BaseException | None = None
        # This lock is held while the thread runs.
        self._running = threading.Lock()
        # This process is a child of a fork, and the thread runs in the parent.
        self._of_parent = False

    def start(self) -> None:
        """Start the loop, and return when it runs.

        Callers that arrive meanwhile start a thread, too. The first of these threads runs the loop.
        """
        thread = 0
        try:
            thread = begin(self._run, "headgate-portal")
        except NoThreadError as error:
            if self._claim.acquire(blocking=False):
                try:
                    if not self.thread:  # otherwise another caller has opened it meanwhile
                        self.no_thread = error
                        self._open()
                finally:
                    self._claim.release()
        while not self._ready.acquire(timeout=CHECK):
            if not runs(thread):  # It may have ended before `_run`: see `begin`.
                thread = begin(self._run, "headgate-portal")
        try:
            if self._trouble is not None:
                raise self._trouble
        finally:
            self._ready.release()

    def _open(self) -> None:
        try:
            self.loop = asyncio.new_event_loop()
            self.loop.set_default_executor(Resolver())
            self._wake_reader, self._wake_writer = os.pipe()
            os.set_blocking(self._wake_writer, False)
            self.loop.add_reader(self._wake_reader, self._run_callbacks)
            self.thread = threading.get_ident()
        except BaseException as trouble:
            self._trouble = trouble
        finally:
            self._ready.release()

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        with self._running:
            _threads.add(threading.get_ident())
            if self.thread:  # a caller has opened it
                self.thread = threading.get_ident()
            else:
                self._open()
            self.no_thread = None
            if self._trouble is None:
                asyncio.set_event_loop(self.loop)
                self.loop.run_forever()

    def try_again(self) -> None:
        """No thread could start before. Try to start one, unless a call runs the loop now."""
        if self._claim.locked():
            return
        try:
            begin(self._run, "headgate-portal")
            self.no_thread = None
        except NoThreadError as error:
            self.no_thread = error

    def tell(self, act: Callable[[], object]) -> None:
        """Run `act` in the loop soon. Without a thread: when one can start, or at the end.

        This takes no lock. asyncio's call_soon_threadsafe would hide an OSError that a signal
        handler raises.
        """
        self._callbacks.append(act)
        with suppress(BlockingIOError):  # The pipe is full: the loop wakes up in any case.
            os.write(self._wake_writer, b"\0")

    def _run_callbacks(self) -> None:
        os.read(self._wake_reader, 4096)
        while self._callbacks:
            self.loop.call_soon(self._callbacks.popleft())

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`. If no thread could start, the loop runs in this one."""
        call = BlockingCall(work)
        return self._run_here(call) if self.no_thread else self.answer(call)

    def _run_here(self, call: BlockingCall[T]) -> T:
        if not self._claim.acquire(blocking=False):
            raise StoreError("This process ends, and another call is in progress.", "thread")
        try:
            return self.loop.run_until_complete(call.run_here())
        finally:
            self._claim.release()

    def answer(self, call: BlockingCall[T], timeout: float | None = None) -> T:
        """Return the result of the task of `call`. Raise Empty after `timeout` seconds.

        An exception that a signal handler raises here cancels the task.
        """
        if error := self.no_thread:
            if error.process_ends:
                return self._run_here(call)
            raise StoreError(NO_THREAD, "thread") from error
        try:
            begin_wait(call)
            if self._of_parent:  # the fork came before `begin_wait`, so it did not find the call
                call.forked()
            else:
                self.tell(call.begin)
            return call.result(timeout)
        except BaseException:
            if not call.of_parent:
                self.tell(call.give_up)
            raise
        finally:
            WAITING.discard(call)

    def forked(self) -> None:
        """In the child of a fork, no thread answers here.

        A caller that waits for the start of this portal goes on, and starts another portal.
        """
        self._of_parent = True
        with suppress(RuntimeError):  # The loop has started already.
            self._ready.release()

    def close(self) -> None:
        """End the clients of the portal.

        The loop itself goes on running: threads may still wait for its answers, and nothing else
        wakes them.
        """
        if self.no_thread:
            self._run_here(BlockingCall(end_clients))
            self._close_pipe()
            self.loop.close()
        elif self._running.locked():
            with suppress(Empty):
                self.answer(BlockingCall(end_clients), CLOSING)

    def _close_pipe(self) -> None:
        self.loop.remove_reader(self._wake_reader)
        os.close(self._wake_reader)
        os.close(self._wake_writer)


class Outcome(Generic[T]):
    """The result or the error of a call."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.error = concurrent.futures.CancelledError() if task.cancelled() else task.exception()
        self.result = None if self.error else task.result()


class BlockingCall(Generic[T]):
    """One blocking call: a thread waits for the result of a task in the loop.

    `name` is the name of the queue, for errors. `undo` gets the result if the thread has stopped
    waiting. `on_message` gets, in the thread, the messages of the task before its result.

    The thread has no reference to the task, so the task cannot die there. A dying task runs Python
    code, which would lose an exception of a signal handler.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str = "headgate/",
        undo: Callable[[T], object] | None = None,
        on_message: Callable[[Any], object] | None = None,
    ) -> None:
        self.work = work
        self.thread = threading.get_ident()
        self._context = contextvars.copy_context()  # the task runs in the context of the caller
        # This process is a child of a fork, and the parent gets the result.
        self.of_parent = False
        self._process_ends = False  # This thread must not wait any more.
        self._name = name
        self._undo = undo
        self._on_message = on_message
        self._task: asyncio.Task[T] | None = None
        # The thread has stopped waiting.
        self._abandoned = False
        # The task puts its messages here, and at the end its outcome.
        self._messages: SimpleQueue[Any] = SimpleQueue()

    def result(self, timeout: float | None) -> T:
        """In the thread: wait for the result and return it."""
        while (
            not isinstance(news := self._messages.get(timeout=timeout), Outcome)
            and not self.of_parent
            and not self._process_ends
        ):
            # A newer message makes this one outdated.
            if self._on_message is not None and self._messages.empty():
                self._on_message(news)
        if self.of_parent:
            raise fork_error(self._name)
        if not isinstance(news, Outcome):
            raise exit_error()
        if news.error is not None:
            try:
                raise news.error
            finally:
                del news  # Otherwise the error and this frame would refer to each other.
        # If an exception comes before the caller has the result, `give_up` finds it here.
        self._messages.put(news)
        return cast(T, news.result)

    def forked(self) -> None:
        """In the child of a fork: wake the thread, in any state of its wait."""
        self.of_parent = True
        self._messages.put(None)

    def end_wait(self) -> None:
        self._process_ends = True
        self._messages.put(None)

    def begin(self) -> None:
        """In the loop, as are all methods below: start the task."""
        self._task = self._context.run(asyncio.get_running_loop().create_task, self.work())
        self._task.add_done_callback(self._done)

    async def run_here(self) -> T:
        """In a portal without a thread: the result of the task."""
        return await self.work()

    def say(self, news: object) -> None:
        if threading.get_ident() != self.thread:
            self._messages.put(news)
        elif self._on_message is not None:  # the portal has no thread of its own
            self._on_message(news)

    def give_up(self) -> None:
        self._abandoned = True
        if self._task is not None:
            self._task.cancel()
        else:
            self._take_back()

    def _done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        self._messages.put(Outcome(task))
        if self._abandoned:
            self._take_back()

    def _take_back(self) -> None:
        while not self._messages.empty():
            news = self._messages.get()
            if isinstance(news, Outcome) and news.error is None and self._undo is not None:
                self._undo(cast(T, news.result))


async def end_clients() -> None:
    """End all clients of the running loop, and wait for their ends."""
    lifecycles = [task for task in asyncio.all_tasks() if task.get_name() == LIFECYCLE]
    for lifecycle in lifecycles:
        lifecycle.cancel()
    if lifecycles:
        await asyncio.wait(lifecycles)


# These processes are about to end: no thread can be started there any more.
_ending: set[int] = set()
# Each process has its own portal: a child of a fork has none of its parent's threads.
_portals: dict[int, Portal] = {}
# The threads with these identifiers run portals.
_threads: set[int] = set()
# These functions are called when the portal of a process starts. Twice is harmless.
STARTED: list[Callable[[], None]] = []


def portal() -> Portal:
    """The portal of this process, started if necessary.

    This takes no lock, because a signal handler may ask while its thread starts the portal.
    """
    process = os.getpid()
    if process in _ending:
        raise NoPortalError("this process is about to end, and no further call can be made")
    found = _portals.get(process) or _portals.setdefault(process, Portal())
    if not found.thread:
        _start(found)
    elif found.no_thread is not None:
        found.try_again()
    # If the process was forked during the start, the child needs a portal of its own.
    return portal() if found._of_parent else found


def _after_fork() -> None:
    _threads.clear()
    for found in list(_portals.values()):
        found.forked()
    _portals.clear()


os.register_at_fork(after_in_child=_after_fork)


def _start(found: Portal) -> None:
    try:
        found.start()
    finally:
        if found._trouble is not None:
            _portals.pop(os.getpid(), None)
    for call in STARTED:
        call()


def portal_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of this process's portal, if it runs. This takes no lock: a finalizer may ask."""
    found = _portals.get(os.getpid())
    return found.loop if found is not None and found.thread else None


def check_thread() -> None:
    """Raise StoreError in the portal's own thread, because it would wait for itself."""
    if threading.get_ident() in _threads:
        raise StoreError(
            "A limiter was called in headgate's own thread, which cannot wait for an answer. "
            "A finalizer (__del__), a weakref callback, a credential_provider or a "
            "warnings.showwarning of yours calls it: call it in a thread of your own instead.",
            "thread",
        )


def blocking(
    work: Callable[[], Coroutine[Any, Any, T]], name: str, undo: Callable[[T], object] | None = None
) -> T:
    """Return the result of `work`: see `BlockingCall` and `answer_of`."""
    return answer_of(BlockingCall(work, name, undo))


def answer_of(call: BlockingCall[T]) -> T:
    """Return the result of the task of `call`.

    Raise StoreError in the portal's own thread, and RuntimeError in a child that was forked
    meanwhile. A daemon thread that asks while its process ends waits for ENDING seconds, and then
    raises NoPortalError. By then the process has ended, unless its end waits for a lock of this
    thread, such as that of a logging handler.
    """
    check_thread()
    try:
        found = portal()
    except NoPortalError:
        if threading.current_thread().daemon:
            threading.Event().wait(ENDING)
        raise
    return found.answer(call)


def close_portal() -> None:
    """Close the connections of the portal. After that, this process can make no call."""
    found = _portals.pop(os.getpid(), None)
    _ending.add(os.getpid())
    if found is not None:
        found.close()
