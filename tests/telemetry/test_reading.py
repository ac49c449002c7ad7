"""The present state of all limiters of a process, for the exporters."""

from __future__ import annotations

import asyncio
from dataclasses import astuple

import pytest

from headgate import Concurrency, Limiter, Rate
from headgate.http.token_estimates import Estimates
from headgate.telemetry import reading
from headgate.telemetry.reading import Budget, Usage
from tests.processes import finished
from tests.servers import Server
from tests.telemetry.conftest import outcomes
from tests.world import World, told, waiting


@told
async def test_the_usage_is_what_this_process_holds_and_waits_for(world: World) -> None:
    limiter = world.limiter(Concurrency(2))
    async with limiter, limiter:
        waiter = asyncio.ensure_future(limiter.acquire().__aenter__())
        await waiting(limiter, 1)
        assert reading.read_usage()[world.name] == Usage(permits=2, waiters=1)
    (await waiter).release()
    assert reading.read_usage()[world.name] == Usage(permits=0, waiters=0)


def budgets(name: str) -> list[Budget]:
    return [each for each in reading.read_budgets() if each.name == name]


def test_a_budget_is_the_status_of_a_name_that_was_acquired(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(2), Rate(10, per=3600), store=store)
    assert budgets(name) == []
    with limiter:
        [found] = budgets(name)
        assert [astuple(limit)[:5] for limit in found.status.limits] == [
            ("Concurrency", "permits", 2, 1, 1),
            ("Rate", "requests", 10, 1, 9),
        ]


def test_reading_declares_nothing(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(2), store=store)
    with limiter:
        pass
    reading.read_acquires(), reading.read_usage(), reading.read_budgets(), reading.read_stores()
    Limiter(name, Concurrency(3), store=store).status()
    assert limiter.status().limits[0].capacity == 2


def test_a_key_has_a_budget_only_with_a_label(store: object, name: str) -> None:
    reading.switch_on(lambda name, key: key if key == "big" else None)
    limiter = Limiter(name, Concurrency(2), store=store)
    for key in ("big", "small"):
        with limiter[key]:
            pass
    assert [each.label for each in budgets(name)] == ["big"]


def test_a_server_that_is_away_costs_no_wait_and_no_budget(own_server: Server, name: str) -> None:
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    with limiter:
        pass
    own_server.pause()  # it takes connections, and answers nothing
    assert budgets(name) == []
    own_server.resume()


def test_budgets_are_read_from_a_running_loop(redis_url: str, name: str) -> None:
    """An exporter may run where tasks use the limiter."""

    async def scrape() -> None:
        async with Limiter(name, Concurrency(2), store=redis_url):
            [found] = budgets(name)
            assert found.status.limits[0].used == 1

    asyncio.run(scrape())


FORK = """
import os, sys
from headgate import Concurrency, Limiter
from headgate.telemetry import reading
reading.switch_on()
limiter = Limiter("forked", Concurrency(2))
with limiter: pass
if os.fork() == 0:
    with limiter: pass
    [found] = reading.read_acquires()
    os._exit(0 if found.outcomes["passed"] == 2 else 1)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status))
"""


def test_the_child_of_a_fork_goes_on_counting() -> None:
    assert finished(FORK) == "0\n"


def test_a_share_of_the_limits_is_no_budget(own_server: Server, name: str) -> None:
    limiter = Limiter(
        name,
        Concurrency(4),
        store=own_server.url,
        on_store_error="local",
        processes=2,
        retry_for=0,
    )
    with limiter:
        pass
    own_server.kill()
    with limiter:
        pass
    assert outcomes(name) == {"passed": 1, "local": 1}
    assert budgets(name) == []


def test_reading_needs_no_redis() -> None:
    program = """
import sys
import headgate.telemetry.reading as reading
reading.switch_on(), reading.read_acquires(), reading.read_budgets(), reading.read_stores()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"redis", "hiredis"}))
"""
    assert finished(program) == "[]\n"


def test_the_error_of_estimates_is_that_of_the_worst_one_of_each_model() -> None:
    good, bad = Estimates(), Estimates()
    good.learn_output("model-of-this-test", 100, 100)
    bad.learn_output("model-of-this-test", 150, 100)
    bad.learn_input("model-of-this-test", 400, 90, 100)
    errors = reading.read_estimates()
    assert errors["model-of-this-test", "output"] == pytest.approx(0.5)
    assert errors["model-of-this-test", "input"] == pytest.approx(0.1)
