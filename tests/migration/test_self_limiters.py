"""The surprises of docs/migration/self-limiters.md: self-limiters and headgate, on a server.

Both take the same arguments, so one test serves both: `classes` is either package.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest
import self_limiters

import headgate

DIES = """
import asyncio, os
import {module} as classes

async def hold():
    await classes.Semaphore({name!r}, 1, 1, 1, {url!r}).__aenter__()
    os._exit(0)

asyncio.run(hold())
"""


def test_the_first_token_passes_at_once(admin_url: str, name: str) -> None:
    async def enter(classes: Any) -> None:
        async with classes.TokenBucket(name, 1, 60, 1, admin_url, 1):
            pass

    asyncio.run(enter(headgate))
    with pytest.raises(self_limiters.MaxSleepExceededError):
        asyncio.run(enter(self_limiters))


@pytest.mark.proof
def test_max_sleep_may_be_a_part_of_a_second(admin_url: str, name: str) -> None:
    async def enter_twice(classes: Any) -> None:
        one, other = (classes.Semaphore(name, 1, 0.5, 30, admin_url) for _ in range(2))
        async with one, asyncio.timeout(3), other:
            pass

    with pytest.raises(headgate.MaxSleepExceededError):
        asyncio.run(enter_twice(headgate))
    with pytest.raises(TimeoutError):
        asyncio.run(enter_twice(self_limiters))


def test_tasks_pass_in_order(admin_url: str, name: str) -> None:
    async def order(classes: Any) -> list[int]:
        passed: list[int] = []

        async def enter(number: int) -> None:
            async with classes.Semaphore(name, 1, None, 30, admin_url):
                passed.append(number)

        await asyncio.gather(*[enter(number) for number in range(50)])
        return passed

    assert asyncio.run(order(headgate)) == list(range(50))
    # Theirs mostly do not, but they may.
    assert any(asyncio.run(order(self_limiters)) != list(range(50)) for _ in range(20))


@pytest.mark.proof
def test_a_cancelled_task_gives_back(admin_url: str, name: str) -> None:
    def semaphore(classes: Any) -> Any:
        return classes.Semaphore(name, 2, 1, 30, admin_url)

    async def enter(classes: Any) -> None:
        async with semaphore(classes):
            await asyncio.sleep(0)

    async def cancel_half(classes: Any) -> None:
        for number in range(100):
            tasks = [asyncio.create_task(enter(classes)) for _ in range(10)]
            await asyncio.sleep(0.0005 * (number % 5))  # so that each step of an entry is cancelled
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async with semaphore(classes), semaphore(classes):
                pass  # both permits are back

    asyncio.run(cancel_half(headgate))
    with pytest.raises(self_limiters.MaxSleepExceededError):
        asyncio.run(cancel_half(self_limiters))


@pytest.mark.proof
def test_the_permit_of_a_killed_process_comes_back(admin_url: str, name: str) -> None:
    async def enter(classes: Any) -> None:
        async with classes.Semaphore(name, 1, 10 if classes is headgate else 3, 1, admin_url):
            pass

    def hold_and_die(module: str) -> None:
        program = DIES.format(module=module, name=name, url=admin_url)
        subprocess.run([sys.executable, "-c", program], check=True)

    hold_and_die("headgate")
    asyncio.run(enter(headgate))
    hold_and_die("self_limiters")
    with pytest.raises(self_limiters.MaxSleepExceededError):
        asyncio.run(enter(self_limiters))


@pytest.mark.proof
def test_a_missing_server_is_an_error_at_once(name: str) -> None:
    async def enter(classes: Any) -> None:
        async with classes.Semaphore(name, 1, None, 30, "redis://127.0.0.1:1"):
            pass

    with pytest.raises(headgate.RedisError):
        asyncio.run(enter(headgate))
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        asyncio.run(enter(self_limiters))
    assert time.monotonic() - began > 25
