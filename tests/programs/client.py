"""A limited HTTP client on strings: it makes the calls of its input, line by line, and prints their
results.

usage: client.py URL name kind limits options        (kind as in tests/http/clients.py, limits and
options as Python) Says "ready"; hears the address of a call, and says its status, or "held N" if
the limiter would hold it for N seconds.
"""

from __future__ import annotations

import asyncio
import sys

import headgate
from headgate import Limiter, MaxSleepExceededError
from tests.http.clients import CLIENTS


async def main(url: str, name: str, kind: str, limits: str, options: str) -> None:
    limiter = Limiter(name, *eval(limits, vars(headgate)), store=url, max_sleep=1.0)
    client = CLIENTS[kind]([limiter], eval(options))
    await limiter.astatus()
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            print(await client.get(line), flush=True)
        except MaxSleepExceededError as refused:
            print("held", round(refused.retry_after), flush=True)
    await client.close()


asyncio.run(main(*sys.argv[1:]))
