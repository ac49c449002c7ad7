"""A service and a fleet of processes that call it, each in processes of its own, over one run.

Here lives who is started, who is told what, and what they say; what it means is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.services.clients import COROUTINES, THREADS
from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Concurrency, Limiter, Rate, Window

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

FIRST = 25  # calls in each process before the run: the first of a client find nothing open nor imported, and take long to leave
REST = 0.5  # seconds, and one period, after which nothing is left of them
CALLERS = 25  # in each process: more than the service bears at once, and they all have something to do
TOO_LONG = 120.0  # seconds for one run


@dataclass(frozen=True)
class Order:
    """What one process is to do."""

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
        limits: list[Any] = [Window(rules.requests or 1, rules.per, slack=self.slack), Concurrency(rules.at_once or 1)]
        tokens = {"input_tokens": rules.input_tokens, "output_tokens": rules.output_tokens}
        limits += [Rate(amount, rules.per, unit=unit) for unit, amount in tokens.items() if amount]
        return Limiter(self.name, *limits, store=self.store)


@dataclass(frozen=True)
class Told:
    """One run: what the callers got, what the service has counted, and the seconds from the first to the last."""

    statuses: Counter[int]
    calls: int
    refused: Counter[str]
    most: int
    seconds: float


def run(order: Order, processes: int) -> Told:
    with ExitStack() as stack:
        service = stack.enter_context(child(serve, order.rules))
        url = heard(service)
        share = order.calls // processes
        orders = [Order(**{**vars(order), "url": url, "calls": share}) for _ in range(processes)]
        fleet = [stack.enter_context(child(work, each)) for each in orders]
        for pipe in fleet:
            heard(pipe)  # it has made its first calls
        time.sleep(order.rules.per + order.slack + REST)
        began = time.monotonic()
        for pipe in fleet:
            pipe.send("go")
        answers = [heard(pipe) for pipe in fleet]
        service.send("counts")
        calls, refused, most = heard(service)
    statuses = sum((each for each, _ in answers), Counter[int]())
    return Told(statuses, calls - FIRST * processes, refused, most, max(ended for _, ended in answers) - began)


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


# The processes -----------------------------------------------------------------------------------------------------------------


def serve(pipe: Connection, rules: Rules) -> None:
    with Models(rules) as service:
        pipe.send(service.url)
        try:
            pipe.recv()
            pipe.send((service.calls, service.refused, service.most))
            pipe.recv()
        except EOFError:
            pass  # we are not needed any more


def work(pipe: Connection, order: Order) -> None:
    statuses = asyncio.run(in_coroutines(pipe, order)) if order.client in COROUTINES else in_threads(pipe, order)
    pipe.send((statuses, time.monotonic()))


async def in_coroutines(pipe: Connection, order: Order) -> Counter[int]:
    numbers, statuses = iter(range(order.calls)), Counter[int]()
    async with COROUTINES[order.client](order.url, order.limiter()) as call:

        async def caller() -> None:
            for _ in numbers:
                statuses[await call()] += 1

        await asyncio.gather(*(call() for _ in range(FIRST)))
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return statuses


def in_threads(pipe: Connection, order: Order) -> Counter[int]:
    with THREADS[order.client](order.url, order.limiter()) as call, ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(lambda _: call(), range(FIRST)))
        pipe.send("ready")
        pipe.recv()
        return Counter(threads.map(lambda _: call(), range(order.calls)))
