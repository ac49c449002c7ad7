"""The end of a process: it first delivers its last operations, such as releases.

If the server does not confirm some of them in time, a line on stderr names them and the reason.

Delivery runs when the interpreter ends. It also runs when a child of multiprocessing ends, because
such a child runs no atexit callbacks.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakSet

from headgate.log_writer import flush_at_exit
from headgate.stores.redis.transport.portal import STARTED, close_portal, portal, portal_loop
from headgate.threads import snapshot

if TYPE_CHECKING:
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.lifecycle import Unsent

# The most seconds for which the end of a process waits for a server.
LONGEST = 5.0
# With this priority, multiprocessing runs the delivery after the user's finalizers and before its
# last log lines.
EXIT_PRIORITY = -100


CLIENTS: WeakSet[Client] = WeakSet()
# Ids of child processes that already deliver at exit.
_watched: set[int] = set()


def register(client: Client) -> None:
    """From now on the end of this process waits until `client` has delivered."""
    CLIENTS.add(client)
    watch_child()


def watch_child() -> None:
    """In a child of multiprocessing, deliver at its end.

    Each such child has imported the module already, so this function never imports it.
    """
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return
    if os.getpid() in _watched:
        return
    _watched.add(os.getpid())
    if util.is_exiting():
        _deliver_behind_threads()  # multiprocessing runs no finalizer that is registered now
    else:
        util.Finalize(None, _deliver_behind_threads, exitpriority=EXIT_PRIORITY)


def _deliver_behind_threads() -> None:
    """Start a thread that waits for all other threads, and then delivers.

    multiprocessing joins the threads of a child only after its finalizers.
    """
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
    deliver(monotonic() + LONGEST)


def deliver(until: float) -> None:
    """Wait until all calls of this process are confirmed, but at most until `until`.

    Report on stderr those that are not.
    """
    handed_over = all(client.lifecycle.handed_over for client in snapshot(CLIENTS))
    if portal_loop() is not None or not handed_over:
        report(portal().run(lambda: _deliver(until)))


async def _deliver(until: float) -> list[Unsent]:
    """In the portal: take over the calls of loops that do not run any more, and deliver all."""
    here = asyncio.get_running_loop()
    for client in snapshot(CLIENTS):
        if client.loop is not here and not client.loop.is_running():
            client.lifecycle.end()
    await asyncio.sleep(0)  # `end` has scheduled `adopt` in this loop, so that runs first
    # `adopt` releases permits by messages to the portal. This one arrives behind them.
    arrived = here.create_future()
    portal().tell(lambda: arrived.set_result(None))
    await arrived
    clients = [client for client in snapshot(CLIENTS) if not client.closed]
    await asyncio.gather(*(_deliver_one(client, until) for client in clients))
    return [each for client in clients for each in client.lifecycle.keeper.unsent(client)]


async def _deliver_one(client: Client, until: float) -> None:
    if client.loop is asyncio.get_running_loop():
        await client.lifecycle.keeper.deliver(client, until)
        await client.lifecycle.run_before_end()
    else:
        await _deliver_in_other_loop(client, until)


async def _deliver_in_other_loop(client: Client, until: float) -> None:
    """Deliver in the loop of another thread, which may be blocked, or end at any moment."""
    work = client.lifecycle.keeper.deliver(client, until)
    with suppress(RuntimeError, TimeoutError, asyncio.CancelledError):
        done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, client.loop))
        await asyncio.wait_for(done, max(0.0, until - monotonic()))
    if getcoroutinestate(work) == CORO_CREATED:  # otherwise the other loop runs it, or has ended it
        work.close()


def report(unsent: Iterable[Unsent]) -> None:
    """Print one line for each limiter."""
    for title, why, counts in unsent:
        what = ", ".join(
            f"{verb}()" if times == 1 else f"{verb}() ({times} times)"
            for verb, times in counts.items()
        )
        if sys.stderr is not None:
            print(
                f"headgate: the process ended before the server confirmed {what} of {title}: {why}",
                file=sys.stderr,
                flush=True,
            )


def deliver_at_exit() -> None:
    """At the end of the interpreter: write log lines, deliver, write again, close the portal."""
    until = monotonic() + LONGEST
    try:
        # A logging handler may call a limiter, and the delivery may log.
        flush_at_exit()
        deliver(until)
        flush_at_exit()
    finally:
        close_portal()


def _forked() -> None:
    """In the child of a fork: the parent goes on with its clients."""
    CLIENTS.clear()


STARTED.append(watch_child)
os.register_at_fork(after_in_child=_forked)
