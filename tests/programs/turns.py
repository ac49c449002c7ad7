"""A process at work: ten callers take turns, and count the callers inside in a server.

usage: turns.py URL name limit ledger counter turns        (ledger: the URL of a server for
counting) Says its number, which is its field in the hashes `counter` (the callers inside) and
`counter-visits`. The most that all fields of `counter` ever were together is kept in
`counter-most`. Says "visits N" when all callers had their turns.
"""

from __future__ import annotations

import asyncio
import os
import sys

from redis.asyncio import Redis

import headgate
from headgate import Limiter
from tests.faults import haste

ENTERED = """
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('HINCRBY', KEYS[1] .. '-visits', ARGV[1], 1)
local inside = 0
for _, number in ipairs(redis.call('HVALS', KEYS[1])) do inside = inside + number end
local most = KEYS[1] .. '-most'
if inside > tonumber(redis.call('GET', most) or 0) then redis.call('SET', most, inside) end
"""


async def main(url: str, name: str, limit: str, ledger: str, counter: str, turns: str) -> None:
    limiter = Limiter(name, eval(limit, vars(headgate)), store=url)
    me, visits = os.getpid(), 0

    async def caller() -> None:
        nonlocal visits
        for _ in range(int(turns)):
            async with limiter.acquire() as permit:
                await redis.eval(ENTERED, 1, counter, me)
                await redis.hincrby(counter, me, -1)
                assert not permit.lost
                visits += 1

    async with Redis.from_url(ledger) as redis:
        await redis.ping()
        print(me, flush=True)
        await asyncio.gather(*(caller() for _ in range(10)))
    print("visits", visits, flush=True)


haste.hurry()
asyncio.run(main(*sys.argv[1:]))
