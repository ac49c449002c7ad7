"""The portal: an event loop in a thread of its own, where threads without a loop have their calls made.

Here lives the way from blocking code into asyncio, and nothing of limits. One portal serves a process; it starts with the first
blocking call and ends with the process: see shutdown.py.

A signal handler can raise an exception at almost any point of a calling thread, and it can call the portal itself. So a calling
thread takes no lock here: it leaves what it wants in a deque, rings, and waits at a queue of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

from headgate.errors import StoreError
from headgate.forks import WAITING, forked
from headgate.threads import begin

T = TypeVar("T")
LIFECYCLE = "headgate-client"  # the name of the task that ends with a link
CLOSING = (
    1.0  # seconds for the links to close their connections, once all that they had to say is sent
)


class Resolver(ThreadPoolExecutor):
    """Looks up host names while the interpreter ends: then ThreadPoolExecutor refuses all work, and perhaps no thread can start."""

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
    """A running loop for blocking callers. Where no thread can start, because the interpreter ends, it runs in the caller's."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.thread = 0  # that runs the loop, once it does
        self.threadless = False
        self._callbacks: deque[Callable[[], object]] = deque()
        self._claim = threading.Lock()
        self._ready = threading.Lock()  # locked until the loop is there
        self._ready.acquire()
        self._trouble: BaseException | None = None
        self._ended = threading.Lock()  # locked while the thread runs
        self._of_parent = (
            False  # this process is a child of a fork, and the thread runs in the parent
        )

    def start(self) -> None:
        """Go on when the loop is there. Callers that come meanwhile start a thread, too: the first of these runs the loop."""
        try:
            begin(self._run, "headgate-portal")
        except RuntimeError:
            if self._claim.acquire(blocking=False):
                self.threadless = True
                self._open()
        with self._ready:
            if self._trouble is not None:
                raise self._trouble

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
        with self._ended:
            _threads.add(threading.get_ident())
            self._open()
            if self._trouble is None:
                asyncio.set_event_loop(self.loop)
                self.loop.run_forever()

    def tell(self, act: Callable[[], object]) -> None:
        """Have `act` done in the loop, soon.

        Takes no lock. (asyncio's call_soon_threadsafe would hide an OSError that a signal handler raises.)
        """
        self._callbacks.append(act)
        with suppress(BlockingIOError):  # it rings already
            os.write(self._wake_writer, b"\0")

    def _run_callbacks(self) -> None:
        os.read(self._wake_reader, 4096)
        while self._callbacks:
            self.loop.call_soon(self._callbacks.popleft())

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns, as `answer` does it."""
        return self.answer(Call(work))

    def answer(self, call: Call[T], timeout: float | None = None) -> T:
        """What the task of `call` returns. An exception that a signal handler raises here cancels it.

        Raises Empty after `timeout` seconds.
        """
        if self.threadless:
            return self.loop.run_until_complete(call.work())
        try:
            WAITING.add(call)
            if self._of_parent:
                call.fork()
            else:
                self.tell(call.begin)
            return call.result(timeout)
        except BaseException:
            if not call.of_parent:
                self.tell(call.give_up)
            raise
        finally:
            WAITING.discard(call)

    def fork(self) -> None:
        """In the child of a fork: no thread answers here. A caller that waits for its start goes on, and starts another."""
        self._of_parent = True
        with suppress(RuntimeError):  # it has started
            self._ready.release()

    def close(self) -> None:
        """Let the links close. The loop itself runs on: threads that still wait are not woken by the end of the process."""
        if self.threadless:
            self.loop.run_until_complete(end_clients())
            self._close_pipe()
            self.loop.close()
        elif self._ended.locked():
            with suppress(Empty):
                self.answer(Call(end_clients), CLOSING)

    def stop(self) -> None:
        """End the loop and its thread."""
        self.tell(self.loop.stop)
        with self._ended:
            _threads.discard(self.thread)
            self._close_pipe()

    def _close_pipe(self) -> None:
        self.loop.remove_reader(self._wake_reader)
        os.close(self._wake_reader)
        os.close(self._wake_writer)


class Outcome(Generic[T]):
    """What a call has come to: its result, or its error."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.error = concurrent.futures.CancelledError() if task.cancelled() else task.exception()
        self.result = None if self.error else task.result()


class Call(Generic[T]):
    """One blocking call: a thread waits for what a task does in the loop.

    `name` is that of the queue, for errors. `undo` gets the result when the thread has given up. `heed` gets, in the
    thread, what the task says before it is done.
    The thread never knows the task: the end of a task runs Python code, and would hide there what a signal handler raises.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str = "headgate/",
        undo: Callable[[T], object] | None = None,
        heed: Callable[[Any], object] | None = None,
    ) -> None:
        self.work = work
        self.of_parent = False  # this process is a child of a fork, and the parent gets the result
        self._name = name
        self._undo = undo
        self._heed = heed
        self._task: asyncio.Task[T] | None = None
        self._abandoned = False
        self._messages: SimpleQueue[Any] = (
            SimpleQueue()
        )  # what the task says, and at the end its outcome

    def result(self, timeout: float | None) -> T:
        """In the thread."""
        while (
            not isinstance(news := self._messages.get(timeout=timeout), Outcome)
            and not self.of_parent
        ):
            if self._heed is not None and self._messages.empty():
                self._heed(news)
        if self.of_parent:
            raise forked(self._name)
        if news.error is not None:
            try:
                raise news.error
            finally:
                del news  # or the error and this frame would know each other
        self._messages.put(news)  # for give_up, should the caller not get it after all
        return cast(T, news.result)

    def fork(self) -> None:
        """In the child of a fork: wake the thread, whatever it waits for."""
        self.of_parent = True
        self._messages.put(None)

    def begin(self) -> None:
        """In the loop, as is all that follows."""
        self._task = asyncio.get_running_loop().create_task(self.work())
        self._task.add_done_callback(self._done)

    def say(self, news: object) -> None:
        self._messages.put(news)

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
    lifecycles = [task for task in asyncio.all_tasks() if task.get_name() == LIFECYCLE]
    for lifecycle in lifecycles:
        lifecycle.cancel()
    if lifecycles:
        await asyncio.wait(lifecycles)


_ended: set[int] = set()  # processes that end: no thread can be started any more
_portals: dict[int, Portal] = {}  # by process: a child of a fork has no thread of its parent's
_threads: set[int] = set()  # that run portals
STARTED: list[
    Callable[[], None]
] = []  # called when the portal of a process starts; twice is harmless


def portal() -> Portal:
    """The portal of this process. Takes no lock: a signal handler may ask while its thread starts the portal."""
    process = os.getpid()
    if process in _ended:
        raise NoPortalError("this process is about to end, and no further call can be made")
    found = _portals.get(process) or _portals.setdefault(process, Portal())
    if not found.thread:
        _start(found)
    return (
        portal() if found._of_parent else found
    )  # the process was forked while it started: the child needs its own


def _after_fork() -> None:
    _threads.clear()
    for found in list(_portals.values()):
        found.fork()
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
    """The loop of this process's portal, if there is one: takes no lock, so that a finalizer may ask."""
    found = _portals.get(os.getpid())
    return found.loop if found is not None and found.thread else None


def check_thread() -> None:
    """StoreError in the portal's own thread, which would wait for itself."""
    if threading.get_ident() in _threads:
        raise StoreError(
            "A limiter was called in headgate's own thread, which cannot wait for an answer. A finalizer (__del__), a weakref "
            "callback, a credential_provider or a warnings.showwarning of yours calls it: call it in a thread of your own instead.",
            "thread",
        )


def blocking(
    work: Callable[[], Coroutine[Any, Any, T]], name: str, undo: Callable[[T], object] | None = None
) -> T:
    """The result of `work`: see `Call`, and `answer_of`."""
    return answer_of(Call(work, name, undo))


def answer_of(call: Call[T]) -> T:
    """What the task of `call` returns. A daemon thread that asks while its process ends goes no further.

    Raises StoreError in the thread that would have to answer, and RuntimeError in a child that was forked meanwhile.
    """
    check_thread()
    try:
        found = portal()
    except NoPortalError:
        if threading.current_thread().daemon:
            threading.Event().wait()
        raise
    return found.answer(call)


def close_portal() -> None:
    """Close the connections of the portal. After that, no call can be made in this process."""
    found = _portals.pop(os.getpid(), None)
    _ended.add(os.getpid())
    if found is not None:
        found.close()
