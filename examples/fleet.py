"""A fleet: four processes share one limit on Redis, and each waits its turn among all of them.

Each job hashes some bytes and writes down when it began and ended; the parent then counts how many
ran at the same time. Run it: `python examples/fleet.py redis://localhost:6379`
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
import uuid
from typing import NamedTuple

from headgate import Concurrency, Limiter, Rate, StoreError

PROCESSES, JOBS = 4, 5


class Job(NamedTuple):
    """When it ran, by the monotonic clock that all processes of one machine share, and the fence of
    its permit.
    """

    began: float
    ended: float
    fence: int


async def job(limiter: Limiter) -> Job:
    async with limiter.acquire() as permit:
        began = time.monotonic()
        await asyncio.to_thread(hashlib.pbkdf2_hmac, "sha256", b"headgate", b"salt", 20_000)
        return Job(began, time.monotonic(), permit.fence)


def shared_limiter(url: str, name: str) -> Limiter:
    return Limiter(name, Concurrency(2), Rate(100, per=1), store=url)


async def work(url: str, name: str) -> None:
    """One process of the fleet."""
    limiter = shared_limiter(url, name)
    print(json.dumps(await asyncio.gather(*(job(limiter) for _ in range(JOBS)))))


async def start(*arguments: str) -> list[Job]:
    command = (sys.executable, __file__, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        sys.exit(f"A process of the fleet ended with exit code {process.returncode}.")
    return [Job(*job) for job in json.loads(output)]


def most_at_once(jobs: list[Job]) -> int:
    return max(sum(other.began <= job.began < other.ended for other in jobs) for job in jobs)


async def main(url: str) -> None:
    # A name of its own for each run; in a program it is always the same one.
    name = f"fleet-{uuid.uuid4().hex[:8]}"
    await shared_limiter(
        url, name
    ).astatus()  # a server that is not there should be known before anything starts
    shares = await asyncio.gather(*(start(url, name) for _ in range(PROCESSES)))
    jobs = [job for share in shares for job in share]
    fences = {job.fence for job in jobs}
    most = most_at_once(jobs)
    print(
        f"{len(jobs)} jobs in {PROCESSES} processes, at most {most} at once, {len(fences)} "
        "different fences"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("Where is the server? python examples/fleet.py redis://localhost:6379")
    try:
        asyncio.run(main(sys.argv[1]) if len(sys.argv) == 2 else work(*sys.argv[1:]))
    except StoreError as error:
        sys.exit(str(error))
