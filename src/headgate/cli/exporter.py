"""`headgate exporter`: the metrics of the whole fleet for Prometheus, from one process.

prometheus-client serves each scrape in a thread. The store is asked in the loop of the command.
"""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from headgate.cli.exits import USAGE, Failure
from headgate.cli.output import address_of, complain, shown
from headgate.cli.store import redis_store_of
from headgate.errors import StoreError
from headgate.keys import names_of
from headgate.listing import LastNames
from headgate.missing_extra import extra
from headgate.telemetry.reading import Budget, StoreState, fleet_of

if TYPE_CHECKING:
    from headgate.stores.redis import RedisStore
    from headgate.stores.status import Status
    from headgate.telemetry.prometheus import FleetState

TIMEOUT = 1.0  # seconds for the index, and for the status of some names
LAST_PORT = 65_535


async def exporter(args: Namespace) -> None:
    if not 1 <= args.port <= LAST_PORT:
        raise Failure(USAGE, f"exporter: --port {args.port} is not a number from 1 to {LAST_PORT}.")
    reader = Reader(redis_store_of(args))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    serve(args, reader)
    print(f"{address_of(args.host, args.port)}/metrics", flush=True)
    await ended.wait()


def serve(args: Namespace, reader: Reader) -> None:
    try:
        with extra("prometheus"):
            from prometheus_client import CollectorRegistry, start_http_server

            from headgate.telemetry.prometheus import FleetCollector
    except ModuleNotFoundError as missing:
        raise Failure(USAGE, str(missing)) from missing
    registry = CollectorRegistry()
    registry.register(FleetCollector(reader.read))
    try:
        start_http_server(args.port, args.host, registry)
    except OSError as error:
        where = f"--host {shown(args.host)} --port {args.port}"
        raise Failure(USAGE, f"exporter {where}: no server can listen there: {error}") from error


class Reader:
    """Reads the fleet for each scrape, and says on stderr when the store goes and comes back."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._names = LastNames(store.encoded_names, TIMEOUT)
        self._loop = asyncio.get_running_loop()
        self._trouble = ""
        self._left_out: list[str] = []  # names for which the last scrape had no time

    def read(self) -> FleetState:
        """The state of the fleet, in a thread of the HTTP server.

        It takes 5 * TIMEOUT at most. The index takes one. `astatuses` asks for one part of the
        names after another. It begins with no part after three, and the last part may take one.
        """
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result()

    async def _read(self) -> FleetState:
        from headgate.telemetry.prometheus import FleetState

        names, found = await self._ask()
        silent = sum(status is None for status in found.values())
        parts = [self._names.trouble] if self._names.trouble else []
        if silent:
            parts.append(f"{silent:,} of {len(names):,} names: `headgate doctor` finds the fault.")
        self._note(f"{self._store} has not shown all: {' '.join(parts)}" if parts else "")
        read = {name: status for name, status in found.items() if status is not None}
        budgets = [
            Budget(names_of(name)[0], "", status) for name, status in read.items() if status.limits
        ]
        state = StoreState(f"{self._store}", available=not self._trouble)
        return FleetState(fleet_of(budgets), state, len(names) - len(read))

    async def _ask(self) -> tuple[list[str], dict[str, Status | None]]:
        """The names of the index, and the status of those for which there was time.

        A busy machine never has time for all. So those that the last scrape left out come first.
        """
        names: list[str] = []
        with suppress(StoreError):  # `trouble` has its text
            names = await self._names.read()
        ranks = {name: rank for rank, name in enumerate(self._left_out)}
        names = sorted(names, key=lambda name: ranks.get(name, len(ranks)))
        found = await self._store.astatuses(names, TIMEOUT)
        self._left_out = [name for name in names if name not in found]
        return names, found

    def _note(self, trouble: str) -> None:
        if bool(trouble) != bool(self._trouble):
            complain(trouble or f"{self._store} answers again.")
        self._trouble = trouble
