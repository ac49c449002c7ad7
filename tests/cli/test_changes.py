"""Looking and changing from a shell: the verbs, their exit codes, and the question before a change.

The limiters of these tests stand for the fleet: they see each change.
"""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
from time import monotonic

import pytest
from redis import Redis

from headgate import Limiter, Status
from headgate.stores.redis.protocol.members import HOLDERS
from tests.cli.command import (
    COMMAND,
    PATIENCE,
    Done,
    headgate_done,
    headgate_here,
    is_harmless,
    read_until,
    terminal,
    variables,
)
from tests.faults.scene import client_of_its_own, enter
from tests.machine import scaled
from tests.rights import USER
from tests.servers import Server, dead_port
from tests.world import waiting


@pytest.fixture
async def fleet(name: str, redis_url: str) -> Limiter:
    """The name, in use: one of ten requests is used, and the one permit is free."""
    limiter = Limiter(name, "10/hour", "1 concurrent", store=redis_url)
    async with limiter:
        pass
    await limiter.aflush()
    return limiter


async def uses(limiter: Limiter) -> tuple[int, ...]:
    return tuple(limit.used for limit in (await limiter.astatus()).limits)


async def test_show_prints_the_status_of_a_name(fleet: Limiter, redis_url: str) -> None:
    shown = headgate_done(redis_url, "show", fleet.name, "--json").object

    status: Status = await fleet.astatus()
    assert [shown["name"], shown["waiting"], shown["paused"]] == [fleet.name, 0, 0.0]
    assert [limit["used"] for limit in shown["limits"]] == [1, 0]
    assert [limit["text"] for limit in shown["limits"]] == list(map(str, fleet.limits))
    assert (await headgate_here(redis_url, "show", fleet.name)).out == f"{status}\n"


async def test_an_unknown_name_is_an_error_and_stays_unknown(
    name: str, redis_url: str, admin_url: str
) -> None:
    looked = headgate_done(redis_url, "show", name)
    listed = await headgate_here(admin_url, "ls", name)  # it needs the right to +scan
    changed = await headgate_here(redis_url, "pause", name, "30", "--yes")

    for done in (looked, listed, changed):
        assert (done.code, done.out) == (66, "")
    assert name in looked.err
    assert Redis.from_url(admin_url).keys(f"headgate:{{{name}}}*") == []


async def test_set_replaces_the_limits_of_the_fleet(fleet: Limiter, redis_url: str) -> None:
    done = headgate_done(redis_url, "set", fleet.name, "20/hour", "3 concurrent", "--yes", "--json")

    assert done.object == {
        "schema": "headgate.change/1",
        "change": "set",
        "name": fleet.name,
        "key": None,
    }
    limits = [str(limit.limit) for limit in (await fleet.astatus()).limits]
    assert limits == ["20 in any hour", "3 concurrent"]


async def test_pause_holds_the_fleet_until_resume(fleet: Limiter, redis_url: str) -> None:
    assert (await headgate_here(redis_url, "pause", fleet.name, "300", "--yes")).code == 0
    assert 200 < (await fleet.astatus()).paused <= 300

    assert (await headgate_here(redis_url, "resume", fleet.name, "--yes")).code == 0
    assert (await fleet.astatus()).paused == 0


async def test_pause_holds_all_keys_and_with_key_that_one_alone(name: str, redis_url: str) -> None:
    """Given a limiter of which only keys are in use."""
    limiter = Limiter(name, "10/hour", store=redis_url)
    one, other = limiter["one"], limiter["other"]
    for key in (one, other):
        async with key:
            pass

    done = await headgate_here(redis_url, "pause", name, "300", "--key", "one", "--yes", "--json")
    assert (done.object["name"], done.object["key"]) == (name, "one")
    assert [200 < (await key.astatus()).paused <= 300 for key in (one, other)] == [True, False]
    await headgate_here(redis_url, "resume", name, "--key", "one", "--yes")
    assert (await one.astatus()).paused == 0

    assert (await headgate_here(redis_url, "pause", name, "300", "--yes")).code == 0
    assert [200 < (await key.astatus()).paused <= 300 for key in (one, other)] == [True, True]
    shown = (await headgate_here(redis_url, "show", name, "--json")).object
    assert (200 < shown["paused"] <= 300, shown["limits"][0]["used"]) == (True, 0)
    assert (await headgate_here(redis_url, "resume", name, "--yes")).code == 0
    assert [(await key.astatus()).paused for key in (one, other)] == [0, 0]


async def test_drain_lowers_a_budget_and_reset_forgets_it(fleet: Limiter, redis_url: str) -> None:
    assert (await headgate_here(redis_url, "drain", fleet.name, "requests=2", "--yes")).code == 0
    assert await uses(fleet) == (8, 0)

    assert (await headgate_here(redis_url, "reset", fleet.name, "--yes")).code == 0
    assert await uses(fleet) == (0, 0)


async def test_forget_drops_a_key_that_is_idle(fleet: Limiter, redis_url: str) -> None:
    """Its limits and its pause go, too. Afterwards it is as the whole limiter is."""
    key = fleet["tenant 7"]
    async with key:
        pass
    await key.aupdate("3/hour")
    await key.apause(300)

    done = headgate_done(redis_url, "forget", fleet.name, "tenant 7", "--yes", "--json")
    again = await headgate_here(redis_url, "forget", fleet.name, "tenant 7", "--yes")

    assert (done.object["key"], again.code) == ("tenant 7", 66)
    attached = Limiter.attach(fleet.name, store=client_of_its_own(redis_url))
    status = await attached["tenant 7"].astatus()
    assert [str(limit.limit) for limit in status.limits] == ["10 in any hour", "1 concurrent"]
    assert (status.limits[0].used, status.paused) == (0, 0)
    assert await uses(fleet) == (1, 0)


async def test_forget_refuses_a_key_that_is_held(fleet: Limiter, redis_url: str) -> None:
    key = fleet["k"]
    async with key.acquire():
        done = await headgate_here(redis_url, "forget", fleet.name, "k", "--yes")
        assert await uses(key) == (1, 1)

    assert (done.code, done.out) == (75, "")
    assert "with held permits: 1, and waiting callers: 0." in done.err


async def test_forget_refuses_a_key_with_waiters(fleet: Limiter, redis_url: str) -> None:
    key = fleet["k"]
    await key.apause(300)
    waiter = asyncio.create_task(enter(key))
    await waiting(key, 1)

    done = await headgate_here(redis_url, "forget", fleet.name, "k", "--yes")

    assert (done.code, done.out) == (75, "")
    assert "with held permits: 0, and waiting callers: 1." in done.err
    assert (await key.astatus()).paused > 0
    await key.aresume()
    (await waiter).release()


async def test_a_lease_that_has_ended_holds_no_key(
    fleet: Limiter, redis_url: str, admin_url: str
) -> None:
    """No call has removed its permit yet."""
    name = f"headgate:{{{fleet.name}:k}}"
    admin: Redis = Redis.from_url(admin_url)
    admin.hset(name, "state", "")
    admin.zadd(f"{name}:who", {"+dead:1:-": HOLDERS + 1})

    done = await headgate_here(redis_url, "forget", fleet.name, "k", "--yes")

    assert (done.code, admin.exists(name, f"{name}:who")) == (0, 0)


@pytest.mark.parametrize("by", ["function", "script"])
async def test_forget_works_by_a_function_or_a_script(by: str, own_server: Server) -> None:
    """The server knows no library yet. An old one gets a script in both cases."""
    functions = own_server.has_functions
    if by == "script" and functions:
        rules = "-fcall", "-function|load", "+eval"
        own_server.admin.execute_command("ACL", "SETUSER", USER, *rules)
    own_server.admin.hset("headgate:{api:k}", "state", "")

    done = await headgate_here(own_server.user_url, "forget", "api", "k", "--yes")

    assert (done.code, own_server.admin.dbsize()) == (0, 0)
    if functions:
        assert len(own_server.admin.function_list()) == (1 if by == "function" else 0)


async def test_a_key_that_was_forgotten_goes_on(fleet: Limiter, redis_url: str) -> None:
    """Its process is not aware of it: the next acquire declares the limits again."""
    key = fleet["k"]
    async with key.acquire() as permit:
        before = permit.fence
    await key.aflush()

    done = await headgate_here(redis_url, "forget", fleet.name, "k", "--yes")

    assert done.code == 0
    async with key.acquire() as permit:
        assert permit.fence > before
        assert await uses(key) == (1, 1)


WRONG = [
    "pause NAME 300",  # without --yes, off a terminal
    "pause NAME nan --yes",
    "pause NAME 0 --yes",  # it would pause nothing
    "pause NAME soon --yes",
    "set NAME lots --yes",
    "set NAME --yes",
    "drain NAME tokens=2 --yes",
    "drain NAME permits=0 --yes",
    "drain NAME requests --yes",
    "drain NAME requests=1 requests=2 --yes",
    "run NAME --cost tokens=2 -- true",
    "run NAME --cost 2 --cost 3 -- true",
    "run NAME --cost =2 -- true",
    "run NAME --cost 11 -- true",  # more than the limit ever holds
    "run NAME --cost 0 -- true",
    "run NAME --max-sleep -1 -- true",
    "run NAME --limits 5/lightyear -- true",
    "run NAME -P 2 -- true",
    "run NAME --each -P 0 -- true",
    "run NAME",
    "forget NAME  --yes",
    "jump NAME",
]


@pytest.mark.parametrize("words", WRONG)
async def test_a_wrong_call_is_an_error_of_usage_and_changes_nothing(
    words: str, fleet: Limiter, redis_url: str
) -> None:
    before = await fleet.astatus()

    done = await headgate_here(redis_url, *words.replace("NAME", fleet.name).split())

    assert (done.code, done.out) == (64, "")
    assert done.err.startswith("headgate")
    after = await fleet.astatus()
    assert (after.limits, after.paused) == (before.limits, before.paused)


async def test_a_store_that_is_away_or_unsaid_is_an_error() -> None:
    start = monotonic()
    away = headgate_done(f"redis://127.0.0.1:{dead_port()}", "show", "api")
    assert monotonic() - start < scaled(4), "it has waited for the server at its end"
    unsaid = headgate_done("", "show", "api")
    in_memory = await headgate_here("memory://", "show", "api")

    assert (away.code, unsaid.code, in_memory.code) == (69, 64, 64)
    assert "nothing listens there" in away.err
    assert len(away.err.splitlines()) == 1


@pytest.mark.parametrize(("answer", "code", "paused"), [("y", 0, True), ("", 1, False)])
async def test_a_terminal_gets_a_question_before_a_change(
    answer: str, code: int, paused: bool, fleet: Limiter, redis_url: str
) -> None:
    done = at_a_terminal(redis_url, answer, "pause", fleet.name, "300")

    question = f"Pause '{fleet.name}' with all its keys for 5.0 min? "
    question += "Callers that wait now, without those of keys: 0. [y/N]"
    assert question in done.err
    assert done.code == code
    assert ((await fleet.astatus()).paused > 0) is paused


async def test_ctrl_c_at_the_question_changes_nothing(fleet: Limiter, redis_url: str) -> None:
    with terminal(redis_url, "pause", fleet.name, "300") as (process, screen):
        assert "[y/N]" in await asyncio.to_thread(read_until, screen, "[y/N]")
        process.send_signal(signal.SIGINT)

    assert process.returncode == 130
    assert (await fleet.astatus()).paused == 0.0


def at_a_terminal(store: str, answer: str, *words: str) -> Done:
    """`headgate WORDS` with a terminal, at which a user types `answer` and Enter."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        with subprocess.Popen(
            [*COMMAND, *words],
            env=variables(store),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        ) as process:
            out, _ = process.communicate(timeout=PATIENCE)
        return Done(process.returncode, out, os.read(ours, 10_000).decode())
    finally:
        os.close(ours)
        os.close(theirs)


async def test_a_hostile_name_is_printed_harmlessly(name: str, redis_url: str) -> None:
    hostile = f"{name}\x1b]0;title\x07\n'; rm -rf / #\u202e"
    await Limiter(hostile, "10/hour", store=redis_url).acquire()

    shown = headgate_done(redis_url, "show", hostile)
    in_json = await headgate_here(redis_url, "show", hostile, "--json")
    unknown = await headgate_here(redis_url, "show", f"{hostile}\x07")

    assert (shown.code, in_json.code, unknown.code) == (0, 0, 66)
    assert is_harmless(shown.out + in_json.out + unknown.err)
    assert in_json.object["name"] == hostile
