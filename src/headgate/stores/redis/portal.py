"""The portal: an event loop in a thread of its own, where threads without a loop have their calls made.

Here lives the way from blocking code into asyncio, and nothing of limits. One portal serves a process; it starts with the first
blocking call and ends with the process: see shutdown.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures.thread import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
GUARDIAN = "headgate-link"  # the name of the task that ends with a link
CLOSING = 1.0  # seconds for the links to close their connections, once all that they had to say is sent


class Resolver(ThreadPoolExecutor):
    """Looks up host names while the interpreter ends: then ThreadPoolExecutor refuses all work, and perhaps no thread can start."""

    def submit(self, function: Callable[..., T], /, *args: Any, **named: Any) -> concurrent.futures.Future[T]:
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


class Portal:
    """A running loop for blocking callers. Where no thread can start, because the interpreter ends, it runs in the caller's."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(Resolver())
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="headgate-portal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; an interrupted wait cancels it."""
        if self._thread is None:
            return self.loop.run_until_complete(work)
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Let the links close. The loop itself runs on: threads that still wait are not woken by the end of the process."""
        if self._thread is None:
            self.loop.run_until_complete(farewell())
            self.loop.close()
        elif self._thread.is_alive():
            concurrent.futures.wait([self.start(farewell())], CLOSING)


async def farewell() -> None:
    guardians = [task for task in asyncio.all_tasks() if task.get_name() == GUARDIAN]
    for guardian in guardians:
        guardian.cancel()
    if guardians:
        await asyncio.wait(guardians)


_lock = threading.Lock()
_ended: set[int] = set()  # processes that end: no thread can be started any more
_portals: dict[int, Portal] = {}  # by process: a child of a fork has no thread of its parent's
STARTED: list[Callable[[], None]] = []  # called when the portal of a process starts


def portal() -> Portal:
    """The portal of this process. Raises RuntimeError when the process is about to end."""
    with _lock:
        if os.getpid() in _ended:
            raise RuntimeError("this process is about to end, and no further call can be made")
        found = _portals.get(os.getpid())
        if found is None:
            found = _portals[os.getpid()] = Portal()
            for call in STARTED:
                call()
        return found


def portal_loop() -> asyncio.AbstractEventLoop | None:
    """The loop of this process's portal, if there is one: takes no lock, so that a finalizer may ask."""
    found = _portals.get(os.getpid())
    return None if found is None else found.loop


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A daemon thread that asks while its process ends just comes no further."""
    try:
        found = portal()
    except RuntimeError:
        work.close()
        if threading.current_thread().daemon:
            threading.Event().wait()
        raise
    return found.run(work)


def close_portal() -> None:
    """Close the connections of the portal. After that, no call can be made in this process."""
    found = _portals.pop(os.getpid(), None)
    _ended.add(os.getpid())
    if found is not None:
        found.close()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
