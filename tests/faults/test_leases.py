"""Leases that are lost on a real server, to limiters with on_lost="cancel": each caller in a block
learns of it (S2, S4).

unit/test_watch.py checks in virtual time how a watch treats its body in every case. Here servers,
networks and processes bring it about: F12, F13, F32, F45. The other files of this folder check
`permit.lost` in the same faults.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from math import inf
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, LeaseLostError, Limiter, Rate, lease_watch, log_writer
from headgate.internals import queue_of
from headgate.stores.redis.session.grants import Grants
from tests.faults.proxy import Proxy
from tests.faults.scene import Puppet, Slack, elsewhere, eventually, keys_of
from tests.machine import Stalls, scaled
from tests.servers import Server
from tests.stepping import WAYS, cancelled_at
from tests.world import HOUR, at_rest, renew_now, session_of, soon, used

LEASE = scaled(1.5)
ONE = Concurrency(1, lease=LEASE)
IN = {"limiter": lambda limiter: limiter, "acquire": lambda limiter: limiter.acquire()}

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(params=IN)
def block(request: pytest.FixtureRequest) -> Callable[[Limiter], Any]:
    """The block to enter: the limiter itself, or an acquire of it."""
    return IN[request.param]


class Stay:
    """A caller in a block that would stay for ever, and the moment when it had to leave."""

    def __init__(self, block: Any) -> None:
        self.inside = False
        self.ended = 0.0
        self.task = asyncio.create_task(self._stay(block))

    async def _stay(self, block: Any) -> None:
        async with block:
            self.inside = True
            try:
                await asyncio.sleep(HOUR)
            finally:
                self.ended = monotonic()

    async def lost(self) -> float:
        """When it had to leave, for that reason and no other."""
        with pytest.raises(
            LeaseLostError, match=r"lost its permit \d+\.\d{3} s after it began, \d+\.\d{3} s ago"
        ):
            await soon(self.task)
        return self.ended


async def staying(block: Any) -> Stay:
    stay = Stay(block)
    await eventually(lambda: stay.inside or stay.task.done())
    assert stay.inside, stay.task.exception()
    return stay


# Answers of the server ----------------------------------------------------------------------------


async def test_a_holder_of_a_permit_that_the_server_has_forgotten_is_cancelled_at_the_next_renewal(
    name: str, redis_url: str, admin: Redis, block: Callable[[Limiter], Any]
) -> None:
    """F45, S4: given FLUSHALL, then the body ends at its next renewal, while its lease still runs.
    Its leaving releases no other permit.
    """
    one = Concurrency(1, lease=60.0)  # nothing else ends it within the test
    limiter, other = (
        Limiter(name, one, store=redis_url, on_lost="cancel"),
        elsewhere(name, one, url=redis_url),
    )
    stay = await staying(block(limiter))

    admin.delete(*keys_of(admin, name))
    successor = await soon(other.acquire())
    renew_now(session_of(queue_of(limiter)))

    await stay.lost()
    assert used(await limiter.astatus()) == [1]
    assert await successor.arelease()


async def test_a_holder_is_cancelled_when_the_server_restarts_empty(
    name: str, own_server: Server, block: Callable[[Limiter], Any], slack: Slack
) -> None:
    """F32, S4: after kill -9 without persistence the body ends as soon as a renewal is answered, or
    when the lease is over.
    """
    limiter = Limiter(name, ONE, store=own_server.url, on_lost="cancel")
    stay = await staying(block(limiter))
    start = monotonic()

    own_server.kill()
    own_server.start()

    assert await stay.lost() - start <= LEASE + slack()
    async with limiter:  # all is well again
        assert used(await limiter.astatus()) == [1]
    await at_rest(limiter)


def test_a_thread_has_a_lease_lost_error_at_the_end_of_its_block(
    name: str, redis_url: str, admin: Redis
) -> None:
    """F45: headgate cannot interrupt a thread. A loop of another thread makes its renewals and
    receives the answers.
    """
    limiter = Limiter(name, ONE, store=redis_url, on_lost="cancel")
    ran = []

    with pytest.raises(LeaseLostError), limiter.acquire() as permit:
        admin.delete(*keys_of(admin, name))
        while not permit.lost:
            time.sleep(0.001)
        ran.append("to its end")
    with pytest.raises(ZeroDivisionError), limiter.acquire() as permit:
        admin.delete(*keys_of(admin, name))
        while not permit.lost:
            time.sleep(0.001)
        raise ZeroDivisionError
    with limiter:
        pass

    assert ran == ["to its end"]


async def test_each_lost_lease_is_logged_once(
    name: str, redis_url: str, admin: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """S4: three permits that the server has forgotten are one line with the name and their fences.
    Releases add none.
    """
    limiter = Limiter(name, Concurrency(3, lease=LEASE), store=redis_url)
    permits = [await limiter.acquire() for _ in range(3)]

    admin.delete(*keys_of(admin, name))
    await eventually(lambda: all(permit.lost for permit in permits))
    for permit in permits:
        permit.release()
    await limiter.astatus()

    log_writer.flush()
    lines = [record for record in caplog.records if "lost the lease" in record.message]
    fences = ", ".join(str(permit.fence) for permit in permits)
    assert [(line.levelname, line.message.partition(":")[0]) for line in lines] == [
        ("WARNING", f"3 held permit(s) of limiter {name!r} lost the lease (fence {fences})")
    ]
    assert [permit.lost for permit in permits] == [True, True, True]


async def test_a_lease_that_ends_without_an_answer_is_logged_too(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """F13, S2: the server stands still for longer than the lease."""
    limiter = Limiter(name, ONE, store=own_server.url)
    permit = await limiter.acquire()

    own_server.pause()
    await eventually(lambda: permit.lost)
    permit.release()
    own_server.resume()

    log_writer.flush()
    assert sum("1 held permit(s)" in record.message for record in caplog.records) == 1


# Leases without an answer -------------------------------------------------------------------------


@pytest.fixture
def cautious(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies are cancelled so early that a busy machine does not make them late."""
    monkeypatch.setattr(lease_watch, "MARGIN", 0.7)
    monkeypatch.setattr(lease_watch, "MARGIN_FRACTION", 0.5)


@pytest.mark.usefixtures("cautious")
async def test_a_body_ends_before_the_server_grants_its_permit_to_another_caller(
    name: str, proxy: Proxy, redis_url: str, block: Callable[[Limiter], Any]
) -> None:
    """S1, S2: given a network that swallows all renewals, when another caller waits for the permit,
    then no two callers are ever inside.
    """
    limiter, other = (
        Limiter(name, ONE, store=proxy.url, on_lost="cancel"),
        elsewhere(name, ONE, url=redis_url),
    )
    stay, stalls = await staying(block(limiter)), Stalls()
    entered = monotonic()

    proxy.requests.hold()
    successor = await soon(other.acquire())
    came = monotonic()

    assert stay.ended
    assert await stay.lost() < min(entered + LEASE, came) + stalls.seconds
    proxy.requests.resume()
    assert await successor.arelease()
    assert await (await soon(limiter.acquire())).arelease()  # all is well again
    await at_rest(other)


@pytest.mark.proof
async def test_a_body_goes_on_when_a_single_renewal_fails(
    name: str, proxy: Proxy, block: Callable[[Limiter], Any]
) -> None:
    """S2: after a renewal that was refused, or lost with its connection, the next one follows, and
    the body does not notice. The last permit takes the renewals with it.
    """
    limiter = Limiter(name, ONE, store=proxy.url, on_lost="cancel")
    stay = await staying(block(limiter))

    def refused(reply: bytes) -> bytes:
        proxy.replies.alter = None
        return b"-READONLY You can't write against a read only replica.\r\n"

    await eventually(lambda: renewals(proxy) == 1)
    proxy.replies.alter = refused
    await eventually(lambda: renewals(proxy) == 2 and proxy.replies.alter is None)
    await eventually(lambda: renewals(proxy) == 4)  # more than a lease after the first
    assert not stay.ended

    stay.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stay.task
    await at_rest(limiter)
    loop_session = session_of(queue_of(limiter))
    await eventually(lambda: loop_session.machine.renewal.moment == inf)
    assert renewals(proxy) == 4


async def test_all_permits_of_a_process_are_renewed_in_one_call(name: str, proxy: Proxy) -> None:
    """S9: fifty bodies need one call in each third of a lease."""
    limiter = Limiter(name, Concurrency(50, lease=6.0), store=proxy.url, on_lost="cancel")
    stays = [await staying(limiter) for _ in range(50)]
    proxy.requests.seen.clear()

    await eventually(lambda: renewals(proxy) >= 50)
    calls = [piece.count(b"$5\r\nrenew\r\n") for piece in proxy.requests.seen]

    assert calls == [50] * len(calls)
    for stay in stays:
        stay.task.cancel()
    await asyncio.gather(*(stay.task for stay in stays), return_exceptions=True)
    assert all(stay.task.cancelled() for stay in stays)
    await at_rest(limiter)


async def test_a_permit_that_a_task_of_another_loop_receives_is_renewed(
    name: str, proxy: Proxy
) -> None:
    """F7: the portal takes a session over when its loop ends, and a task of that loop may receive
    its grant a moment later.
    """
    asyncio.get_running_loop().set_debug(True)
    limiter = Limiter(name, Concurrency(1, lease=60), store=proxy.url)
    permit = await limiter.acquire()
    loop_session = session_of(limiter)

    await asyncio.to_thread(loop_session.hold, permit, 300_000)  # microseconds

    await eventually(lambda: renewals(proxy) >= 1)
    assert await permit.arelease()


def renewals(proxy: Proxy) -> int:
    """How many renewals of a permit have been sent so far."""
    return sum(piece.count(b"$5\r\nrenew\r\n") for piece in proxy.requests.seen)


# Time during which a loop or process stood still --------------------------------------------------


async def test_a_body_learns_that_its_loop_was_blocked_before_it_goes_on(
    name: str, redis_url: str, block: Callable[[Limiter], Any]
) -> None:
    """F12, S2: a call blocks the loop for two leases, and the body's own wait is over, too. The
    body ends where it awaits.
    """
    lease, went_on = 0.04, []
    limit = Concurrency(1, lease=lease)
    limiter, other = (
        Limiter(name, limit, store=redis_url, on_lost="cancel"),
        elsewhere(name, limit, url=redis_url),
    )

    with pytest.raises(LeaseLostError):
        async with block(limiter):
            asyncio.get_running_loop().call_soon(time.sleep, 2 * lease)
            await asyncio.sleep(lease)
            went_on.append(True)

    assert went_on == []
    await (await soon(other.acquire())).arelease()
    await at_rest(limiter)


async def test_a_body_that_blocked_the_loop_itself_learns_it_at_its_end(
    name: str, redis_url: str, block: Callable[[Limiter], Any]
) -> None:
    """F12: the body never awaited, so no cancellation could reach it. The block raises that it
    worked without a permit.
    """
    lease = 0.04
    limiter = Limiter(name, Concurrency(1, lease=lease), store=redis_url, on_lost="cancel")

    with pytest.raises(LeaseLostError, match=r"lost its permit \d\.\d+ s after it began"):
        async with block(limiter):
            time.sleep(2 * lease)  # noqa: ASYNC251 - that is the fault

    await asyncio.sleep(0)  # and no cancellation is left over
    await at_rest(limiter)


async def test_a_process_that_was_stopped_past_its_lease_ends_its_body_first(
    name: str, redis_url: str, puppet: Callable[..., Puppet]
) -> None:
    """F13, S5: kill -STOP, another caller takes over, kill -CONT: the body ends where it stood, and
    its fence is the lower one.
    """
    limit = Concurrency(1, lease=0.9)
    limiter, other = Limiter(name, limit, store=redis_url, on_lost="cancel"), puppet(limit)
    fence = int(await other.hears("stay a", until="a inside"))

    other.stop()
    async with limiter.acquire() as permit:
        other.resume()
        assert await other.says("a ended") == "LeaseLostError"
        assert permit.fence > fence

    await at_rest(limiter)


# Cancelled ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken", [False, True], ids=["free", "taken"])
async def test_a_cancellation_at_any_suspension_leaves_nothing_behind(
    name: str, redis_url: str, way: str, taken: bool, block: Callable[[Limiter], Any]
) -> None:
    """STEP, S7: for every k, cancel at the k-th suspension of a block. Then no permit is held, no
    caller waits, and only granted calls were charged. No watch is left over a body that is gone.
    F2.
    """
    loop = asyncio.get_running_loop()
    for at in count():
        limits = Concurrency(1), Rate(100, per=1000 * HOUR)
        limiter = Limiter(f"{name}-{at}", *limits, store=redis_url, on_lost="cancel")
        let_in: list[int] = []
        if taken:
            loop.call_later(0.003, (await limiter.acquire()).release)

        reached = await cancelled_at(visit(block(limiter), let_in), way, at)

        assert used(await at_rest(limiter)) == [0, len(let_in) + taken]
        assert queue_of(limiter)._inside == {}
        if not reached:
            break
    assert at >= 2


async def visit(block: Any, let_in: list[int]) -> None:
    async with block:
        let_in.append(1)
        await asyncio.sleep(0)


async def test_a_holder_that_learns_late_of_its_grant_renews_at_once(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, S7: given a notification that came when most of the lease was over, then the holder
    renews at once. In a third of the lease it would be too late.
    """
    monkeypatch.setattr(Grants, "_certain_until", lambda its, *told: monotonic() + 0.2 * LEASE)
    permit = await elsewhere(name, ONE, url=redis_url).acquire()
    rest = permit.certain_until

    await eventually(lambda: permit.certain_until > rest)

    assert not permit.lost
    assert await permit.arelease()
