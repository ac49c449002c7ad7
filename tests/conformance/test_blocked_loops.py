"""A blocking acquire in a thread whose event loop runs: what it waits for may never happen.

Each story is a program of its own: in the process of the tests other threads run.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.processes import command, environment

PROGRAM = """
import asyncio, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from headgate import Concurrency, Limiter, Rate

api = Limiter("api", {limits})

def block():
    with api:
        return "entered"

async def main():
    {story}

print(asyncio.run(main()))
"""
ALONE = {
    "its own block": "async with api: return block()",
    "a permit of its own": "permit = await api.acquire(); return block()",
    "a block of another task": """
    async def other():
        async with api: await asyncio.sleep(60)
    task = asyncio.create_task(other())
    await asyncio.sleep(0.01)
    return block()""",
    "an idle worker thread": """
    await asyncio.to_thread(int)
    async with api: return block()""",
}


def ended(story: str, limits: str = "Concurrency(1)") -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(limits=limits, story=story)
    return subprocess.run(
        [*command(text)[:1], "-c", text], env=environment(), capture_output=True, text=True, timeout=20, check=False
    )


@pytest.mark.parametrize("story", ALONE)
def test_a_blocking_acquire_that_only_its_own_loop_could_end_raises(story: str) -> None:
    """Promise 10: it would wait for ever, and the error says what to write instead."""
    done = ended(ALONE[story])
    assert "RuntimeError: A blocking acquire of limiter 'api' would wait for ever" in done.stderr
    assert "`async with`" in done.stderr


def test_a_blocking_acquire_that_waits_for_time_passes_and_warns_once() -> None:
    """Promise 10: two calls block the loop for 50 ms each."""
    done = ended("block(); block(); return block()", limits="Rate(20, per=1, capacity=1)")
    assert done.stdout == "entered\n", done.stderr
    assert done.stderr.count("RuntimeWarning: A blocking acquire of limiter 'api' waits, and blocks the event loop") == 1


def test_a_blocking_acquire_that_another_thread_ends_passes_and_warns_once() -> None:
    """Promise 10: a thread holds the permit, and releases it."""
    done = ended(
        """
    held = threading.Event()
    def hold():
        with api:
            held.set()
            threading.Event().wait(0.2)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return block()"""
    )
    assert done.stdout == "entered\n", done.stderr
    assert done.stderr.count("RuntimeWarning: A blocking acquire of limiter 'api' waits, and blocks the event loop") == 1


def test_a_blocking_acquire_that_need_not_wait_says_nothing() -> None:
    """Promise 10: in a coroutine, too."""
    done = ended("return block()")
    assert (done.stdout, done.stderr) == ("entered\n", "")


CLOSED = """
import asyncio, gc
from headgate import Concurrency, Limiter, Rate

api = Limiter("api", {limits})
loop = asyncio.new_event_loop()
held = api.acquire_sync()

async def wait():
    {way}

async def begin():
    tasks.extend(asyncio.ensure_future(wait()) for _ in range(3))
    await asyncio.sleep(0)

tasks = []
loop.set_exception_handler(lambda loop, context: None)  # of asyncio: a task was destroyed
loop.run_until_complete(begin())
{before}
loop.close()
tasks.clear()
gc.collect()
{after}
with api:
    print(api.status().waiting, api.status().limits[0].used)
"""
ENTERS = {"limiter": "async with api: pass", "acquire": "async with api.acquire(): pass"}


@pytest.mark.parametrize("way", ENTERS)
@pytest.mark.parametrize("released", ["before", "after"])
@pytest.mark.parametrize("limits", ["Concurrency(1)", "Concurrency(1), Rate(10**6, per=1)"], ids=["places", "and a rate"])
def test_a_loop_that_is_closed_under_waiters_prints_nothing_and_keeps_nothing(way: str, released: str, limits: str) -> None:
    """F7, F9, S7: the permit is released before the loop is closed, on its way to a waiter, or afterwards."""
    release = {"before": "", "after": "", released: "held.release()"}
    text = CLOSED.format(limits=limits, way=ENTERS[way], **release)
    done = subprocess.run(
        [*command(text)[:1], "-c", text], env=environment(), capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")


@pytest.mark.parametrize("way", ENTERS)
def test_an_asyncio_run_that_ends_while_tasks_wait_prints_nothing(way: str) -> None:
    """F9, S7: asyncio cancels them, and the next run finds all free."""
    text = f"""
import asyncio
from headgate import Concurrency, Limiter
api = Limiter("api", Concurrency(1))
async def wait():
    {ENTERS[way]}
async def main():
    async with api:
        for _ in range(3): asyncio.ensure_future(wait())
        await asyncio.sleep(0)
asyncio.run(main())
with api: print(api.status().waiting, api.status().limits[0].used)
"""
    done = subprocess.run(
        [*command(text)[:1], "-c", text], env=environment(), capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")
