"""A process on strings: it follows its input, line by line, and prints the results.

usage: puppet.py URL name hurried|calm limit...        (limits as Python: "Concurrency(1,
lease=0.3)") Says "ready"; hears

    acquire CALLER  says "CALLER asks" when that was sent, and "CALLER inside FENCE" when granted
                    (or "CALLER StoreError")
    stay CALLER     says "CALLER inside FENCE" from a block that is cancelled when its lease is
                    lost, then "CALLER ended LeaseLostError";
                    "CALLER went on" would be said three quarters of a second after it entered
    release CALLER  says "CALLER left True", or False if it was not held any more
    lost CALLER     says "CALLER lost True", or False
    block seconds   stops its event loop for so long, then says "blocked"
"""

from __future__ import annotations

import asyncio
import sys
import time

import headgate
from headgate import LeaseLostError, Limiter, Permit, StoreError
from tests.faults import haste

permits: dict[str, Permit] = {}


def say(*words: object) -> None:
    print(*words, flush=True)


async def acquire(limiter: Limiter, caller: str) -> None:
    asked = asyncio.ensure_future(limiter.acquire())
    await asyncio.sleep(0)
    await limiter.astatus()  # arrives behind it
    say(caller, "asks")
    try:
        permits[caller] = await asked
    except StoreError:
        say(caller, "StoreError")
    else:
        say(caller, "inside", permits[caller].fence)


async def stay(limiter: Limiter, caller: str) -> None:
    try:
        async with limiter.acquire() as permit:
            say(caller, "inside", permit.fence)
            await asyncio.sleep(0.75)
            say(caller, "went on")
    except LeaseLostError:
        say(caller, "ended LeaseLostError")


async def release(limiter: Limiter, caller: str) -> None:
    say(caller, "left", await permits.pop(caller).arelease())


async def lost(limiter: Limiter, caller: str) -> None:
    say(caller, "lost", permits[caller].lost)


async def block(limiter: Limiter, seconds: str) -> None:
    time.sleep(float(seconds))  # noqa: ASYNC251 - that is the fault
    say("blocked")


async def main(url: str, name: str, *limits: str) -> None:
    limiter = Limiter(
        name, *(eval(limit, vars(headgate)) for limit in limits), store=url, on_lost="cancel"
    )
    verbs = {"acquire": acquire, "stay": stay, "release": release, "lost": lost, "block": block}
    tasks = set()
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, word = line.split()
        tasks.add(asyncio.create_task(verbs[verb](limiter, word)))
    for task in tasks:
        task.cancel()


url, name, pace, *limits = sys.argv[1:]
if pace == "hurried":
    haste.hurry()
asyncio.run(main(url, name, *limits))
