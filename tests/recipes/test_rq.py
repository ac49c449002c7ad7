"""The RQ recipe: real workers, which fork a process for each job."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from math import ceil

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job

from headgate import Limiter
from tests.faults.scene import eventually
from tests.http.service import Service
from tests.machine import scaled_now
from tests.recipes.programs import Program, used
from tests.servers import Server

pytestmark = pytest.mark.proof
CAPACITY = 3  # of the recipe
# RQ's worker ends the process of a job in this way.
JOBS = """
import os, rq_jobs
for _ in range(3):
    if not (child := os.fork()):
        rq_jobs.fetch("any")
        os._exit(0)
    os.waitpid(child, 0)
"""
WORKERS = 4


@pytest.fixture
def workers(places: dict[str, str]) -> Iterator[list[Program]]:
    words = ["-m", "rq.cli", "worker", "--with-scheduler", "--url", places["REDIS_URL"]]
    started: list[Program] = []
    try:
        started += [Program(*words, **places) for _ in range(WORKERS)]
        for worker in started:
            worker.says("Listening on default")
        yield started
    finally:
        for worker in started:
            worker.__exit__()


@pytest.fixture
def queue(own_server: Server) -> Iterator[Queue]:
    with Redis.from_url(own_server.url) as client:
        yield Queue(connection=client)


async def succeeded(job: Job) -> object:
    """Its result, once it is there."""
    await eventually(lambda: job.get_status() == "finished")
    return job.return_value()


def end(workers: list[Program]) -> None:
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        # RQ's handler raises. In a finalizer, Python drops that exception, and the worker goes on.
        if not worker.ends_without("Exception ignored in"):
            worker.signal(signal.SIGTERM)
    assert [worker.ended() for worker in workers] == [0] * WORKERS


async def test_the_workers_share_the_limits_and_each_job_gives_its_permit_back(
    workers: list[Program], queue: Queue, service: Service, limiter: Limiter
) -> None:
    """Given four workers, then three jobs run at once and the fourth waits.

    A worker that gets a SIGTERM finishes its job.
    """
    jobs = [queue.enqueue("rq_jobs.fetch", "stream") for _ in range(6)]
    await asyncio.to_thread(service.wait_inside, CAPACITY)
    await eventually(lambda: limiter.status().waiting == 1)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        await asyncio.to_thread(worker.says, "warm shut down")
    service.finish()
    assert [await asyncio.to_thread(worker.ended) for worker in workers] == [0] * WORKERS
    assert [job.get_status() for job in jobs].count("finished") == WORKERS
    assert (service.most, await used(limiter, "Concurrency")) == (CAPACITY, 0)


async def test_a_time_out_of_a_job_ends_its_wait(
    workers: list[Program], queue: Queue, service: Service, limiter: Limiter
) -> None:
    await succeeded(queue.enqueue("rq_jobs.fetch", "any"))  # declares the limits
    held = [await limiter.acquire() for _ in range(CAPACITY)]
    # Long enough to import the job on a busy machine; a wait ends after 10 s, the recipe's
    # max_sleep.
    late = queue.enqueue("rq_jobs.fetch", "any", job_timeout=min(8, ceil(scaled_now(1))))
    await eventually(lambda: limiter.status().waiting == 1)
    await eventually(lambda: late.get_status() == "failed")
    await eventually(lambda: limiter.status().waiting == 0)
    for permit in held:
        await permit.arelease()
    assert await succeeded(queue.enqueue("rq_jobs.fetch", "any")) == "GET ok"
    end(workers)


async def test_a_job_whose_turn_is_too_far_away_comes_again_later(
    workers: list[Program], queue: Queue, service: Service, limiter: Limiter
) -> None:
    """Given a pause longer than `max_sleep`, then the job is scheduled for its end."""
    await succeeded(queue.enqueue("rq_jobs.fetch", "any"))
    await limiter.apause(60)
    later = queue.enqueue("rq_jobs.fetch", "any")
    await eventually(lambda: later.get_status() == "scheduled")
    assert (service.calls, (await limiter.astatus()).waiting) == (1, 0)
    end(workers)


async def test_a_job_has_given_its_permit_back_when_it_returns(
    places: dict[str, str], service: Service, limiter: Limiter
) -> None:
    with Program("-c", JOBS, **places) as program:
        assert await asyncio.to_thread(program.ended) == 0
    assert (service.calls, await used(limiter, "Concurrency")) == (3, 0)
