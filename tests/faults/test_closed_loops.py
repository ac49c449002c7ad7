"""An event loop is closed, dropped or ended by asyncio.run while its tasks hold permits or wait for
some.

Most loops here are those of a real process: see programs/closed_loops.py.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.asyncio.connection import Connection

from headgate import Concurrency, Limiter, Rate
from headgate.stores.redis.session import polls
from headgate.stores.redis.transport.endpoint import Endpoint
from headgate.stores.redis.transport.tasks import begun, stop
from tests.machine import scaled
from tests.processes import finished
from tests.servers import Server
from tests.world import long, soon, until, waiting

HOWS = ["closes", "closes_and_keeps", "closes_and_tells", "drops", "drops_all", "runs", "goes_on"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("what", ["all", pytest.param("first", marks=pytest.mark.proof)])
async def test_a_loop_that_ends_before_its_tasks_prints_nothing_and_holds_nothing(
    name: str, redis_url: str, how: str, what: str
) -> None:
    """F7, F9, S7: when the process has ended, its waiters have left the queue and the permits of
    its blocks are free.
    """
    assert await asyncio.to_thread(finished, "closed_loops", redis_url, name, how, what) == ""

    held = await Limiter(f"{name}-held", Concurrency(1), store=redis_url).astatus()
    queued = await Limiter(f"{name}-queued", Rate(1, per=3600), store=redis_url).astatus()
    booked = await Limiter(f"{name}-booked", Rate(50, per=1, capacity=1), store=redis_url).astatus()
    assert (held.limits[0].used, held.waiting, queued.waiting, booked.waiting) == (0, 0, 0, 0)


RUNS_ON = """
import asyncio, logging, threading
from headgate import Concurrency, Limiter, StoreError
from headgate.stores.redis.transport import availability
logging.getLogger("headgate").addHandler(logging.NullHandler())
availability.REVIVAL = 0.01  # seconds until the acquire of unknown outcome is cancelled again
limiter = Limiter("x", Concurrency(1), store="redis://127.0.0.1:1")
async def main():
    try:
        await limiter.acquire()
    except StoreError:
        print("away")
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait, 0.5)
asyncio.run(main())
"""


def test_the_timers_of_a_loop_at_its_end_do_not_touch_the_state_that_a_thread_took_over() -> None:
    """F9: asyncio.run waits for its executor when all tasks have ended. The timers of that loop
    touch no state of another one.

    In asyncio's debug mode they would raise.
    """
    assert finished(RUNS_ON) == "away\n"


CLEANS_UP = """
import asyncio, sys
from time import monotonic
from headgate import Concurrency, Limiter
limiter = Limiter("x", Concurrency(1), store=sys.argv[1])
async def use():
    try:
        await asyncio.Event().wait()
    finally:
        await limiter.acquire()
async def main():
    global permit, task
    permit = await limiter.acquire()
    task = asyncio.create_task(use())
    await asyncio.sleep(0)
asyncio.run(main(), debug=sys.argv[2] == "debug")
permit.release()
print("ended")
"""


@pytest.mark.parametrize("mode", ["debug", "usual"])
def test_a_task_that_has_to_queue_while_asyncio_run_cancels_it_ends_at_once(
    own_server: Server, mode: str
) -> None:
    """F9, L2: another caller holds what the cleanup of the task asks for. Its wait is cancelled."""
    assert finished(CLEANS_UP, own_server.user_url, mode, within=scaled(4.0)) == "ended\n"


LAST_TURN = """
import asyncio, sys, threading, time
from redis import Redis
from headgate import Concurrency, Limiter
from headgate.stores.redis import routing
from headgate.stores.redis.transport.lifecycle import Lifecycle
limiter = Limiter("x", Concurrency(5), store=sys.argv[1])
drain, append = Lifecycle._drain, routing.append
threads = []
def append_late(session, operation):
    while not session.client.lifecycle.handed_over:
        time.sleep(0.0001)
    append(session, operation)
async def then_release(self):
    await drain(self)
    if not self._client.of_portal:
        release = threading.Thread(target=permit.release)
        threads.append(release)
        release.start()
        if sys.argv[2] == "before":
            Redis(port=int(sys.argv[3])).client_pause(400)
            release.join()
        self._client.loop.call_soon(time.sleep, 0.05)
async def main():
    global permit
    permit = await limiter.acquire()
    if sys.argv[2] == "after":
        routing.append = append_late
Lifecycle._drain = then_release
asyncio.run(main())
threads[0].join()
limiter.flush()
print(limiter.status().limits[0].used)
"""


@pytest.mark.parametrize("when", ["after", "before"])
def test_a_release_by_a_thread_in_the_turn_in_which_a_loop_ends_arrives(
    own_server: Server, when: str
) -> None:
    """F9, S7: the thread notes its release just before or just after the portal takes over.

    The server answers late, so that both threads would have a call in flight.
    """
    assert finished(LAST_TURN, own_server.user_url, when, own_server.port) == "0\n"


@pytest.mark.parametrize("kind", ["permit", "place"])
async def test_a_waiter_goes_on_when_the_loop_before_it_is_closed(
    kind: str, name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7, L2: the waiter's own heartbeat finds the closed loop.

    The process makes no other call, and the lease is an hour.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", 0.05)
    limiter = Limiter(name, Concurrency(2 if kind == "place" else 1, lease=3600), store=redis_url)
    held = await limiter.acquire() if kind == "place" else None

    async def enter() -> None:
        async with limiter.acquire(permits=2) if kind == "place" else limiter:
            await asyncio.Event().wait()

    def begin() -> tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]:
        loop = asyncio.new_event_loop()
        task = loop.create_task(enter())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(
            until(lambda status: (status.waiting if held else status.limits[0].used) == 1, limiter)
        )
        return loop, task

    loop, task = await asyncio.to_thread(begin)
    live = asyncio.create_task(limiter.acquire().__aenter__())
    await waiting(limiter, 2 if held else 1)

    loop.close()

    await (await soon(live)).arelease()
    assert not task.done()
    if held is not None:
        await held.arelease()


def test_a_connection_is_closed_in_silence_when_its_coroutine_is_closed_without_a_loop() -> None:
    """F7: redis-py would look for the running loop, forget to close the connection, and complain of
    it.
    """
    asked = threading.Event()

    def serve() -> None:
        client, _ = server.accept()
        with client:
            while client.recv(4096):
                asked.set()

    async def leave_behind() -> asyncio.Task[object]:
        task = begun(
            Endpoint(Connection, {"port": server.getsockname()[1]}).asked("PING"), "headgate-ask"
        )
        await asyncio.to_thread(asked.wait)
        return task

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        served = threads.submit(serve)
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(leave_behind())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

        stop(task)

        served.result(long())
