"""`python -m benchmarks.server_cost`: microseconds of Redis for each acquire, and for each kind of
call when many wait or hold.

Exit status: 1 when a kind of call takes more than twice as long at the largest size as at the
smallest, 0 when none does. 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from redis import Redis

from benchmarks import tool
from benchmarks.server_cost import batches, growth

SIZES = (10, 1_000, 100_000)
ROUNDS, QUICK_ROUNDS = 9, 3
CYCLES, QUICK_CYCLES = 200, 30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_cost", description=batches.__doc__.partition("\n")[0]
    )
    add = parser.add_argument
    add(
        "--sizes",
        type=int,
        nargs="+",
        default=SIZES,
        metavar="N",
        help=f"waiters and holders, from few to many; {SIZES} unless told",
    )
    add("--quick", action="store_true", help="fewer rounds and cycles: a look, not a figure")
    options = parser.parse_args(arguments)
    return tool.on_private_server(
        lambda url: asyncio.run(measured(url, options.sizes, options.quick))
    )


async def measured(url: str, sizes: Sequence[int], quick: bool) -> bool:
    with Redis.from_url(url) as server:
        await batches.measured(url, server, QUICK_ROUNDS if quick else ROUNDS)
        return await growth.measured(url, server, sizes, QUICK_CYCLES if quick else CYCLES)


if __name__ == "__main__":
    sys.exit(main())
