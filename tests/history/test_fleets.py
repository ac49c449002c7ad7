"""The model accepts the histories of runs, real and simulated. It rejects those of Lua without one
of its guards.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from headgate.limits import Rate
from headgate.stores.redis.protocol import script
from tests.faults.scene import eventually
from tests.history import __main__ as command
from tests.history import recorded
from tests.history.checker import judged
from tests.history.events import Returned, kept
from tests.processes import running
from tests.servers import Server
from tests.simulation.fleet import run
from tests.simulation.loop import SECOND
from tests.simulation.network import CALM
from tests.simulation.plan import Ask, Fault, Plan, planned
from tests.simulation.test_simulation import LUA

ENOUGH = 60  # seeds: one of the guards shows in a few of them only
LEASE = 0.5  # seconds, of programs/recorded.py
# A caller that sleeps for a moment before the end of a pause waits again, with another caller
# behind it. That happens seldom by chance.
HELD_BACK = Plan(
    1,
    2,
    ((Rate(1, per=1),),),
    None,
    CALM,
    True,
    0.0,
    20 * SECOND,
    (
        Ask(0, 0, 0, "enter", 1, 1000),
        Ask(100_000, 1, 0, "enter", 1, 1000),
        Ask(200_000, 0, 0, "enter", 1, 1000),
        Fault(985_000, "pause", 0, 500_000),
    ),
)


@pytest.fixture
def own_admin(own_server: Server) -> Iterator[Redis]:
    with Redis(port=own_server.port, decode_responses=True) as client:
        yield client


@pytest.mark.proof
async def test_the_history_of_a_real_fleet_with_faults_is_accepted(
    name: str, own_server: Server, own_admin: Redis, tmp_path: Path
) -> None:
    """S1, S3, S5, S6, S7, T1, T6, T10: three processes, one killed and one stopped past its lease,
    with lost replies and killed connections. Every answer is the model's, in an order that agrees
    with real time. F13, F14, F21, F24, F26.
    """
    async with recorded.Witness(own_server.port) as proxy:
        work = "recorded", proxy.admin_url, name
        with running(*work) as killed, running(*work) as stopped, running(*work) as last:
            for process in (killed, stopped, last):
                assert await process.said() == "works"
            await grown(own_admin, 50)
            proxy.replies.hold()
            answered = len(proxy.replies.seen)
            await eventually(
                lambda: len(proxy.replies.seen) >= answered + 3
            )  # a call of each was run, and no process gets the answer
            here = len(proxy.connections)
            killed.kill()
            await eventually(lambda: len(proxy.connections) < here)
            proxy.replies.resume()
            stopped.signal(signal.SIGSTOP)
            for _ in range(5):
                proxy.replies.lose(1)
                await grown(own_admin, 20)
            proxy.reset()
            end = asyncio.get_running_loop().time() + LEASE  # of the stopped process's leases
            await eventually(lambda: asyncio.get_running_loop().time() > end)
            stopped.signal(signal.SIGCONT)
            await grown(own_admin, 50)
            for process in (stopped, last):
                process.tell("that is all")
                assert await asyncio.to_thread(process.lines) == []
        history = [*proxy.history, *recorded.commits(own_admin)]

    verdict = judged(history)
    assert verdict.broken is None, str(verdict)
    assert verdict.commits > 200
    assert sum(isinstance(event, Returned) for event in history) > 150
    assert verdict.unknown >= verdict.run > 0, (
        "the killed one's last call was run, and nobody heard of it"
    )
    kept(history, tmp_path / "history")
    assert command.main([str(tmp_path / "history")]) == 0


async def grown(admin: Redis, by: int) -> None:
    """Go on when so many more calls have been run."""
    goal = admin.llen(recorded.LIST) + by
    await eventually(lambda: admin.llen(recorded.LIST) >= goal)


@pytest.mark.proof("simulates fleets")
@pytest.mark.parametrize(
    "fault", [fault for fault in LUA if fault != "keys never end"]
)  # which no answer shows
def test_the_history_of_lua_without_a_guard_is_rejected(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given Lua without one of its guards, then some history alone shows it, without the
    simulation's own checks.
    """
    part, text, instead, _ = LUA[fault]
    sources = script.sources()
    for form, its in vars(
        script.Library({**sources, part: sources[part].replace(text, instead)})
    ).items():
        monkeypatch.setattr(script.library(), form, its)

    plans = (HELD_BACK, *map(planned, range(ENOUGH)))
    assert any(judged(run(plan, replays=False).history).broken for plan in plans)
