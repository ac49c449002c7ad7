"""`python -m benchmarks.pauses_of_keys`: the cost of the pause that a limiter shares with its keys,
and how late it holds them.

Here one event loop measures on a redis-server of its own. A second client in the loop stands for
another process. Each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from unittest import mock

from redis import Redis

from benchmarks.server import ServerMissingError, private_server
from headgate import Limiter, Rate
from headgate.stores.redis.transport import subscriber

PLENTY = Rate(10_000_000, per=1)
PAUSE = 60.0
READ = "return redis.call('HMGET', KEYS[1], 'limits', 'state')"
READ_BOTH = "redis.call('HGET', KEYS[2], 'pause') " + READ


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pauses_of_keys")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="9 unless told")
    parser.add_argument("--acquires", type=int, default=1000, metavar="N", help="1000 unless told")
    args = parser.parse_args(arguments)
    try:
        with private_server() as url:
            for each in measured(url, args.rounds, args.acquires):
                print(each)
    except ServerMissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    return 0


def measured(url: str, rounds: int, acquires: int) -> Iterator[str]:
    yield from asyncio.run(hot_path(url, rounds, acquires))
    yield from asyncio.run(first_uses(url, rounds))
    told = asyncio.run(delays(url, "told", rounds))
    with mock.patch.object(subscriber.Subscriptions, "listen"):  # there are no notifications
        untold = asyncio.run(delays(url, "untold", max(1, rounds // 3)))
    yield line("a pause holds a key of another process after", told)
    yield line("the same without any notification", untold)
    yield from script_costs(url, rounds, acquires)


def line(what: str, seconds: Sequence[float]) -> str:
    return f"{what:60} {median(seconds) * 1_000_000:12,.1f} us"


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start = perf_counter()
    await work()
    return perf_counter() - start


async def hot_path(url: str, rounds: int, acquires: int) -> list[str]:
    """One by one, by turns, so that noise is the same for both."""
    whole, key = Limiter("hot", PLENTY, store=url), Limiter("keyed", PLENTY, store=url)["k"]

    async def visits(limiter: Limiter) -> None:
        for _ in range(acquires):
            async with limiter:
                pass

    times: dict[Limiter, list[float]] = {whole: [], key: []}
    for _ in range(rounds):
        for limiter, its in times.items():
            its.append(await timed(lambda limiter=limiter: visits(limiter)) / acquires)
    return [
        line("an acquire of a limiter", times[whole]),
        line("an acquire of a key", times[key]),
    ]


async def first_uses(url: str, rounds: int) -> list[str]:
    """The first key of a limiter asks for the pause, and the next ones do not."""
    first, second, plain = [], [], []
    for number in range(rounds):
        limiter = Limiter(f"new-{number}", PLENTY, store=url)
        plain.append(await timed(Limiter(f"plain-{number}", PLENTY, store=url).acquire))
        first.append(await timed(limiter["a"].acquire))
        second.append(await timed(limiter["b"].acquire))
    return [
        line("the first acquire of a limiter", plain),
        line("the first acquire of its first key", first),
        line("the first acquire of another key", second),
    ]


async def delays(url: str, name: str, rounds: int) -> list[float]:
    """From the call of `apause` to the last acquire of a key that passes in another process."""
    return [await delay(url, f"{name}-{number}") for number in range(rounds)]


async def delay(url: str, name: str) -> float:
    key = Limiter(name, PLENTY, store=url)["k"]
    with Redis.from_url(url, socket_connect_timeout=4.9) as client:
        other = Limiter(name, PLENTY, store=client)
        await key.acquire()
        await asyncio.sleep(0.05)  # the subscription stands
        start = last = perf_counter()
        await other.apause(PAUSE)
        while await key.atry_acquire():
            last = perf_counter()
        await other.aresume()
    return last - start


def script_costs(url: str, rounds: int, acquires: int) -> list[str]:
    """The way that was not taken: each script of a key also reads the state of the whole."""
    with Redis.from_url(url) as client:
        client.hset("state", mapping={"limits": "x" * 40, "state": "y" * 120})
        times: dict[str, list[float]] = {READ: [], READ_BOTH: []}
        for _ in range(rounds):
            for script, its in times.items():
                its.append(of_server(client, script, acquires))
    return [
        line("server: a script that reads the state of a key", times[READ]),
        line("server: the same, with the pause of the whole", times[READ_BOTH]),
    ]


def of_server(client: Redis, script: str, count: int) -> float:
    """Seconds of the server for each call, by its own count."""
    digest = client.script_load(script)
    client.config_resetstat()
    for _ in range(count):
        client.evalsha(digest, 2, "state", "whole")
    usage = client.info("commandstats")["cmdstat_evalsha"]
    return float(usage["usec_per_call"]) / 1_000_000


if __name__ == "__main__":
    sys.exit(main())
