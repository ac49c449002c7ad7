"""`python -m benchmarks.services`: a fleet on Redis and a strict service, through each client, and
with limits twice too high.

Exit status: 0 without a 429, within 3 % of the best time for each client, and settled after the
service corrected the wrong limits. Rows with attachments may take 5 %. 1 not so, 2 nothing could be
measured.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import TypeVar

from benchmarks import table
from benchmarks.services import fleet, twice
from benchmarks.services.clients import CLIENTS
from benchmarks.services.fleet import Order, Told
from benchmarks.services.twice import ENTRANTS, LENGTH, RULES, TOO_HIGH, Outcome, Trial
from benchmarks.tool import NOTHING_MEASURED, on_private_server
from demo import rules as demo
from examples.services.budgets import Rules
from examples.services.speech import FILE, PICTURE

T = TypeVar("T")

DESCRIPTION = (
    "calls of a fleet against a service that enforces its limits: through each client (429s, and "
    "the time over the best possible), and with limits twice too high, beside peers (429s, and "
    "when the last of them came)"
)
TOLERANCE = 0.03
REQUESTS, PER, AT_ONCE, CALL_TIME = (
    750,
    20.0,
    80,
    1.0,
)  # slow enough for SDKs that need 3 ms of a processor for each call
# A grant counts when the call leaves, the service counts when it arrives, as in demo/calls.py.
# These clients need more of a processor for each call: of the first burst, which is granted at
# once, the last leaves late. It costs as much for each period.
SLACK = 0.25
SDKS = ("openai", "anthropic")
# Of a question of 41 characters and an answer of 20 words: a quarter more than as many as the
# requests allow can take.
INPUT_TOKENS, OUTPUT_TOKENS = REQUESTS * 9 * 5 // 4, REQUESTS * 20 * 5 // 4
# With every tenth a picture or a file, as the local service counts them.
ATTACHED = "attachments"
WITH_ATTACHED = INPUT_TOKENS + REQUESTS * (PICTURE + FILE) // 20 * 5 // 4
TOLERANCE_ATTACHED = 0.05
WRONG = "twice: "  # how the rows with wrong limits begin
ROWS = [*CLIENTS, *(WRONG + entrant for entrant in ENTRANTS)]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = [row for row in ROWS if fnmatch(row, options.rows)]
    if not chosen:
        table.say(f"no row matches {options.rows!r}; there are: {'; '.join(ROWS)}")
        return NOTHING_MEASURED
    return on_private_server(lambda url: measured(chosen, options.calls, options.processes, url))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services", description=DESCRIPTION)
    add = parser.add_argument
    add(
        "--calls",
        type=int,
        default=2000,
        help="calls through each client, over all processes (2000)",
    )
    add("--processes", type=int, default=4, help="processes that share the limits (4)")
    add(
        "--rows",
        default="*",
        metavar="PATTERN",
        help="only rows whose name matches, as in 'httpx*' or 'twice: *'",
    )
    return parser.parse_args(arguments)


def measured(rows: Sequence[str], calls: int, processes: int, store: str) -> bool:
    """One after another: they would take each other's processors."""
    clients = [row for row in rows if row in CLIENTS]
    entrants = [row.removeprefix(WRONG) for row in rows if row not in CLIENTS]
    met = through_clients(clients, calls, processes, store) if clients else True
    return (not entrants or with_wrong_limits(entrants, processes, store)) and met


# The service's own limits -------------------------------------------------------------------------


def rules_for(client: str) -> Rules:
    """The SDKs have tokens to count, too."""
    into = WITH_ATTACHED if ATTACHED in client else INPUT_TOKENS
    tokens = (into, OUTPUT_TOKENS) if client.startswith(SDKS) else (None, None)
    return Rules(REQUESTS, None, *tokens, AT_ONCE, PER, CALL_TIME)


def through_clients(clients: Sequence[str], calls: int, processes: int, store: str) -> bool:
    best = demo.ideal_time(calls, demo.Rules(REQUESTS, PER, AT_ONCE, CALL_TIME))
    told = {}
    for client in clients:
        order = Order(client, "", calls, store, name(), rules_for(client), SLACK)
        if each := tried(client, lambda order=order: fleet.run(order, processes)):
            told[client] = each
            table.say(f"  {client}: {each.seconds:.2f} s")
    show(told, calls, processes, best)
    return len(told) == len(clients) and all(
        as_promised(each, calls, best, tolerance(client)) for client, each in told.items()
    )


def tried(row: str, run: Callable[[], T]) -> T | None:
    """One row that cannot be measured, since something is not installed or a process has ended, is
    no reason to lose the others.
    """
    try:
        return run()
    except (EOFError, OSError) as error:
        table.say(f"  {row}: NOT MEASURED, a process has ended or is silent, see above: {error!r}")
        return None


def name() -> str:
    return f"services{uuid.uuid4().hex[:8]}"


def tolerance(client: str) -> float:
    return TOLERANCE_ATTACHED if ATTACHED in client else TOLERANCE


def as_promised(told: Told, calls: int, best: float, over: float = TOLERANCE) -> bool:
    return told.statuses == {200: calls} and not told.refused and told.seconds <= best * (1 + over)


def show(told: dict[str, Told], calls: int, processes: int, best: float) -> None:
    rule = (
        f"{REQUESTS} in any {PER} s, {AT_ONCE} at once, {CALL_TIME * 1000:.0f} ms a call; "
        "of the SDKs tokens, too"
    )
    table.say(
        f"\n{calls:,} calls from {processes} processes that share Redis; the service allows {rule}"
    )
    rows = []
    for client, each in told.items():
        met = as_promised(each, calls, best, tolerance(client))
        verdict = "as promised" if met else "NOT AS PROMISED"
        times = (f"{each.seconds:.2f} s", f"{best:.2f} s", f"{each.seconds / best - 1:.1%}")
        refused = ", ".join(f"{many} for {unit}" for unit, many in each.refused.items()) or "0"
        rows.append((client, str(each.statuses[200]), refused, str(each.most), *times, verdict))
    table.columns(
        ("client", "answered", "429s", "most at once", "time", "best", "over it", ""), rows
    )


# Limits that are wrong ----------------------------------------------------------------------------


def with_wrong_limits(entrants: Sequence[str], processes: int, store: str) -> bool:
    outcomes = {}
    for entrant in entrants:
        trial = Trial(entrant, "", store, name(), RULES, SLACK, processes)
        if each := tried(entrant, lambda trial=trial: twice.run(trial)):
            outcomes[entrant] = each
            table.say(f"  {WRONG}{entrant}: {each.refused} refused")
    show_wrong(outcomes, processes)
    return len(outcomes) == len(entrants) and all(
        each.settled is not None for row, each in outcomes.items() if "adopt" in row
    )


def show_wrong(outcomes: dict[str, Outcome], processes: int) -> None:
    told = (
        f"{RULES.requests} in any {RULES.per} s, and {processes} processes were told "
        f"{TOO_HIGH} times as many"
    )
    table.say(f"\nlimits that are wrong: the service allows {told}; {LENGTH} s for each")
    rows = []
    for entrant, each in outcomes.items():
        settled = "never" if each.settled is None else f"after {each.settled:.1f} s"
        rows.append(
            (
                entrant,
                str(each.answered),
                str(each.refused),
                f"{each.last:.1f} s",
                settled,
                f"{each.share:.0%}",
            )
        )
    table.columns(
        ("limiter", "answered", "429s", "the last at", "settled", "of what the service allows"),
        rows,
    )


if __name__ == "__main__":
    sys.exit(main())
