"""The end of a process: its last releases and settings reach the server first, or a line on stderr names the others and why.

It runs when the interpreter ends, and when a child of multiprocessing ends, because such a child runs no atexit callbacks.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from headgate.stores.redis.transport.portal import STARTED, close_portal, portal, portal_loop

LONGEST = 5.0  # seconds that the end of a process waits for a server, at most
LAST = -100  # the priority among multiprocessing's finalizers: after those of the user, before the last log lines


# Of a limiter: its name, the reason, and each method with the number of its calls.
Unsent = tuple[str, str, Counter[str]]


class Client(Protocol):
    """The connections of one loop."""

    loop: asyncio.AbstractEventLoop

    ended: bool

    @property
    def closed(self) -> bool: ...
    def end(self) -> None: ...
    async def deliver(self, until: float) -> Sequence[Unsent]: ...


CLIENTS: WeakSet[Client] = WeakSet()  # those of this process that are not closed
_watched: set[int] = set()  # children of multiprocessing that deliver before they end


def register(client: Client) -> None:
    """From now on the end of this process waits until `link` has delivered."""
    CLIENTS.add(client)
    watch_child()


def watch_child() -> None:
    """In a child of multiprocessing, deliver at its end. The module is there in each such child, so it is never imported here."""
    util, process = (
        sys.modules.get("multiprocessing.util"),
        sys.modules.get("multiprocessing.process"),
    )
    if (
        util is None
        or process is None
        or process.parent_process() is None
        or os.getpid() in _watched
    ):
        return
    _watched.add(os.getpid())
    util.Finalize(None, _deliver_behind_threads, exitpriority=LAST)


def _deliver_behind_threads() -> None:
    """multiprocessing joins the threads of a child after its finalizers. So one more thread waits for them, and then delivers."""
    threading.Thread(target=_join_and_deliver, name="headgate-shutdown", daemon=False).start()


def _join_and_deliver() -> None:
    here = threading.current_thread()
    while others := [
        each
        for each in threading.enumerate()
        if each.is_alive() and not each.daemon and each is not here
    ]:
        for thread in others:
            thread.join()
    deliver()


def deliver() -> None:
    """Wait until all calls of this process have arrived, for LONGEST seconds at most; report on stderr those that have not."""
    if portal_loop() is not None or any(not client.ended for client in list(CLIENTS)):
        report(portal().run(lambda: _deliver(monotonic() + LONGEST)))


async def _deliver(until: float) -> list[Unsent]:
    """In the portal: it takes over the calls of loops that do not run any more."""
    here = asyncio.get_running_loop()
    for client in list(CLIENTS):
        if client.loop is not here and not client.loop.is_running():
            client.end()
    await asyncio.sleep(0)  # after this turn the portal has taken them over
    unsent: list[Unsent] = []
    delivered = [
        client.deliver(until) if client.loop is here else _elsewhere(client, until)
        for client in list(CLIENTS)
        if not client.closed
    ]
    for found in await asyncio.gather(*delivered):
        unsent += found
    return unsent


async def _elsewhere(client: Client, until: float) -> Sequence[Unsent]:
    """In the loop of another thread, which may be blocked, or end at any moment."""
    work = client.deliver(until)
    try:
        found = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, client.loop))
        return await asyncio.wait_for(found, max(0.0, until - monotonic()))
    except (RuntimeError, TimeoutError, asyncio.CancelledError):
        work.close()
        return []


def report(unsent: Iterable[Unsent]) -> None:
    """One line for each limiter."""
    for title, why, words in unsent:
        what = ", ".join(
            f"{verb}()" if times == 1 else f"{verb}() ({times} times)"
            for verb, times in words.items()
        )
        if sys.stderr is not None:
            print(
                f"headgate: the process ended before the server confirmed {what} of {title}: {why}",
                file=sys.stderr,
                flush=True,
            )


def _end() -> None:
    try:
        deliver()
    finally:
        close_portal()


def _forked() -> None:
    """The links of the parent are the parent's."""
    CLIENTS.clear()


STARTED.append(watch_child)
os.register_at_fork(after_in_child=_forked)
atexit.register(_end)
