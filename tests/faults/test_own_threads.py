"""H1: code of the user that Python runs in headgate's own threads: handlers of its log lines,
finalizers, credential providers.
"""

from __future__ import annotations

import _thread
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import redis
from redis.credentials import CredentialProvider

from headgate import Concurrency, Limiter, Permit, StoreError, threads
from headgate.stores.limit_history import Declarations
from headgate.stores.redis import fast_path
from headgate.stores.redis.transport import portal as portals
from headgate.stores.redis.transport.portal import portal
from tests.processes import Running, environment, finished, running
from tests.servers import Server
from tests.world import long


@pytest.fixture
def evicting(own_server: Server) -> str:
    """The URL of a server that may evict keys: headgate warns of it."""
    with redis.Redis.from_url(own_server.url) as admin:
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    return own_server.user_url


@pytest.mark.parametrize("earlier", ["nothing", "task"])
def test_a_process_at_its_limit_of_threads_has_an_error_until_one_can_start(
    earlier: str, name: str, redis_url: str
) -> None:
    """L5: tasks go on meanwhile."""
    lines = finished("no_threads", redis_url, name, earlier, "limit").splitlines()

    error = "thread headgate needs a thread for calls outside an event loop, and this process"
    before = ["a task enters"] if earlier == "task" else []
    assert lines[: len(before)] == before
    assert [line[: len(error)] for line in lines[len(before) : -3]] == [error, error]
    assert lines[-3:] == ["a task enters", "waits", "enters"]


def test_a_release_at_the_limit_of_threads_arrives_when_one_can_start(
    name: str, redis_url: str
) -> None:
    """L6: its lease is long, so only the release lets the task in."""
    assert finished("no_threads", redis_url, name, "nothing", "release") == "a task enters\n"


def test_two_first_callers_at_the_limit_of_threads_open_one_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L5: the second finds no loop, and goes on when the first has opened it."""

    def begin(work: object, name: str) -> int:
        raise threads.NoThreadError(RuntimeError("can't start new thread"))

    monkeypatch.setattr(portals, "begin", begin)
    found = portals.Portal()

    found.start()
    loop = found.loop
    found.start()

    assert found.loop is loop
    found.close()


@pytest.mark.parametrize("earlier", ["nothing", "task"])
def test_a_callback_of_atexit_can_be_the_first_to_use_a_limiter(
    earlier: str, name: str, redis_url: str
) -> None:
    """L5."""
    lines = finished("no_threads", redis_url, name, earlier, "exit").splitlines()

    assert lines[-2:] == ["waits", "enters"]


def alerts(process: Running) -> int:
    """How many log lines the handler has let pass, after one more entry."""
    process.tell("enter")
    return int(process.line())


def test_a_logging_handler_can_ask_a_limiter(name: str, evicting: str) -> None:
    """L5: given a server that headgate warns of, when the warning's handler calls a limiter, then
    the limiter answers. No caller waits for the handler.
    """
    with running("alerting", evicting, name, "raise") as process:
        assert process.line() == "ready"
        while not alerts(process):
            pass
        assert alerts(process) == 1


SLOW_ALERTS = """
import logging, sys, time
from headgate import Limiter, log_writer
url, name = sys.argv[1:]
alerts = Limiter(f"{name}-alerts", "1/minute", store=url)
class Slack(logging.Handler):
    def emit(self, record):
        time.sleep(0.05)
        print("alert" if alerts.try_acquire() else "refused")
logging.getLogger().addHandler(Slack())
with Limiter(name, "100/second", store=url): print("passed")
log_writer.log(logging.WARNING, "the last line of the process")
"""


def test_a_process_whose_logging_handler_asks_a_limiter_ends(name: str, redis_url: str) -> None:
    """H1: the handler still runs when the process ends. It gets an answer, and the process does
    not wait for ever at the lock of the handler.
    """
    assert finished(SLOW_ALERTS, redis_url, name).splitlines() == ["passed", "alert"]


WAITING_ALERTS = """
import asyncio, logging, sys
from headgate import Limiter, log_writer
store, name, way = sys.argv[1:]
alerts = Limiter(f"{name}-alerts", "1/hour", store=store)
async def alert():
    async with alerts: print("alert", flush=True)
class Slack(logging.Handler):
    def emit(self, record):
        if way == "async":
            asyncio.run(alert())
            return
        with alerts: print("alert", flush=True)
logging.getLogger("headgate").addHandler(Slack())  # asyncio logs, too, if a step is slow
logging.raiseExceptions = False
for _ in range(3): log_writer.log(logging.WARNING, "a line")
"""


@pytest.mark.parametrize("way", ["async", "sync"])
@pytest.mark.parametrize("store", ["memory", "redis"])
def test_a_process_whose_logging_handler_waits_for_its_turn_ends(
    name: str, redis_url: str, store: str, way: str
) -> None:
    """H1: the handler would wait for an hour, with its lock, for which logging.shutdown waits."""
    url = redis_url if store == "redis" else "memory://"
    assert finished(WAITING_ALERTS, url, name, way).splitlines() == ["alert"]


LATE_DAEMON = """
import logging, sys, threading
from headgate import Limiter
url, name = sys.argv[1:]
limiter, ends = Limiter(name, "100/second", store=url), threading.Event()
class Slow(logging.Handler):
    def emit(self, record):
        ends.wait()
        limiter.try_acquire()
logging.getLogger().addHandler(Slow())
with limiter: pass
threading.Thread(target=logging.error, args=["late"], daemon=True).start()
import headgate.stores.redis.transport.shutdown as shutdown
real = shutdown.close_portal
def close_portal():
    real()
    ends.set()
shutdown.close_portal = close_portal
"""


def test_a_daemon_thread_that_asks_while_the_process_ends_keeps_no_lock_for_ever(
    name: str, redis_url: str
) -> None:
    """H1: given a daemon thread in a logging handler, when it asks a limiter behind the last call
    of the process, then logging.shutdown gets the handler's lock.
    """
    output = subprocess.run(
        [sys.executable, "-c", LATE_DAEMON, redis_url, name],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=long(),
        check=False,
    )
    assert output.returncode == 0


def die(work: Callable[[], object], name: str) -> int:
    """Start a thread that ends before its work begins."""
    return _thread.start_new_thread(int, ())


def test_an_acquire_goes_on_when_an_exception_has_ended_the_thread_that_connects(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: an asynchronous exception for the calling thread can come to the new one."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    limiter.acquire_sync().release()
    monkeypatch.setattr(fast_path, "begin", die)
    for _ in range(2):
        with limiter:
            pass


def test_the_portal_starts_when_an_exception_has_ended_its_first_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H1: the same, for the thread that serves threads."""
    begins = iter([die, threads.begin])
    monkeypatch.setattr(portals, "begin", lambda work, name: next(begins)(work, name))
    found = portals.Portal()
    found.start()
    found.close()


@pytest.mark.proof
def test_a_logging_handler_can_ask_a_limiter_when_a_server_goes_and_returns(
    name: str, own_server: Server
) -> None:
    """L5: with on_store_error="open", the handler gets the lines "goes without its store" and "is
    back" while the server is away.
    """
    with running("alerting", own_server.user_url, name, "open") as process:
        assert process.line() == "ready"
        assert alerts(process) == 0
        own_server.kill()
        while not alerts(process):
            pass
        own_server.start()
        before = alerts(process)
        while alerts(process) == before:
            pass


def in_the_portal(act: Callable[[], Any]) -> Any:
    """The result or the error of `act` in that thread."""
    outcomes: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            outcomes.put(act())
        except Exception as error:
            outcomes.put(error)

    portal().tell(run)
    return outcomes.get(timeout=long())


CALLS: dict[str, Callable[[Limiter], Any]] = {
    "acquire_sync": lambda limiter: limiter.acquire_sync(),
    "try_acquire": lambda limiter: limiter.try_acquire(),
    "with": lambda limiter: limiter(list.copy)([]),
    "status": lambda limiter: limiter.status(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_in_the_thread_that_would_answer_it_is_refused(
    name: str, redis_url: str, call: str
) -> None:
    """L5: a finalizer, say, that the collector runs there learns at once that it cannot wait."""
    error = in_the_portal(lambda: CALLS[call](Limiter(name, Concurrency(1), store=redis_url)))
    assert isinstance(error, StoreError)
    assert error.reason == "thread"
    assert "headgate's own thread" in str(error)


@pytest.mark.parametrize("call", ["acquire_sync", "try_acquire"])
def test_on_store_error_decides_about_a_call_in_the_thread_that_would_answer_it(
    name: str, redis_url: str, call: str
) -> None:
    open_limiter = Limiter(name, Concurrency(1), store=redis_url, on_store_error="open")
    assert isinstance(in_the_portal(lambda: CALLS[call](open_limiter)), Permit)

    local = Limiter(name, Concurrency(1), store=redis_url, on_store_error="local", processes=1)
    permit = in_the_portal(lambda: CALLS[call](local))
    refused = in_the_portal(lambda: CALLS[call](local))
    assert isinstance(permit, Permit)
    assert not refused or isinstance(
        refused, StoreError
    )  # and it does not wait for the permit that is held
    permit.release()


def test_a_call_that_waits_for_no_answer_is_never_refused(name: str, redis_url: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    permit = limiter.acquire_sync()
    assert (
        in_the_portal(
            lambda: (
                limiter.update(Concurrency(2)),
                limiter.pause(0.001),
                permit.release(),
                repr(limiter),
            )[0]
        )
        is None
    )
    while (status := limiter.status().limits[0]).used or status.capacity != 2:
        pass


def test_a_finalizer_can_use_a_limiter_wherever_the_collector_runs_it(
    name: str, redis_url: str
) -> None:
    """L5: given garbage whose `__del__` calls a limiter, when the collector finds it in headgate's
    own thread, then only that call is refused.
    """
    limiter, outcomes = Limiter(name, Concurrency(1), store=redis_url), []

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                outcomes.append(limiter.try_acquire())
            except StoreError as error:
                outcomes.append(error)

    gc.disable()  # or it may be found in this thread, whose `try_acquire` is not refused
    try:
        Garbage()
        in_the_portal(gc.collect)
    finally:
        gc.enable()
    with limiter:
        pass
    assert [type(outcome) for outcome in outcomes] == [StoreError]


@pytest.mark.parametrize("step", ["update", "declare"])
def test_a_signal_handler_can_wait_for_an_answer_in_the_middle_of_an_update(
    name: str, redis_url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5: the thread that answers the handler must not wait for the code that the handler has
    interrupted.
    """
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    with limiter:
        pass
    whole = getattr(Declarations, step)

    def interrupted(declarations: Declarations, program: str) -> None:
        monkeypatch.undo()
        limiter.status()
        whole(declarations, program)

    def change() -> None:
        limiter.update(Concurrency(2))
        with Limiter(name, Concurrency(3), store=redis_url):
            pass

    monkeypatch.setattr(Declarations, step, interrupted)
    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    thread.join(long())
    assert not thread.is_alive()
    assert limiter.status().limits[0].capacity == 3


def test_a_credential_provider_can_ask_a_limiter(name: str, own_server: Server) -> None:
    """L5: the connection that asks for the password must not wait for itself."""
    tokens = Limiter(f"{name}-tokens", Concurrency(5), store=own_server.user_url)
    login = redis.connection.parse_url(own_server.user_url)

    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            try:
                limiter.try_acquire()
            except StoreError:
                tokens.pause(0.001)
            return login["username"], login["password"]

    client = redis.Redis(host=login["host"], port=login["port"], credential_provider=Provider())
    limiter = Limiter(name, Concurrency(5), store=client)
    with limiter:
        assert limiter.status().limits[0].used >= 1
