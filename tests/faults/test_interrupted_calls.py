"""An exception comes while a call to Redis is made or written: of a signal handler, or for want of
memory. Every caller then gets an answer, and no permit is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Concurrency, Limiter
from headgate.stores.redis.session import loop_session, next_call
from headgate.stores.redis.transport import node, sending
from headgate.stores.redis.transport.connection import Connection
from headgate.stores.redis.transport.reconnection import Reconnection
from headgate.stores.redis.transport.sending import Sending
from tests.world import LONG


class Interrupt(Exception):
    pass


STEPS = {
    "made": (next_call, "write_call"),
    "packed": (node, "pack"),
    "written": (Connection, "send"),
    "kept for a connection": (Reconnection, "add_unrouted"),
}
Interrupting = Callable[[str], None]


@pytest.fixture
def interrupt_next(monkeypatch: pytest.MonkeyPatch) -> Interrupting:
    """Have a step of the next call to the server end with an exception."""

    def interrupt(where: str) -> None:
        owner, step = STEPS[where]
        real = getattr(owner, step)

        def raising(*arguments: Any, **how: Any) -> Any:
            monkeypatch.setattr(owner, step, real)
            real(*arguments, **how)
            raise Interrupt

        monkeypatch.setattr(owner, step, raising)

    return interrupt


async def entered(limiter: Limiter) -> None:
    async with limiter:
        pass


async def all_pass_but_one(limiters: list[Limiter]) -> None:
    async with asyncio.timeout(LONG):
        callers = [entered(limiter) for limiter in limiters for _ in range(2)]
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) >= len(callers) - 1
    assert all(outcome is None or isinstance(outcome, Interrupt) for outcome in outcomes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("names", [1, 3])
@pytest.mark.parametrize("where", STEPS)
async def test_an_exception_in_a_call_leaves_no_caller_waiting(
    name: str, redis_url: str, interrupt_next: Interrupting, where: str, names: int
) -> None:
    """L5: given acquires in one turn, when the next call is interrupted, then each caller
    passes, or raises that exception, and all permits are free afterwards. The first time, this
    loop has no connection yet.
    """
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    limiters = [Limiter(f"{name}-{i}", Concurrency(1), store=redis_url) for i in range(names)]
    for _ in range(5):
        interrupt_next(where)
        await all_pass_but_one(limiters)
        await all_pass_but_one(limiters)


async def test_a_later_call_goes_on_for_a_turn_whose_callback_an_exception_has_taken(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5: given acquires whose turn ends with an exception in place of headgate's callback, when
    another acquire comes later, then all pass.
    """
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    monkeypatch.setattr(sending, "PAUSE", 0.0)
    limiter, flush, taken = Limiter(name, Concurrency(1), store=redis_url), Sending._flush, []

    def interrupted(self: Sending) -> None:
        taken.append(self)
        if len(taken) == 1:
            raise Interrupt
        flush(self)

    monkeypatch.setattr(Sending, "_flush", interrupted)
    callers = [asyncio.ensure_future(entered(limiter)) for _ in range(2)]
    while not taken:  # noqa: ASYNC110 - headgate has no event for it
        await asyncio.sleep(0)
    async with asyncio.timeout(LONG):
        await asyncio.gather(*callers, entered(limiter))


async def test_an_exception_while_a_permit_is_made_gives_its_grant_back(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: the next caller passes long before the lease ends."""
    limiter = Limiter(name, Concurrency(1, lease=3600), store=redis_url)

    def interrupted(*values: object) -> None:
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop_session, "Permit", interrupted)
        with pytest.raises(Interrupt):
            await limiter.acquire()
    async with asyncio.timeout(LONG):
        await entered(limiter)


class Server:
    """A node of a Cluster, whose write may be interrupted."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self.outcome = "its calls are kept for ever"
        self.connection = self

    def buffer(self) -> bool:
        return True

    def write(self) -> None:
        if self.interrupted:
            raise Interrupt
        self.outcome = "written"

    def cut(self, lost: Exception) -> None:
        self.outcome = "cut"


def test_an_exception_in_the_write_to_one_server_leaves_no_other_server_unwritten() -> None:
    """L5: given a turn with calls for three servers, when the second write is interrupted, then the
    connections that were not written end, so that their calls are sent again.
    """
    servers = [Server(), Server(interrupted=True), Server()]
    idle: Any = SimpleNamespace(command=lambda: None)
    of_cluster: Any = SimpleNamespace(loop=None, ended=False, nodes=dict(enumerate(servers)))
    its = Sending(of_cluster)
    its._ready.extend([idle, idle])
    with pytest.raises(Interrupt):
        its._flush()
    assert [server.outcome for server in servers] == ["written", "cut", "cut"]


@pytest.mark.parametrize("where", ["made", "packed", "written"])
def test_an_exception_in_a_call_leaves_no_thread_waiting(
    name: str, redis_url: str, interrupt_next: Interrupting, where: str
) -> None:
    """L5: the same for threads. Their first acquire declares the limits in headgate's own loop."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    outcomes: list[str] = []

    def work() -> None:
        try:
            with limiter:
                outcomes.append("passed")
        except Interrupt:
            outcomes.append("raised")

    interrupt_next(where)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(outcomes) == 3
    assert outcomes.count("passed") >= 2
    work()
    assert outcomes[-1] == "passed"


async def test_an_exception_in_a_redirected_call_gives_no_reply_to_another_one(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, D6: given a call that was redirected to another server, when it is interrupted as soon as
    it is written, then no other caller of that connection gets its reply.
    """
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    limiters = [Limiter(f"{name}-{i}", Concurrency(5), store=redis_url) for i in range(2)]
    await asyncio.gather(*map(entered, limiters))
    real, send_call = Connection.send, node.Node.send_call
    told: list[node.Call] = []

    def interrupted(connection: Connection, command: bytes) -> None:
        real(connection, command)
        if told:
            told.pop().sender.node = None  # as a redirection does
            raise Interrupt

    def noted(its: node.Node, call: node.Call) -> None:
        if call.sender.key.endswith("-0}"):
            monkeypatch.setattr(node.Node, "send_call", send_call)
            told.append(call)
        send_call(its, call)

    monkeypatch.setattr(Connection, "send", interrupted)
    monkeypatch.setattr(node.Node, "send_call", noted)
    async with asyncio.timeout(LONG):
        callers = [entered(limiters[i]) for i in (0, 1, 1)]
        outcomes = await asyncio.gather(*callers, return_exceptions=True)

    assert outcomes[1:] == [None, None]
