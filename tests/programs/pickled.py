"""Sends a limiter to a pool of processes: pickled.py STORE NAME METHOD.

Says how many calls were granted, here and there.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from headgate import Limiter


def tries(limiter: Limiter) -> bool:
    return bool(limiter.try_acquire())


def main(store: str, name: str, method: str) -> None:
    limiter = Limiter(name, "5/hour", store=store)
    here = tries(limiter)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        there = list(pool.map(tries, [limiter, limiter["key"]] * 10))
    print(here, sum(there[::2]), sum(there[1::2]), tries(limiter))


if __name__ == "__main__":
    main(*sys.argv[1:])
