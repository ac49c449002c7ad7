"""The tools beside the rows, in small: they run, and their results do not depend on the machine. No
figure is a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from benchmarks import (
    ceiling,
    connections,
    floor,
    goals,
    handoff,
    import_time,
    keys_in_process,
    many_keys,
    rate_block,
    shapes,
    windows,
)
from benchmarks.entrants import SEMAPHORES, Entrant
from benchmarks.faults import works
from benchmarks.faults.__main__ import SOUND
from benchmarks.peers import alone
from benchmarks.server_cost import growth
from benchmarks.stage import Contestant, Goal, Role, Row, Stage
from benchmarks.timing import Outcome, Result
from tests.faults.scene import eventually
from tests.records import records
from tests.servers import Server

OURS = SEMAPHORES[0]


def outcome(goal: Goal, **seconds: float) -> Outcome:
    """One round of headgate, a peer and floors."""
    roles = {"headgate": Role.OURS, "peer": Role.PEER, "floor": Role.FLOOR, "decided": Role.FLOOR}
    contestants = tuple(Contestant(name, roles[name], None, None) for name in seconds)  # type: ignore[arg-type]  # nobody plays
    results = [Result(contestant, {1: seconds[contestant.name]}) for contestant in contestants]
    return Outcome(Row("key", "work of {times}", 10, contestants, goal=goal), 10, results)


def test_a_goal_is_shown_beside_its_measured_figure() -> None:
    """Given a peer 12 times as slow and a floor twice as quick, then 10 times ahead is reached, and
    below is not.
    """
    ahead, below = goals.lines_of(
        [
            outcome(
                Goal("{times} at once", Role.PEER, 10.0), headgate=1e-6, peer=12e-6, floor=0.5e-6
            ),
            outcome(Goal("one by one", Role.FLOOR, 1.0), headgate=1e-6, peer=12e-6, floor=0.5e-6),
        ]
    )
    assert (ahead.work, ahead.peer, ahead.floor) == (
        "10 at once",
        "peer 12.0 us, x12.00 slower",
        "floor 0.50 us, x2.00 faster",
    )
    assert (ahead.goal, ahead.reached) == ("x10 ahead of the best peer", True)
    assert (below.goal, below.reached) == ("below floor", False)


def test_a_goal_beyond_the_floor_is_reported_with_the_floor() -> None:
    """Given a floor only 5 times ahead of the peer, then a goal of 10 is beyond it, and 4 not."""
    beyond, missed = goals.lines_of(
        [
            outcome(
                Goal("{times} at once", Role.PEER, factor), headgate=2e-6, peer=5e-6, floor=1e-6
            )
            for factor in (10.0, 4.0)
        ]
    )
    assert (beyond.reached, beyond.verdict) == (False, "NOT REACHED, the floor is x5.00 ahead")
    assert (missed.reached, missed.verdict) == (False, "NOT REACHED")


def test_the_highest_of_several_floors_counts() -> None:
    """Given a floor 20 times ahead of the peer, and one with more of the work, 8 times ahead, then
    10 is out of reach.
    """
    (line,) = goals.lines_of(
        [
            outcome(
                Goal("at once", Role.PEER, 10.0),
                headgate=2e-6,
                peer=8e-6,
                floor=0.4e-6,
                decided=1e-6,
            )
        ]
    )
    assert (line.floor, line.verdict) == (
        "floor 0.40 us, x5.00 faster",
        "NOT REACHED, the floor is x8.00 ahead",
    )


def test_the_script_alone_grants_to_a_crowd(own_server: Server) -> None:
    """Given five tasks and room for them, when the script alone decides, then it grants five."""
    with Redis.from_url(own_server.url) as server, asyncio.Runner() as runner:
        stage = Stage(own_server.url, runner, "alone")
        with alone.bucket(stage) as make:
            shapes.entered_at_once(stage, make, "crowd", 5)
        assert b" grant 5 " in next(
            value
            for name, value in server.hgetall("headgate:{crowd}").items()
            if name.startswith(b"r")
        )


def test_a_crowd_gives_all_its_permits_back(own_server: Server) -> None:
    """Given two crowds of five, one after the other, when all have left, then no permit is held."""
    with Redis.from_url(own_server.url) as server, asyncio.Runner() as runner:
        stage = Stage(own_server.url, runner, "alone")
        with alone.semaphore(5)(stage) as make:
            shapes.entered_at_once(stage, make, "crowd", 5)
            runner.run(given_back(server))


async def given_back(server: Redis) -> None:
    await eventually(
        lambda: any(each.last == 4 for each in records(server, "headgate:{crowd}").values())
    )
    assert not [who for who in server.zrange("headgate:{crowd}:who", 0, -1) if who.startswith(b"+")]


def test_a_goal_that_cannot_be_measured_is_neither_reached_nor_missed() -> None:
    (line,) = goals.lines_of([outcome(Goal("one by one", Role.PEER, 10.0), headgate=1e-6)])
    assert (line.peer, line.reached) == ("-", None)


@pytest.mark.parametrize("work", ["lost reply: a token", "order, connections killed"])
async def test_headgate_passes_the_fault_works_of_the_peers(own_server: Server, work: str) -> None:
    """F24, F26, S6: headgate under the faults of python -m benchmarks.faults."""
    (ours,) = works.entrants(OURS.name)
    assert (
        await works.outcome(works.WORKS[work], ours, own_server.url)
        == SOUND[list(works.WORKS).index(work)]
    )


def test_the_connections_of_a_process_do_not_grow_with_its_waiters(own_server: Server) -> None:
    count = connections.counted(OURS, own_server.url, "waited-for", waiters=150)
    assert (count.failed, count.refused) == (False, 0), count.says
    assert count.connections <= connections.MOST


@pytest.mark.parametrize("entrant", [OURS, handoff.ENTRANTS[-1]], ids=lambda entrant: entrant.name)
def test_a_permit_is_handed_over_three_times_between_two_processes(
    own_server: Server, entrant: Entrant
) -> None:
    handed = handoff.handed_over(entrant, own_server.url, "to-and-fro", times=3)
    assert handed.failure == ""
    assert len(handed.seconds) == 3
    assert min(handed.seconds) > 0


async def test_the_log_of_the_server_shows_each_kind_of_call(own_server: Server) -> None:
    """Given a few waiters and a few holders, when three cycles are read from the log, then each
    kind is there three times.
    """
    with Redis.from_url(own_server.url) as server:
        server.config_set("slowlog-max-len", 1_000)
        server.config_set("slowlog-log-slower-than", 0)
        waiters = await growth.with_waiters(own_server.url, 5, 3, server)
        holders = await growth.with_holders(own_server.url, 5, 3, server)
    assert (
        counted(waiters)
        >= {"a renewal": 3, "a cancel in the middle": 3, "a release that hands over": 3}.items()
    )
    assert holders.keys() - waiters.keys() == {growth.AT_ONCE, growth.FREE}


def counted(times: growth.Times) -> Any:
    return {kind: len(each) for kind, each in times.items()}.items()


async def test_a_window_in_each_state_is_compared_with_a_rate(own_server: Server) -> None:
    limiters = windows.made(windows.ON_REDIS, own_server.user_url)

    each, script = await windows.measure(limiters, 10, 2, lambda: 1.0)

    assert set(each) == set(script) == {"Rate", *windows.IN_MEMORY} == set(limiters)
    assert all(windows.ratio(each, name) > 0 for name in each)


def test_the_parts_of_a_block_are_shown_beside_the_limiter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rate_block, "BLOCKS", 1)

    assert rate_block.main(["--quick"]) == 0

    out = capsys.readouterr().out
    assert all(name in out for name in rate_block.ladder())


def test_import_time_shows_both_imports(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_time.main(["--rounds", "1"]) in (0, 1)
    out = capsys.readouterr().out
    assert "import asyncio" in out
    assert "import headgate adds" in out


def test_keys_in_process_shows_each_contestant(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys_in_process.main(["--keys", "200", "--rounds", "1"]) in (0, 1)

    out = capsys.readouterr().out
    assert all(name in out for name in keys_in_process.CONTESTANTS)


async def test_many_keys_share_a_connection_and_each_has_a_ttl(own_server: Server) -> None:
    found = many_keys.Findings()
    with Redis.from_url(own_server.url) as server:
        await many_keys.idle_keys(own_server.url, server, 200, found)
        await many_keys.live_keys(own_server.url, server, 50, found)
    assert found.wrong == []


async def test_many_keys_measures_keys_that_are_idle_again(
    own_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes of so few keys are not exact, so their number counts."""
    found = many_keys.Findings()
    with Redis.from_url(own_server.url) as server:
        await many_keys.idle_again(own_server.url, server, 200, found)
    assert [wrong for wrong in found.wrong if "keys of Redis" in wrong] == []
    assert "waited for by another process" in capsys.readouterr().out


def test_a_key_without_a_ttl_is_found(own_server: Server) -> None:
    found = many_keys.Findings()
    with Redis.from_url(own_server.url) as server:
        server.set("for-ever", 1)
        many_keys.say_ttls(server, found)
    assert found.wrong == ["1 keys have no TTL"]


@pytest.mark.proof
def test_no_key_is_left_after_its_ttl(
    own_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """S8, L6: and the script of the process that leaves them behind has the shortened constants."""
    found = many_keys.Findings()
    with Redis.from_url(own_server.url) as server:
        many_keys.gone_keys(own_server.url, server, 5, found)
    assert found.wrong == []
    assert " 0 Redis keys are left" in capsys.readouterr().out


@pytest.mark.proof
def test_the_floor_is_measured_with_all_its_parts(
    own_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert floor.measured(own_server.url, rounds=1)
    shown = capsys.readouterr().out
    wanted: Sequence[str] = (
        "headgate's wire, EVALSHA",
        "redis-py, EVALSHA",
        "headgate, `async with`",
    )
    assert [name for name in wanted if name not in shown] == []


@pytest.mark.parametrize("names", [1, 3])
def test_the_acquires_of_all_processes_count_for_the_ceiling(
    own_server: Server, names: int
) -> None:
    work = ceiling.Work(OURS.name, own_server.url, "ceiling", names, seconds=0.05, processes=2)
    done = ceiling.played(work, [own_server.admin])
    assert done.acquires >= 2 * ceiling.TASKS
    assert min(done.clients, done.server) > 0


def test_a_contestant_that_fails_is_shown_with_its_reason(own_server: Server) -> None:
    work = ceiling.Work(OURS.name, "redis://nowhere.invalid", "ceiling", 1, 0.05, 2)
    assert ceiling.cells(work, [own_server.admin])[2:3] == ("fails",)
