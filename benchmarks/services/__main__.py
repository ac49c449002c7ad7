"""`python -m benchmarks.services`: 2,000 calls from 4 processes that share Redis, through each client, against a strict service.

Exit status: 0 without a 429 and within 3 % of the best time for each client, 1 not so, 2 nothing could be measured.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from fnmatch import fnmatch

from benchmarks import table
from benchmarks.services.clients import CLIENTS
from benchmarks.services.fleet import Order, Told, run
from benchmarks.tool import NOTHING_MEASURED, on_private_server
from demo import rules as demo
from examples.services.budgets import Rules

DESCRIPTION = (
    "calls of a fleet through each client, against a service that enforces its limits: 429s, and the time over the best possible"
)
TOLERANCE = 0.03
REQUESTS, PER, AT_ONCE, CALL_TIME = 900, 30.0, 80, 1.0  # slow enough for SDKs that need 3 ms of a processor for each call
# A grant counts when the call leaves, the service counts when it arrives: as in demo/calls.py, with clients that need more of a
# processor for each call: of the first burst, which is granted at once, the last leaves late. It costs as much for each period.
SLACK = 0.25
SDKS = ("openai", "anthropic")
# Of a question of 41 characters and an answer of 20 words: a quarter more than as many as the requests allow can take.
INPUT_TOKENS, OUTPUT_TOKENS = REQUESTS * 9 * 5 // 4, REQUESTS * 20 * 5 // 4


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = [client for client in CLIENTS if fnmatch(client, options.clients)]
    if not chosen:
        table.say(f"no client matches {options.clients!r}; there are: {'; '.join(CLIENTS)}")
        return NOTHING_MEASURED
    return on_private_server(lambda url: measured(chosen, options.calls, options.processes, url))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services", description=DESCRIPTION)
    add = parser.add_argument
    add("--calls", type=int, default=2000, help="calls in each run, over all processes (2000)")
    add("--processes", type=int, default=4, help="processes that share the limits (4)")
    add("--clients", default="*", metavar="PATTERN", help="only clients whose name matches, as in 'httpx*'")
    return parser.parse_args(arguments)


def rules_for(client: str) -> Rules:
    """The SDKs have tokens to count, too."""
    tokens = (INPUT_TOKENS, OUTPUT_TOKENS) if client.startswith(SDKS) else (None, None)
    return Rules(REQUESTS, None, *tokens, AT_ONCE, PER, CALL_TIME)


def measured(clients: Sequence[str], calls: int, processes: int, store: str) -> bool:
    best = demo.ideal_time(calls, demo.Rules(REQUESTS, PER, AT_ONCE, CALL_TIME))
    told = {}
    for client in clients:
        name = f"services{uuid.uuid4().hex[:8]}"
        told[client] = run(Order(client, "", calls, store, name, rules_for(client), SLACK), processes)
        table.say(f"  {client}: {told[client].seconds:.2f} s")
    show(told, calls, processes, best)
    return all(as_promised(each, calls, best) for each in told.values())


def as_promised(told: Told, calls: int, best: float) -> bool:
    return told.statuses == {200: calls} and not told.refused and told.seconds <= best * (1 + TOLERANCE)


def show(told: dict[str, Told], calls: int, processes: int, best: float) -> None:
    rule = f"{REQUESTS} in any {PER} s, {AT_ONCE} at once, {CALL_TIME * 1000:.0f} ms a call; of the SDKs tokens, too"
    table.say(f"\n{calls:,} calls from {processes} processes that share Redis; the service allows {rule}")
    rows = []
    for client, each in told.items():
        verdict = "as promised" if as_promised(each, calls, best) else "NOT AS PROMISED"
        times = (f"{each.seconds:.2f} s", f"{best:.2f} s", f"{each.seconds / best - 1:.1%}")
        refused = ", ".join(f"{many} for {unit}" for unit, many in each.refused.items()) or "0"
        rows.append((client, str(each.statuses[200]), refused, str(each.most), *times, verdict))
    table.columns(("client", "answered", "429s", "most at once", "time", "best", "over it", ""), rows)


if __name__ == "__main__":
    sys.exit(main())
