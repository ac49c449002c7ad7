"""Limits configured twice too high, and a fleet that has to find out: headgate and its peers, each
as its users write it.

This module has the entrants, how long each calls, and the use of the service's counts. Every
refused caller waits as long as its own refusal says and then asks again, in every row. Only the
part between this caller and the wire differs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.services.clients import KEY, QUESTION
from benchmarks.services.fleet import Counts, counted, started, told_to_go
from examples.services.budgets import Rules
from headgate import Limiter, Window

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Headers = Any
Call = Callable[[], Awaitable[Headers | None]]  # the headers of a refusal

TOO_HIGH = 2  # times the limit of the service
RULES = Rules(requests=150, per=5.0, call_time=0.1)
# In each process: together more than the service allows at once, so that no process finds out by
# itself before others ask.
CALLERS = 50
LENGTH = 17.0  # seconds: four bursts of the service's window, and calls that wait for the fifth
# Of the calls of a fleet that has settled: the service sees them when they arrive, a limiter when
# they leave.
REFUSED = 0.01
SETTLED_BY = 0.75  # of the length: a process that has not settled by then has not settled
# Calls of each process before the run, without a limiter: a client imports and builds its parts
# then.
FIRST = 10


@dataclass(frozen=True)
class Trial:
    """The order of one process."""

    entrant: str
    url: str
    store: str
    name: str
    rules: Rules
    slack: float
    processes: int
    callers: int = CALLERS
    seconds: float = LENGTH

    @property
    def wrong(self) -> int:
        """The number of requests that the whole fleet believes it may make in a period."""
        return TOO_HIGH * (self.rules.requests or 1)

    @property
    def share(self) -> int:
        """The part of it for one process whose limiter knows no others."""
        return self.wrong // self.processes

    def limiter(self) -> Limiter:
        return Limiter(
            self.name, Window(self.wrong, self.rules.per, slack=self.slack), store=self.store
        )


@dataclass(frozen=True)
class Outcome:
    """One run, in the service's eyes: seconds from the start to the last refusal, and to when the
    fleet has settled, if ever.
    """

    answered: int
    refused: int
    last: float
    settled: float | None
    best: int

    @property
    def share(self) -> float:
        """As a share of the answers that the service could have given."""
        return self.answered / self.best


def run(trial: Trial) -> Outcome:
    with started(trial.rules, work, trial, trial.processes) as (service, fleet):
        began = told_to_go(fleet)
        time.sleep(trial.seconds)
        return outcome(trial, counted(service), began)


def outcome(trial: Trial, counts: Counts, began: float) -> Outcome:
    answered, refused = (
        [moment - began for moment in moments] for moments in (counts.admitted, counts.turned_away)
    )
    settled = settled_at(answered, refused)
    in_time = settled if settled <= trial.seconds * SETTLED_BY else None
    return Outcome(len(answered), len(refused), max(refused, default=0.0), in_time, best(trial))


def settled_at(answered: Sequence[float], refused: Sequence[float]) -> float:
    """The first moment after which at most so many of the calls were refused: the start, or that of
    a refusal.
    """
    calls = [*answered, *refused]
    return next(
        then
        for then in (0.0, *sorted(refused))
        if later(refused, then) <= REFUSED * later(calls, then)
    )


def later(moments: Sequence[float], then: float) -> int:
    return sum(moment > then for moment in moments)


def best(trial: Trial) -> int:
    """All that the service can admit in this time: a burst at once, and one more for each period
    that has gone by.
    """
    return (trial.rules.requests or 1) * (int(trial.seconds // trial.rules.per) + 1)


# The entrants: all in coroutines, since two of the peers know nothing else ------------------------


@asynccontextmanager
async def by_httpx(trial: Trial, transport: Any = None) -> AsyncIterator[Call]:
    """Nothing in between."""
    import httpx

    async with httpx.AsyncClient(
        transport=transport, limits=httpx.Limits(max_connections=None)
    ) as client:
        yield lambda: refusal_of(client.get(trial.url))


@asynccontextmanager
async def by_aiolimiter(trial: Trial) -> AsyncIterator[Call]:
    """In one process; the four share the limit."""
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(trial.share, trial.rules.per)
    async with by_httpx(trial) as inner:

        async def call() -> Headers | None:
            async with limiter:
                return await inner()

        yield call


@asynccontextmanager
async def by_httpx_limiter(trial: Trial) -> AsyncIterator[Call]:
    """The same, as a transport."""
    import httpx
    from httpx_limiter import AsyncRateLimitedTransport, Rate
    from httpx_limiter.aiolimiter import AiolimiterAsyncLimiter

    limiter = AiolimiterAsyncLimiter.create(Rate.create(trial.share, trial.rules.per))
    wire = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
    async with by_httpx(trial, AsyncRateLimitedTransport(limiter=limiter, transport=wire)) as call:
        yield call


@asynccontextmanager
async def by_headgate(trial: Trial, **options: Any) -> AsyncIterator[Call]:
    import httpx

    from headgate.http.httpx import limit

    limits = httpx.Limits(max_connections=None)
    async with limit(httpx.AsyncClient(limits=limits), trial.limiter(), **options) as client:
        yield lambda: refusal_of(client.get(trial.url))


@asynccontextmanager
async def by_headgate_adopting(trial: Trial) -> AsyncIterator[Call]:
    async with by_headgate(trial, adopt=True) as call:
        yield call


@asynccontextmanager
async def by_openai(trial: Trial) -> AsyncIterator[Call]:
    """It tries again by itself, twice by default, and waits as long as the service says."""
    import openai

    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{trial.url}/v1") as client:
        yield lambda: failure_of(client)


@asynccontextmanager
async def by_openai_with_headgate(trial: Trial) -> AsyncIterator[Call]:
    import openai

    from headgate.http.openai import limit

    async with limit(
        openai.AsyncOpenAI(api_key=KEY, base_url=f"{trial.url}/v1"), trial.limiter(), adopt=True
    ) as client:
        yield lambda: failure_of(client)


async def refusal_of(response: Awaitable[Any]) -> Headers | None:
    answer = await response
    return None if answer.status_code == 200 else answer.headers


async def failure_of(client: Any) -> Headers | None:
    import openai

    try:
        await client.responses.create(model="m", input=QUESTION)
    except openai.RateLimitError as error:
        return error.response.headers
    return None


Opening = Callable[[Trial], Any]
ENTRANTS: dict[str, tuple[Opening, Opening]] = {  # and by which the first calls are made
    "no limiter": (by_httpx, by_httpx),
    "aiolimiter": (by_aiolimiter, by_httpx),
    "httpx-limiter": (by_httpx_limiter, by_httpx),
    "headgate": (by_headgate, by_httpx),
    "headgate, adopt=True": (by_headgate_adopting, by_httpx),
    "openai, its own retries": (by_openai, by_openai),
    "openai, headgate, adopt=True": (by_openai_with_headgate, by_openai),
}


# A process ----------------------------------------------------------------------------------------


def work(pipe: Connection, trial: Trial) -> None:
    asyncio.run(calls(pipe, trial))


async def calls(pipe: Connection, trial: Trial) -> None:
    """Until the parent has closed the pipe."""
    opening, first = ENTRANTS[trial.entrant]
    async with first(trial) as call:
        await asyncio.gather(*(call() for _ in range(min(FIRST, trial.callers))))
    async with opening(trial) as call:
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        callers = [asyncio.create_task(caller(call)) for _ in range(trial.callers)]
        await asyncio.to_thread(pipe.poll, None)
        for task in callers:
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def caller(call: Call) -> None:
    """Each of them behaves so: a refused call is tried again, when its own refusal says."""
    while True:
        refused = await call()
        if refused is not None:
            await asyncio.sleep(float(refused["retry-after-ms"]) / 1000)
