"""Processes that share a name but declare different limits: a warning, and limits that do not flap.

Updates during failures, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    Permit,
    Rate,
    StoreError,
    log_writer,
)
from headgate.internals import queue_of
from headgate.limits import Limit
from headgate.stores.redis.protocol.calls import Command
from headgate.stores.redis.session import next_call
from tests.faults.haste import HOLD
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    Puppet,
    Slack,
    client_of_its_own,
    elsewhere,
    enter,
    eventually,
    has_listened,
)
from tests.world import at_rest, declare, soon, until, used, waiting

ONE, TWO, THREE = Concurrency(1), Concurrency(2), Concurrency(3)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Warnings of headgate."""
    caplog.set_level(logging.WARNING, "headgate")
    return caplog


class Process:
    """A process whose code makes a limiter for each request."""

    def __init__(self, name: str, limit: Limit, url: str) -> None:
        self.name, self.limit, self.client = name, limit, client_of_its_own(url)

    def limiter(self, limit: Limit | None = None) -> Limiter:
        return Limiter(self.name, limit or self.limit, store=self.client)

    async def visit(self) -> int:
        """The capacity that a request finds."""
        limiter = self.limiter()
        async with limiter:
            return (await limiter.astatus()).limits[0].capacity


# Disagreeing --------------------------------------------------------------------------------------


async def test_the_limits_do_not_flap_when_two_processes_keep_declaring_different_ones(
    name: str, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """Given two processes with different limits, when each makes its limiter again and again, then
    the later limits hold for both.

    The process whose limits were replaced logs it once, with both limits and the way out. F48.
    """
    former, later = Process(name, ONE, redis_url), Process(name, TWO, redis_url)
    assert await soon(former.visit()) == 1

    for _ in range(10):
        assert await soon(later.visit()) == 2
        assert await soon(former.visit()) == 2

    (record,) = log.records
    assert (record.name, record.levelname) == ("headgate", "WARNING")
    assert record.getMessage() == (
        f"Limiter {name!r} is declared as 1 permits held at once for 30 s each in this process, "
        "but another process has replaced that, and 2 permits held at once for 30 s each holds "
        "instead. Make the code of both agree, or call update() to set the limits that are to "
        "hold."
    )


async def test_the_limits_of_a_key_do_not_flap_when_two_processes_keep_declaring_different_ones(
    name: str, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """Given two processes whose code takes a key for each request, then the warning is logged once
    for each key.
    """
    former, later = (elsewhere(name, limit, url=redis_url) for limit in (ONE, TWO))
    for key in ("a", "b"):
        seen = []
        for _ in range(5):
            for tenants in (former, later):
                async with tenants[key]:
                    seen.append((await tenants[key].astatus()).limits[0].capacity)
        assert seen == [1] + [2] * 9

    assert len(log.records) == 2


async def test_a_process_whose_limits_were_replaced_makes_no_more_calls_than_before(
    name: str, redis_url: str, admin: Redis, log: pytest.LogCaptureFixture
) -> None:
    """Given a process whose limits were replaced, when it goes on making limiters, then it does not
    declare with each of them.
    """
    former, later = Process(name, ONE, redis_url), Process(name, TWO, redis_url)
    for process in (former, later, former):
        await soon(process.visit())
    await soon(declare(former.limiter()))
    await at_rest(former.limiter())
    admin.config_resetstat()

    for _ in range(20):
        permit = await soon(former.limiter().acquire())
        assert await permit.arelease()

    assert admin.info("commandstats")["cmdstat_fcall"]["calls"] <= 40


@pytest.mark.usefixtures("hurried")
async def test_limits_that_were_turned_down_are_declared_again_after_the_hold(
    name: str, redis_url: str, log: pytest.LogCaptureFixture, slack: Slack
) -> None:
    """Given a deployment that is rolled back at once, when a minute has passed, then the former
    limits hold again.

    The process need not make a limiter again for that, so a program with one limiter for all its
    life gets its limits, too.
    """
    former = Process(name, ONE, redis_url)
    await soon(former.visit())
    start = monotonic()
    await soon(Process(name, TWO, redis_url).visit())
    rolled_back = Process(name, ONE, redis_url).limiter()
    await soon(declare(rolled_back))

    await until(lambda status: status.limits[0].capacity == 1, rolled_back)

    assert HOLD - 0.1 < monotonic() - start < HOLD + slack()
    assert len(log.records) == 1
    assert await soon(former.visit()) == 1


@pytest.mark.usefixtures("hurried")
def test_limits_that_were_turned_down_are_declared_again_by_jobs_with_loops_of_their_own(
    name: str, redis_url: str, log: pytest.LogCaptureFixture, slack: Slack
) -> None:
    """Given the same in a program that makes one limiter and runs each job by asyncio.run, then no
    loop has to live for a minute.
    """
    first, second, rolled_back = (
        elsewhere(name, limit, url=redis_url) for limit in (ONE, TWO, ONE)
    )

    async def visit(limiter: Limiter) -> int:
        await soon(declare(limiter))
        return (await soon(limiter.astatus())).limits[0].capacity

    def capacity(limiter: Limiter) -> int:
        return asyncio.run(visit(limiter))

    capacity(first)
    start = monotonic()
    capacity(second)
    while capacity(rolled_back) == 2:
        assert monotonic() - start < HOLD + slack()

    assert monotonic() - start > HOLD - 0.1
    assert len(log.records) == 1


@pytest.mark.usefixtures("hurried")
async def test_limits_that_were_turned_down_are_forgotten_when_the_process_declares_others(
    name: str, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """Given limits that the server turned down, when the process declares others or updates, then
    the former limits do not come back later.
    """
    first, second = Process(name, ONE, redis_url), Process(name, TWO, redis_url)
    for process in (first, second, first, first):
        await soon(process.visit())
    assert len(log.records) == 1
    limiter = first.limiter(THREE)
    await soon(declare(limiter))
    start = monotonic()

    await until(lambda status: monotonic() - start > HOLD + 0.1, limiter)

    assert (await soon(limiter.astatus())).limits[0].capacity == 3
    assert await soon(second.visit()) == 3


async def test_an_update_ends_the_disagreement_of_two_processes(
    name: str, redis_url: str, log: pytest.LogCaptureFixture
) -> None:
    """F48: Given two processes that disagree, when one updates, then its limits hold for both, and
    later declarations do not change that.
    """
    former, later = Process(name, ONE, redis_url), Process(name, TWO, redis_url)
    for process in (former, later, former, former):
        await soon(process.visit())
    assert len(log.records) == 1

    await former.limiter().aupdate(THREE)

    for process in (former, later, Process(name, ONE, redis_url), Process(name, TWO, redis_url)):
        assert await soon(process.visit()) == 3
    assert len(log.records) == 1  # no disagreement is left
    assert await soon(Process(name, Concurrency(4), redis_url).visit()) == 4  # new code


async def test_callers_go_on_when_a_log_handler_uses_the_limiter_of_the_warning(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    """L5: given a log handler that uses the limiter itself, when the warning comes, then all
    callers go on.
    """
    former, later = Process(name, ONE, redis_url), Process(name, TWO, redis_url)
    limiters = []

    class Limited(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            limiters.append(former.limiter())
            repr(limiters[0])

    handler = Limited()
    log_writer.LOGGER.addHandler(handler)
    try:
        for process in (former, later, former, later, former):
            await soon(process.visit())
        assert log_writer.flush()
    finally:
        log_writer.LOGGER.removeHandler(handler)

    assert len(limiters) == 1


@pytest.mark.proof
async def test_programs_that_start_again_do_not_replace_the_limits(
    name: str, admin: Redis, puppet: Callable[..., Puppet]
) -> None:
    """Given programs with two different limits, started by turns, then the first program of each
    kind declares, and the others follow.
    """
    seen = []
    for limit in (ONE, TWO, ONE, TWO, ONE):
        program = puppet(limit, pace="calm")
        await program.hears("acquire a", until="a asks")
        await program.says("a inside")
        seen.append(str(admin.hget(f"headgate:{{{name}}}", "limits")).split()[2])
        await program.hears("release a", until="a left True")

    assert seen == ["1", "2", "2", "2", "2"]


# Updating -----------------------------------------------------------------------------------------


async def test_more_capacity_wakes_the_waiters_of_other_processes(
    name: str, redis_url: str, puppet: Callable[..., Puppet], slack: Slack
) -> None:
    """S1, S6: given waiters in two processes, when a third process raises the capacity, then they
    pass at once, in order of arrival.
    """
    limiter = elsewhere(name, ONE, url=redis_url)
    holder = await limiter.acquire()
    a, b = puppet(ONE), puppet(ONE)
    for number, process in enumerate((a, b, a)):
        await process.hears(f"acquire {number}", until=f"{number} asks")

    start = monotonic()
    limiter.update(THREE)
    await a.says("0 inside")
    await b.says("1 inside")

    assert monotonic() - start < slack()
    assert used(await waiting(limiter, 1)) == [3]
    holder.release()
    await a.says("2 inside")
    for number, process in enumerate((a, b, a)):
        await process.hears(f"release {number}", until=f"{number} left True")
    await at_rest(limiter)


async def test_other_processes_follow_an_update_with_their_next_reply(
    name: str, redis_url: str
) -> None:
    """Given two more processes, when one updates, then the next answers to the others follow the
    new limits (T7).
    """
    limiter, task, thread = (elsewhere(name, "50/minute", url=redis_url) for _ in range(3))
    for each in (limiter, task):
        await soon(declare(each))
    await asyncio.to_thread(thread.acquire_sync)

    await limiter.aupdate("20/minute", Rate(5, per=60, unit="tokens"))

    assert [limit.capacity for limit in (await soon(task.astatus())).limits] == [20, 5]
    with pytest.raises(CostExceedsCapacityError, match="never"):
        await asyncio.to_thread(thread.try_acquire, 30)
    assert await asyncio.to_thread(thread.try_acquire, tokens=3)


async def test_the_error_of_a_waiter_that_can_never_pass_names_no_outdated_limits(
    name: str, redis_url: str
) -> None:
    """T7: given a waiter whose process does not know the new limits yet, when it is refused, then
    the error does not name the former limits.
    """
    jobs = Concurrency(10, unit="jobs")
    client = client_of_its_own(redis_url)
    limiter, other = Limiter(name, jobs, store=client), elsewhere(name, jobs, url=redis_url)
    await has_listened(
        Limiter(f"{name}-other", ONE, store=client), elsewhere(f"{name}-other", ONE, url=redis_url)
    )
    holder = await other.acquire(jobs=6)
    caller = asyncio.create_task(enter(limiter, jobs=7))
    await waiting(other, 1)

    await other.aupdate(Concurrency(3, unit="jobs"))
    with pytest.raises(CostExceedsCapacityError, match="asks for jobs=7") as caught:
        await soon(caller)

    assert "jobs=10" not in str(caught.value)
    assert "were changed to hold less than that" in str(caught.value)
    holder.release()


async def test_an_update_whose_reply_is_lost_is_made_once(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """T9, T10, F24: given a lost reply, when the process sends the update again, then the server
    answers it and does not undo later changes.
    """
    limiter, other = (
        Limiter(name, "10/hour", store=proxy.url),
        elsewhere(name, "10/hour", url=redis_url),
    )
    for each in (limiter, other):
        await soon(declare(each))

    proxy.replies.lose(1)
    await soon(limiter.aupdate("20/hour"))

    assert proxy.replies.lost == 1
    assert [(await soon(each.astatus())).limits[0].capacity for each in (limiter, other)] == [
        20,
        20,
    ]


@pytest.mark.usefixtures("hurried")
async def test_an_update_while_the_server_is_away_arrives_when_it_is_back(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """Given a server that is away, when a process updates limits, then they hold here at once, and
    on the server when it is back.
    """
    limiter, other = Limiter(name, ONE, store=proxy.url), elsewhere(name, ONE, url=redis_url)
    for each in (limiter, other):
        await soon(declare(each))
    proxy.refuses = True
    proxy.reset()

    with pytest.raises(StoreError, match="cannot be asked"):
        await soon(limiter.aupdate(TWO))
    limiter.update(THREE)
    assert queue_of(limiter).declared.capacity == {"permits": 3}
    proxy.refuses = False

    await until(lambda status: status.limits[0].capacity == 3, other)
    assert (await soon(elsewhere(name, ONE, url=redis_url).astatus())).limits[0].capacity == 3


async def test_an_update_during_the_call_of_a_declaration_overrules_the_former_limits(
    name: str, proxy: Proxy, redis_url: str, admin: Redis
) -> None:
    """Given a declaration whose reply is held up, when an update sets the same limits, then they
    overrule the former ones.
    """
    other = elsewhere(name, TWO, url=redis_url)
    await soon(declare(other))
    await Limiter(f"{name}-other", ONE, store=proxy.url).astatus()  # now the connection is there
    proxy.replies.hold()
    seen = len(proxy.replies.seen)
    limiter = Limiter(name, ONE, store=proxy.url)
    caller: asyncio.Task[Permit] = asyncio.create_task(enter(limiter))
    await eventually(lambda: len(proxy.replies.seen) > seen)

    limiter.update(ONE)
    proxy.replies.resume()
    (await soon(caller)).release()
    await at_rest(limiter)

    assert (await soon(elsewhere(name, TWO, url=redis_url).astatus())).limits[0].capacity == 1
    assert str(admin.hget(f"headgate:{{{name}}}", "former"))[0] in "12"


async def test_an_update_that_a_thread_makes_while_a_call_is_written_is_not_lost(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a call that names its limits already, when a thread updates them, then the call does
    not count as the update (F11).
    """
    limiter, other = elsewhere(name, ONE, url=redis_url), elsewhere(name, ONE, url=redis_url)
    await soon(declare(limiter))
    write_call = next_call.write_call

    def meanwhile(*asked: Any, **how: Any) -> Command:
        monkeypatch.undo()
        thread = threading.Thread(target=limiter.update, args=[TWO])
        thread.start()
        thread.join()
        return write_call(*asked, **how)

    monkeypatch.setattr(next_call, "write_call", meanwhile)
    await soon(limiter.astatus())

    await until(lambda status: status.limits[0].capacity == 2, other)
    assert (await soon(limiter.astatus())).limits[0].capacity == 2


async def test_an_update_that_fails_when_the_name_is_known_is_logged(
    name: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Given limits that cannot be divided among the processes, and a name that this process does
    not know yet.
    """
    fleet = Rate(20, per=3600)
    await elsewhere(name, fleet, url=redis_url).acquire()
    limiter = Limiter.attach(name, store=redis_url, on_store_error="local", processes=4)

    limiter.update("3/hour")

    assert (await limiter.astatus()).limits[0].limit == fleet
    log_writer.flush()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"update() of limiter {name!r} has not happened: ValueError" in record.getMessage()
    assert "has less than one for each process" in record.getMessage()
