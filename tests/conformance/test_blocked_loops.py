"""A blocking acquire in a thread whose event loop runs: the event that would end its wait may never
happen.

Each scenario is a program of its own, because other threads run in the process of the tests.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.machine import scaled_now
from tests.processes import command, environment

PROGRAM = """
import asyncio, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from headgate import Concurrency, Limiter, Rate

api = Limiter({name!r}, {limits}, store={url!r})

def block(**options):
    with api.acquire(**options) if options else api:
        return "entered"

async def main():
    {story}

print(asyncio.run(main()))
"""
ALONE = {
    "its own block": "async with api: return block()",
    "an acquire in its own block": "async with api: return block(cost=1)",
    "a permit of its own": "permit = await api.acquire(); return block()",
    "a block of another task": """
    inside = asyncio.Event()
    async def other():
        async with api:
            inside.set()
            await asyncio.sleep(60)
    task = asyncio.create_task(other())
    await inside.wait()
    return block()""",
    "an idle worker thread": """
    await asyncio.to_thread(int)
    async with api: return block()""",
}


@pytest.fixture
def url(store_kind: str, request: pytest.FixtureRequest) -> str | None:
    return None if store_kind == "memory" else str(request.getfixturevalue("redis_url"))


def ended(
    story: str, name: str, url: str | None, limits: str = "Concurrency(1)"
) -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(name=name, url=url, limits=limits, story=story)
    return subprocess.run(
        [*command(text)[:1], "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled_now(20),
        check=False,
    )


@pytest.mark.parametrize("story", ALONE)
def test_a_blocking_acquire_that_only_its_own_loop_could_end_raises(
    story: str, name: str, url: str | None
) -> None:
    """H1: it would wait for ever, and the error says what to write instead."""
    done = ended(ALONE[story], name, url)
    assert (
        f"RuntimeError: A blocking acquire of limiter {name!r} would wait for ever" in done.stderr
    )
    assert "`async with`" in done.stderr


def test_a_blocking_acquire_raises_when_the_last_other_thread_ends(name: str) -> None:
    """H1: given a thread whose permit passes to a task of the blocked loop, when the thread ends,
    then no thread is left that could release a permit.
    """
    story = """
    held, waits = threading.Event(), threading.Event()
    def hold():
        with api:
            held.set()
            waits.wait()
    threading.Thread(target=hold).start()
    held.wait()
    async def other():
        async with api: pass
    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    return block(on_wait=lambda _: waits.set())"""
    done = ended(story, name, None)
    assert f"RuntimeError: A blocking acquire of limiter {name!r} would wait" in done.stderr


def test_a_blocking_acquire_with_max_sleep_is_refused_after_that_time(
    name: str, url: str | None
) -> None:
    """H1: it does not wait for ever."""
    done = ended("async with api: return block(max_sleep=0.05)", name, url)
    assert "MaxSleepExceededError" in done.stderr


def test_a_blocking_acquire_under_a_rate_passes_and_warns_once(name: str, url: str | None) -> None:
    """H1: two calls block the loop for half a second each.

    The warning names the line that blocks.
    """
    done = ended("block(); block(); return block()", name, url, limits="Rate(2, per=1, capacity=1)")
    assert done.stdout == "entered\n", done.stderr
    line = PROGRAM[: PROGRAM.index("    with api.acquire")].count("\n") + 1
    assert f"<string>:{line}: RuntimeWarning" in done.stderr
    assert (
        done.stderr.count(
            f"RuntimeWarning: A blocking acquire of limiter {name!r} waits, and blocks the event "
            "loop"
        )
        == 1
    )


def test_a_blocking_acquire_for_a_permit_of_another_thread_passes_and_warns_once(
    name: str, url: str | None
) -> None:
    """H1: a thread holds the permit, and releases it."""
    done = ended(
        name=name,
        url=url,
        story="""
    held = threading.Event()
    def hold():
        with api:
            held.set()
            while api.status().waiting == 0:
                pass
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    return block()""",
    )
    assert done.stdout == "entered\n", done.stderr
    assert (
        done.stderr.count(
            f"RuntimeWarning: A blocking acquire of limiter {name!r} waits, and blocks the event "
            "loop"
        )
        == 1
    )


RELEASED = {
    "a thread": "threading.Thread("
    "target=lambda: (threading.Event().wait(0.2), permit.release())).start()",
    "a timer": "threading.Timer(0.2, permit.release).start()",
}


@pytest.mark.parametrize("way", RELEASED)
def test_in_memory_a_blocking_acquire_waits_for_a_permit_that_another_thread_will_release(
    way: str, name: str
) -> None:
    """H1: a task of the blocked loop was granted the permit.

    On Redis its release would wait for that loop.
    """
    done = ended(f"permit = await api.acquire(); {RELEASED[way]}; return block()", name, None)
    assert done.stdout == "entered\n", done.stderr


def test_a_blocking_acquire_that_need_not_wait_gives_no_warning(name: str, url: str | None) -> None:
    """H1: this holds in a coroutine, too."""
    done = ended("return block()", name, url)
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
@pytest.mark.parametrize(
    "limits",
    ["Concurrency(1)", "Concurrency(1), Rate(10**6, per=1)"],
    ids=["permits", "and a rate"],
)
def test_a_loop_that_is_closed_before_its_waiters_prints_nothing_and_holds_nothing(
    way: str, released: str, limits: str
) -> None:
    """F7, F9, S7: the permit is released before the loop is closed, on its way to a waiter, or
    afterwards.
    """
    release = {"before": "", "after": "", released: "held.release()"}
    text = CLOSED.format(limits=limits, way=ENTERS[way], **release)
    done = subprocess.run(
        [*command(text)[:1], "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled_now(20),
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")


@pytest.mark.parametrize("way", ENTERS)
def test_an_asyncio_run_that_ends_while_tasks_wait_prints_nothing(way: str) -> None:
    """F9, S7: asyncio cancels the tasks, and the next run finds all permits free."""
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
        [*command(text)[:1], "-c", text],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=scaled_now(20),
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")
