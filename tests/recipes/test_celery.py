"""The Celery recipe: real worker processes with a prefork pool."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from headgate import Limiter
from tests.faults.scene import eventually
from tests.http.service import Service
from tests.machine import scaled
from tests.recipes.programs import Program, used

pytestmark = pytest.mark.proof
CAPACITY = 3  # of the recipe
# Celery ends the processes of its pool in this way.
TASKS = """
import os, celery_tasks
for _ in range(3):
    if not (child := os.fork()):
        celery_tasks.fetch("any")
        celery_tasks.worker_process_shutdown.send(sender=None, pid=os.getpid(), exitcode=0)
        os._exit(0)
    os.waitpid(child, 0)
"""
PATIENCE = scaled(20)


@pytest.fixture
def workers(places: dict[str, str]) -> Iterator[list[Program]]:
    """Two workers of two processes each."""
    words = [
        "-m",
        "celery",
        "--app",
        "celery_tasks",
        "worker",
        "--concurrency",
        "2",
        "--pool",
        "prefork",
        "--prefetch-multiplier",
        "1",  # by default the worker that is ready first may take all tasks of a test
        "--loglevel",
        "INFO",
    ]
    with (
        Program(*words, "-n", "one@%h", **places) as one,
        Program(*words, "-n", "two@%h", **places) as two,
    ):
        for worker in (one, two):
            worker.says("ready")
        yield [one, two]


@pytest.fixture
def send(places: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Queue a task of the recipe."""
    with Celery("recipes", broker=places["REDIS_URL"], backend=places["REDIS_URL"]) as app:
        yield lambda path, **options: app.send_task("celery_tasks.fetch", [path], **options)
        app.backend.client.close()


def end(workers: list[Program]) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.ended() for worker in workers] == [0, 0]


async def test_the_processes_of_all_workers_share_the_limits(
    workers: list[Program], send: Callable[..., Any], service: Service, limiter: Limiter
) -> None:
    """Given four processes, then three tasks run at once and the fourth waits.

    A worker that gets a SIGTERM finishes its tasks.
    """
    results = [send("stream") for _ in range(8)]
    await asyncio.to_thread(service.wait_inside, CAPACITY)
    await eventually(lambda: limiter.status().waiting == 1)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        await asyncio.to_thread(worker.says, "Warm shutdown")
    service.finish()
    end(workers)
    assert "Traceback" not in workers[0].text + workers[1].text
    assert [result.status for result in results].count("SUCCESS") >= CAPACITY + 1
    assert (service.most, await used(limiter, "Concurrency")) == (CAPACITY, 0)


async def test_a_soft_time_limit_ends_a_wait_and_the_process_goes_on(
    workers: list[Program], send: Callable[..., Any], service: Service, limiter: Limiter
) -> None:
    send("any").get(timeout=PATIENCE)  # declares the limits
    held = [await limiter.acquire() for _ in range(CAPACITY)]
    late = send("any", soft_time_limit=1)
    await eventually(lambda: limiter.status().waiting == 1)
    with pytest.raises(SoftTimeLimitExceeded):
        await asyncio.to_thread(late.get, timeout=PATIENCE)
    await eventually(lambda: limiter.status().waiting == 0)
    for permit in held:
        await permit.arelease()
    assert await asyncio.to_thread(send("any").get, timeout=PATIENCE) == "GET ok"
    end(workers)


async def test_a_task_whose_turn_is_too_far_away_comes_again_later(
    workers: list[Program], send: Callable[..., Any], service: Service, limiter: Limiter
) -> None:
    """Given a pause longer than `max_sleep`, then the task is queued again for its end."""
    send("any").get(timeout=PATIENCE)
    await limiter.apause(60)
    later = send("any")
    await eventually(lambda: later.status == "RETRY")
    assert (await limiter.astatus()).waiting == 0
    assert service.calls == 1
    again = re.compile(r"Retry in (5\d|60)\b")  # seconds
    await eventually(lambda: any(again.search(worker.text) for worker in workers))
    end(workers)


async def test_a_process_has_given_its_permits_back_when_it_ends(
    places: dict[str, str], service: Service, limiter: Limiter
) -> None:
    with Program("-c", TASKS, **places) as program:
        assert await asyncio.to_thread(program.ended) == 0
    assert (service.calls, await used(limiter, "Concurrency")) == (3, 0)
