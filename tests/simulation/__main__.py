"""A longer run, on demand: `python -m tests.simulation --seeds 0 10000 [--with-all] [--jobs 2]`

A seed that breaks an invariant is printed at once, with a shrunk trace. The last line says how much
was simulated.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from tests.simulation.plan import OPEN
from tests.simulation.tally import Tally, lived, workers


def main() -> int:
    words = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__.splitlines()[0]
    )
    words.add_argument("--seeds", nargs=2, type=int, default=(0, 1000), metavar=("FIRST", "END"))
    words.add_argument(
        "--with-all",
        action="store_true",
        help=f"with what CI leaves out, too: {', '.join(OPEN) or 'nothing'}",
    )
    words.add_argument("--jobs", type=int, default=1)
    asked = words.parse_args()
    began, total, broken = time.perf_counter(), Tally(), 0
    live = partial(lived, without=() if asked.with_all else OPEN)
    with workers(asked.jobs) as pool:
        for tally, summary in pool.imap_unordered(live, range(*asked.seeds), chunksize=4):
            total += tally
            broken += bool(summary)
            if summary:
                print(summary, end="\n\n", flush=True)
    print(f"{total.summary(time.perf_counter() - began)}; {broken} seeds broke an invariant")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
