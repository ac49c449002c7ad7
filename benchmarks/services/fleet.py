"""A service and a fleet of processes that call it, each in processes of its own, over one run.

This module has the started processes, their orders and their reports; other modules judge them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.services.clients import COROUTINES, THREADS
from examples.services.budgets import Budgets, Rules
from examples.services.models import Models
from headgate import Concurrency, Limiter, Rate, Window

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Calls in each process before the run: the first of a client find nothing open nor imported, and
# take long to leave.
FIRST = 25
REST = 0.5  # seconds, after which nothing is left of them
CALLERS = (
    25  # in each process: more than the service bears at once, and they all have something to do
)
TOO_LONG = 120.0  # seconds for one run


@dataclass(frozen=True)
class Order:
    """The order of one process."""

    client: str
    url: str
    calls: int
    store: str
    name: str
    rules: Rules
    slack: float

    def limiter(self) -> Limiter:
        """The service's own rules; tokens where it counts any."""
        rules = self.rules
        limits: list[Any] = [
            Window(rules.requests or 1, rules.per, slack=self.slack),
            Concurrency(rules.at_once or 1),
        ]
        tokens = {"input_tokens": rules.input_tokens, "output_tokens": rules.output_tokens}
        kind: Any = Window if "attachments" in self.client else Rate
        limits += [kind(amount, rules.per, unit=unit) for unit, amount in tokens.items() if amount]
        return Limiter(self.name, *limits, store=self.store)


@dataclass(frozen=True)
class Counts:
    """The counts of the service: calls, refusals by their reason, the most at once, and when it
    admitted and refused.
    """

    calls: int
    refused: Counter[str]
    most: int
    admitted: list[float]
    turned_away: list[float]


@dataclass(frozen=True)
class Told:
    """One run: the results of the callers, the counts of the service, and the seconds from the
    first to the last.
    """

    statuses: Counter[int]
    calls: int
    refused: Counter[str]
    most: int
    seconds: float


def run(order: Order, processes: int) -> Told:
    with started(order.rules, work, replace(order, calls=order.calls // processes), processes) as (
        service,
        fleet,
    ):
        began = told_to_go(fleet)
        answers = [heard(pipe) for pipe in fleet]
        counts = counted(service)
    statuses = sum((each for each, _ in answers), Counter[int]())
    return Told(
        statuses,
        counts.calls,
        counts.refused,
        counts.most,
        max(ended for _, ended in answers) - began,
    )


@contextmanager
def started(
    rules: Rules, work: Callable[..., None], order: Any, processes: int
) -> Iterator[tuple[Connection, list[Connection]]]:
    """A service and its callers. They have made their first calls, and the service has forgotten
    them.
    """
    with ExitStack() as stack:
        service = stack.enter_context(child(serve, rules))
        order = replace(order, url=heard(service))
        fleet = [stack.enter_context(child(work, order)) for _ in range(processes)]
        for pipe in fleet:
            heard(pipe)
        time.sleep(REST)
        asked(service, "anew")
        yield service, fleet


def told_to_go(fleet: list[Connection]) -> float:
    """When they were."""
    began = time.monotonic()
    for pipe in fleet:
        pipe.send("go")
    return began


def counted(service: Connection) -> Counts:
    counts = asked(service, "counts")
    assert isinstance(counts, Counts)
    return counts


def asked(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return heard(pipe)


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """A process that ends with its pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def heard(pipe: Connection) -> Any:
    if not pipe.poll(TOO_LONG):
        raise TimeoutError(f"no answer of a process within {TOO_LONG:.0f} s")
    return pipe.recv()


# The service --------------------------------------------------------------------------------------


class Service(Models):
    """Keeps when it admitted and when it refused, and can forget it all."""

    def anew(self) -> None:
        with self._changed:
            self._budgets = Budgets(self.rules)
            self.calls = self.most = self.into = self.out = 0
            self.refused.clear()
            self.admitted: list[float] = []
            self.turned_away: list[float] = []

    @contextmanager
    def call(self, into: int) -> Iterator[dict[str, float]]:
        with super().call(into) as refused:
            (self.turned_away if refused else self.admitted).append(time.monotonic())
            yield refused

    def counts(self) -> Counts:
        with self._changed:
            return Counts(self.calls, self.refused, self.most, self.admitted, self.turned_away)


def serve(pipe: Connection, rules: Rules) -> None:
    service = Service(rules)
    service.anew()
    with service:
        pipe.send(service.url)
        try:
            while True:
                pipe.send(service.anew() if pipe.recv() == "anew" else service.counts())
        except EOFError:
            pass  # we are not needed any more


# The callers --------------------------------------------------------------------------------------


class Phase:
    """The first calls have a key of their own, so that the run begins with nothing used."""

    def __init__(self) -> None:
        self.name = "first"

    def __call__(self, request: Any) -> str:
        return self.name


def work(pipe: Connection, order: Order) -> None:
    statuses = (
        asyncio.run(in_coroutines(pipe, order))
        if order.client in COROUTINES
        else in_threads(pipe, order)
    )
    pipe.send((statuses, time.monotonic()))


async def in_coroutines(pipe: Connection, order: Order) -> Counter[int]:
    numbers, statuses, phase = iter(range(order.calls)), Counter[int](), Phase()
    async with COROUTINES[order.client](order.url, order.limiter(), phase) as call:

        async def caller() -> None:
            for _ in numbers:
                statuses[await call()] += 1

        await asyncio.gather(*(call() for _ in range(FIRST)))
        phase.name = "run"
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return statuses


def in_threads(pipe: Connection, order: Order) -> Counter[int]:
    phase = Phase()
    with (
        THREADS[order.client](order.url, order.limiter(), phase) as call,
        ThreadPoolExecutor(CALLERS) as threads,
    ):
        list(threads.map(lambda _: call(), range(FIRST)))
        phase.name = "run"
        pipe.send("ready")
        pipe.recv()
        return Counter(threads.map(lambda _: call(), range(order.calls)))
