"""`headgate doctor` finds each fault that it knows, and nothing on a healthy server.

Most tests ask in this process, where a question costs a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headgate import Concurrency, Limiter
from headgate.keys import encoded
from headgate.stores.redis import redis_store
from headgate.stores.redis.diagnosis import Finding
from headgate.stores.redis.protocol.index import NAMES
from headgate.stores.redis.transport import probes
from tests.cli.command import headgate_done, headgate_here, is_harmless
from tests.faults.scene import client_of_its_own, enter
from tests.places import missing, old_server
from tests.rights import USER, rights, rights_without_functions
from tests.servers import Server, dead_port
from tests.world import session_of, waiting

OLD = "note", "functions"  # the finding of a server without functions


async def findings(url: str) -> list[Finding]:
    """The findings of any server but OLD, so a test may run on an old server, too."""
    found = (await redis_store(url).diagnose()).findings
    return [each for each in found if (each.severity, each.check) != OLD]


async def checks(url: str) -> list[tuple[str, str]]:
    return [(each.severity, each.check) for each in await findings(url)]


async def test_a_healthy_server_has_no_findings(own_server: Server) -> None:
    await Limiter("api", "10/hour", store=own_server.user_url).acquire()
    before = set(own_server.admin.scan_iter())

    done = headgate_done(own_server.user_url, "doctor")
    found = (await headgate_here(own_server.user_url, "doctor", "--json")).object

    assert (done.code, done.err) == (0, "")
    if own_server.has_functions:
        assert found["findings"] == []
        assert done.out.startswith("No findings.\nversions: headgate ")
    else:
        (old,) = found["findings"]
        assert (old["severity"], old["check"]) == OLD
        assert done.out.startswith("note: functions of ")
    assert list(found["servers"]) == [f"127.0.0.1:{own_server.port}"]
    assert set(own_server.admin.scan_iter()) == before
    refused = {entry["object"] for entry in own_server.admin.acl_log()}
    assert refused <= {"client|setinfo", "client"}  # redis-py's; the second on an old server


def test_each_documented_right_has_a_probe() -> None:
    documented = {
        word.removeprefix("+")
        for text in (rights(), rights_without_functions())
        for word in text.split()
        if word.startswith("+")
    }
    assert {*probes.COMMANDS, *probes.OF_A_CLUSTER} == documented


OF_ONE_SERVER = sorted(probes.COMMANDS.keys() - probes.SCRIPTS.keys())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.stop()


@pytest.mark.parametrize("right", OF_ONE_SERVER)
async def test_a_missing_right_is_named(right: str, server: Server) -> None:
    server.admin.execute_command("ACL", "SETUSER", USER, f"-{right}")
    try:
        found = await findings(server.user_url)
    finally:
        server.admin.execute_command("ACL", "SETUSER", USER, f"+{right}")

    severity = "warning" if right in ("info", "ping") else "serious"
    assert [(each.severity, each.check) for each in found] == [(severity, "rights")]
    assert found[0].text == f"the user lacks the rights +{right}"


@pytest.mark.parametrize("kind", ["keys", "channels"])
async def test_a_missing_pattern_is_named(kind: str, own_server: Server) -> None:
    own_server.admin.execute_command("ACL", "SETUSER", USER, f"reset{kind}")

    done = await headgate_here(own_server.user_url, "doctor")

    rule = {"keys": "~headgate:*", "channels": "&headgate:*"}[kind]
    assert f"ACL SETUSER USER {rule}:" in done.out
    assert done.code == 1


async def test_a_user_without_functions_sends_scripts(server: Server) -> None:
    server.admin.execute_command("ACL", "SETUSER", USER, "-fcall", "+eval", "+evalsha")
    try:
        (found,) = await findings(server.user_url)
    finally:
        server.admin.execute_command("ACL", "SETUSER", USER, "+fcall", "-eval", "-evalsha")

    assert (found.severity, found.check) == ("warning", "functions")
    assert "+fcall +function|load" in found.remedy


@pytest.mark.parametrize("start", [old_server] if "redis-6.2" not in missing() else [])
async def test_an_old_server_has_no_functions(start: Callable[[], Server]) -> None:
    server = start()
    server.start()
    try:
        (found,) = (await headgate_here(server.user_url, "doctor", "--json")).object["findings"]
    finally:
        server.stop()

    assert (found["severity"], found["check"]) == OLD
    assert found["remedy"] == "Upgrade the server to Redis 7 or Valkey."


async def test_a_server_that_may_evict_keys_is_serious(own_server: Server) -> None:
    own_server.admin.config_set("maxmemory", "100mb")
    own_server.admin.config_set("maxmemory-policy", "volatile-lru")

    assert await checks(own_server.user_url) == [("serious", "eviction")]


async def test_a_server_without_memory_is_serious(own_server: Server) -> None:
    own_server.admin.config_set("maxmemory", "500kb")

    assert await checks(own_server.user_url) == [("serious", "state"), ("warning", "memory")]


async def test_a_replica_is_serious(own_server: Server) -> None:
    own_server.admin.replicaof("127.0.0.1", dead_port())

    (found,) = await findings(own_server.user_url)

    assert (found.severity, found.check) == ("serious", "state")
    assert "Name the primary" in found.remedy


async def test_a_clock_that_differs_is_noted(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = probes.time
    monkeypatch.setattr(probes, "time", lambda: real() - 60)

    (found,) = await findings(own_server.user_url)

    assert (found.severity, found.check) == ("note", "clock")
    assert "60.0 s ahead of that of this machine" in found.text


def test_a_store_that_is_away_is_a_finding() -> None:
    port = dead_port()

    done = headgate_done(f"redis://user:secret@127.0.0.1:{port}", "doctor", "--json")

    (found,) = done.object["findings"]
    assert (done.code, found["severity"], found["check"]) == (1, "serious", "connection")
    assert found["subject"] == f"127.0.0.1:{port}"
    assert "nothing listens there" in found["text"]
    assert "secret" not in done.out + done.err


async def test_declarations_that_disagree_are_found(own_server: Server) -> None:
    """A hostile name is printed harmlessly here, too."""
    name, url = "api \x1b[31m\u202e\u00e9", own_server.user_url
    for limit in ("10/hour", "20/hour"):
        await Limiter(name, limit, store=client_of_its_own(url)).acquire()
    own_server.admin.zadd(NAMES, {encoded(name): 2**40})

    done = await headgate_here(url, "doctor")

    assert done.code == 0
    assert "10 in any hour was replaced by 20 in any hour" in done.out
    assert is_harmless(done.out)


async def test_a_name_with_damaged_limits_does_not_hide_the_others(own_server: Server) -> None:
    url = own_server.user_url
    for name in ("damaged", "other"):
        for limit in ("10/hour", "20/hour"):
            await Limiter(name, limit, store=client_of_its_own(url)).acquire()
        own_server.admin.zadd(NAMES, {name: 2**40})
    own_server.admin.hset("headgate:{damaged}", "limits", "garbage")

    found = [each.subject for each in await findings(url) if each.check == "declarations"]
    assert found == ["limiter 'damaged'", "limiter 'other'"]


async def test_an_update_is_no_disagreement(own_server: Server) -> None:
    limiter = Limiter("api", "10/hour", store=own_server.user_url)
    await limiter.acquire()
    await limiter.aupdate("20/hour")
    await limiter.aupdate("30/hour")
    own_server.admin.zadd(NAMES, {"api": 2**40})

    assert await findings(own_server.user_url) == []


async def test_members_of_dead_processes_are_found(own_server: Server) -> None:
    url, admin = own_server.user_url, own_server.admin
    limiter = Limiter("api", Concurrency(1), store=url)
    async with limiter.acquire():
        waiter = asyncio.create_task(enter(limiter))
        await waiting(limiter, 1)
        admin.zadd(NAMES, {"api": 2**40})
        assert await findings(url) == []

        session = session_of(limiter).machine.numbering.session_id
        admin.zadd("headgate:{api}:who", {session: 1})  # as if it had been silent for long
        (found,) = await findings(url)
    (await waiter).release()

    assert (found.severity, found.check, found.subject) == ("warning", "sessions", "limiter 'api'")
    assert "still have waiters: 1, and permits: 0" in found.text


async def test_names_that_are_not_used_any_more_are_read_together(own_server: Server) -> None:
    """Given names whose processes have ended, when there are more of them, then doctor reads no
    more lists.
    """
    url, admin = own_server.user_url, own_server.admin

    async def lists_read(names: int) -> int:
        for number in range(names):
            name = f"n{number}"
            limiter = Limiter(name, "10/hour", store=url)
            await limiter.acquire()
            session = session_of(limiter).machine.numbering.session_id
            admin.zadd(f"headgate:{{{name}}}:who", {session: 1})  # silent for long
            admin.zadd(NAMES, {name: 2**40})
        admin.config_resetstat()
        assert await findings(url) == []
        return int(admin.info("commandstats")["cmdstat_zrangebyscore"]["calls"])

    assert await lists_read(1) == await lists_read(10)
