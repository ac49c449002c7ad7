"""The last requests of a process before a normal end reach the server, or a line on stderr says
which did not, and why.

Every process here is a real one: see programs/last_words.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.redis import queue
from headgate.stores.redis.transport import portal, shutdown
from tests.faults.proxy import Proxy
from tests.faults.scene import once_back
from tests.machine import scaled
from tests.processes import command, complaints_of, environment
from tests.servers import Server, dead_port

FAR = 0.15  # seconds for each way to the server and back
START = scaled(5.0)  # seconds for Python to start
BOUND = scaled(shutdown.LONGEST) + portal.CLOSING + 1.0 + START  # 1.0: wait at a loop's end
STATEMENTS = ["update", "pause", "drain"]  # which a process can make without a permit
OF_PERMITS = ["release", "settle"]
WHERES = ["main", "loop", "child", "child of a forkserver", "exit"]
SOME = [("update", "main"), ("pause", "exit"), ("settle", "loop")]
ALONE = [*((what, where) for what in STATEMENTS for where in WHERES), ("pause", "cancelled")]
HELD = [(what, where) for what in OF_PERMITS for where in [*WHERES, "cancelled"]]
OTHERS = [case for case in ALONE + HELD if case not in SOME]
CASES = [*SOME, *(pytest.param(*case, marks=pytest.mark.proof) for case in OTHERS)]
LIMITS = Rate(100, per=10**6), Concurrency(2, lease=600)  # as of programs/last_words.py


def run(*arguments: str) -> tuple[list[str], float]:
    """The lines on stderr of a process that ended well, and the seconds that it took."""
    start = time.monotonic()
    done = subprocess.run(
        command("last_words", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return complaints_of(done.stderr), time.monotonic() - start


async def seen(limiter: Limiter, what: str) -> bool:
    """Whether the server knows of it."""
    if what == "pause":
        refusal = await limiter.atry_acquire()
        return not refusal and (refusal.retry_after or 0) > 3000
    rate, permits = (await limiter.astatus()).limits
    left = {"update": 50, "drain": 12, "release": 99, "settle": 70}[what]
    return (rate.left, permits.used) == (left, 0)


@pytest.mark.parametrize(("what", "where"), CASES)
async def test_the_last_requests_of_a_process_reach_a_far_server(
    name: str, own_server: Server, own_proxy: Proxy, own_admin: Redis, what: str, where: str
) -> None:
    """L6: each statement, and a release and a settlement of a permit. Three round trips of 300 ms
    (the greeting, the refusal, the library) are shorter than the end of a process may take.
    """
    for way in (own_proxy.requests, own_proxy.replies, own_proxy.rest):
        way.delay = FAR

    complaints, _ = await asyncio.to_thread(run, own_proxy.url, name, what, where)

    assert complaints == []
    assert await seen(Limiter(name, *LIMITS, store=own_server.url), what)


@pytest.mark.proof
@pytest.mark.parametrize(("what", "where"), [*ALONE, ("update", "blocked loop")])
def test_without_a_server_one_line_on_stderr_names_the_request_that_was_not_sent(
    name: str, what: str, where: str
) -> None:
    """L6: the line says which limiter, which request, and why. The process ends in bounded time."""
    complaints, seconds = run(f"redis://127.0.0.1:{dead_port()}", name, what, where)

    assert len(complaints) == 1
    assert f"{what}()" in complaints[0]
    assert repr(name) in complaints[0]
    assert "ConnectionError" in complaints[0]
    assert seconds <= BOUND


LEFT = """
import asyncio, sys
from headgate import Concurrency, Limiter
limiter = Limiter(sys.argv[2], Concurrency(5, lease=600), store=sys.argv[1])
async def hold(entered):
    async with limiter:
        entered.set()
        await asyncio.sleep(100)
async def main():
    entered = asyncio.Event()
    tasks.append(asyncio.ensure_future(hold(entered)))
    await entered.wait()
tasks = []
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
print("entered", flush=True)
input()
"""


async def test_a_permit_in_a_loop_that_was_left_open_goes_back_at_the_end_of_the_process(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """L6: with no complaint, also if the server answers only after a second."""
    limiter = Limiter(name, Concurrency(5, lease=600), store=redis_url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LEFT, proxy.url, name),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"entered\n"
    assert (await limiter.astatus()).limits[0].used == 1
    for way in (proxy.requests, proxy.replies, proxy.rest):
        way.delay = 0.5
    _, complaints = await process.communicate(b"end\n")

    assert "before the server confirmed" not in complaints.decode()
    assert (await limiter.astatus()).limits[0].used == 0


@pytest.mark.proof
async def test_a_process_ends_in_bounded_time_though_the_server_is_silent(
    name: str, proxy: Proxy
) -> None:
    """L6: it accepts connections, and answers nothing."""
    proxy.hold()

    complaints, seconds = await asyncio.to_thread(run, proxy.url, name, "update", "main")

    assert len(complaints) == 1
    assert seconds <= BOUND


async def test_a_server_that_comes_back_in_time_receives_the_last_requests(
    name: str, own_server: Server
) -> None:
    """L6: the ending process tries again until then."""
    own_server.kill()
    ends = asyncio.create_task(asyncio.to_thread(run, own_server.url, name, "drain", "main"))
    await asyncio.to_thread(own_server.start)

    complaints, _ = await ends

    assert complaints == []
    assert await seen(Limiter(name, *LIMITS, store=own_server.url), "drain")


async def test_requests_behind_a_call_that_fails_are_sent_again(
    name: str, own_server: Server
) -> None:
    """L6: the server is gone for a moment, and requests from that time hold when it is back."""
    limiter = Limiter(name, *LIMITS, store=own_server.url)
    own_server.kill()
    limiter.update(Rate(50, per=10**6), LIMITS[1])  # on its way
    await asyncio.sleep(0)
    limiter.pause(3600)  # behind it
    limiter.drain(requests=12)
    with pytest.raises(StoreError):
        await limiter.astatus()

    own_server.start()
    await once_back(limiter.astatus)
    assert await seen(limiter, "drain")
    assert await seen(limiter, "pause")


async def test_a_drain_that_reaches_no_server_in_time_is_given_up_with_a_warning(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """L6: the rest of a budget is out of date later."""
    monkeypatch.setattr(queue, "CHANGE_TTL", 0.0)
    limiter = Limiter(name, Rate(100, per=10**6), store=Redis(port=dead_port()))

    limiter.update(Rate(50, per=10**6))
    for _ in range(5):  # until it is on its way
        await asyncio.sleep(0)
    limiter.drain(requests=12)
    with pytest.raises(StoreError):
        await limiter.astatus()

    assert f"{name!r}: the server did not hear of a drain" in caplog.messages[0]
