"""Threads and an event loop share one limiter: at most three of them hash at the same time.

Run it: `python examples/threads.py`
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

from headgate import Concurrency, Limiter

limiter = Limiter("hashing", Concurrency(3))
lock = threading.Lock()
inside = most = 0


def digest(number: int) -> str:
    """Real work, and a count of the workers at the same time."""
    global inside, most
    with lock:
        inside += 1
        most = max(most, inside)
    try:
        return hashlib.pbkdf2_hmac("sha256", str(number).encode(), b"salt", 10_000).hex()
    finally:
        with lock:
            inside -= 1


def in_a_thread(number: int) -> str:
    with limiter:
        return digest(number)


async def in_a_task(number: int) -> str:
    async with limiter:
        return await asyncio.to_thread(digest, number)


async def tasks(numbers: range) -> list[str]:
    return await asyncio.gather(*map(in_a_task, numbers))


def main() -> None:
    with ThreadPoolExecutor(8) as pool:
        from_a_loop = pool.submit(asyncio.run, tasks(range(20)))
        from_threads = list(pool.map(in_a_thread, range(20)))
    same = from_threads == from_a_loop.result()
    print(f"20 calls of threads and 20 of tasks, at most {most} at once, the same digests: {same}")


if __name__ == "__main__":
    main()
