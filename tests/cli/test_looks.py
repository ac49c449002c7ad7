"""Looking at a fleet from a shell: the names in use, one name with its processes, and a table."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from headgate import Limiter
from headgate.cli.top import Snapshot, table
from tests.cli.command import (
    Done,
    Started,
    headgate_done,
    headgate_here,
    read_until,
    terminal,
)
from tests.faults.scene import enter
from tests.index import refreshed
from tests.processes import environment
from tests.servers import Server
from tests.world import LONG, waiting

NORMAL_SCREEN = "\x1b[?25h\x1b[?1049l"  # the cursor is seen, and the former content


@pytest.fixture
async def fleet(own_server: Server) -> Limiter:
    """Two names in use, on a server without others: `idle`, and this one that is full."""
    idle = Limiter("idle", "10/hour", store=own_server.user_url)
    full = Limiter("full", "1 concurrent", store=own_server.user_url)
    for limiter in (idle, full, full["tenant 7"], full["tenant 8"]):
        async with limiter:
            pass
    await refreshed(own_server.user_url)
    await full.aflush()
    return full


async def done(url: str, *words: str) -> Done:
    """The loop of the test goes on meanwhile."""
    return await asyncio.to_thread(headgate_done, url, *words)


async def test_ls_lists_names_and_keys(fleet: Limiter, own_server: Server) -> None:
    url = own_server.user_url
    own_server.admin.acl_setuser("headgate", enabled=True, commands=["+scan"])
    assert headgate_done(url, "ls").out == "full\nidle\n"
    assert (await headgate_here(url, "ls", "--json")).object["names"] == ["full", "idle"]

    keys = (await headgate_here(url, "ls", "full", "--json")).object
    assert [keys["name"], keys["names"]] == ["full", ["tenant 7", "tenant 8"]]
    assert (await headgate_here(url, "ls", "full")).out == "'tenant 7'\n'tenant 8'\n"


async def test_a_name_may_be_that_of_a_verb_or_look_like_an_option(own_server: Server) -> None:
    for name in ("run", "--yes"):
        await Limiter(name, "10/hour", store=own_server.user_url).acquire()
        shown = (await headgate_here(own_server.user_url, "show", "--json", "--", name)).object
        assert shown["name"] == name


def test_a_verb_imports_only_the_packages_that_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "headgate", "--help"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "headgate.cli.parser" in imported
    assert imported & {"redis", "hiredis", "rich", "headgate.cli.run"} == set()


async def test_show_names_the_processes_that_hold_and_wait(
    fleet: Limiter, own_server: Server
) -> None:
    url = own_server.user_url
    async with fleet.acquire():
        waiter = asyncio.create_task(enter(fleet))
        await waiting(fleet, 1)
        await refreshed(url)
        shown = (await headgate_here(url, "show", "full", "--json")).object
        text = (await done(url, "show", "full")).out
    (await waiter).release()

    (holder,), (waits,) = shown["holders"], shown["waiters"]
    assert holder["process"]["pid"] == waits["process"]["pid"] == os.getpid()
    assert (holder["units"], waits["units"], waits["position"]) == (
        {"permits": 1},
        {"permits": 1},
        0,
    )
    assert 0 < holder["lease_left"] <= 30
    assert 0 < waits["waited"] < holder["held"] < LONG
    assert re.search(r"permits for [\d.]+ s, the lease ends in", text)
    assert re.search(r"permits for [\d.]+ s, alive", text)
    assert f"process {os.getpid()} of" in text.partition("held by:")[2].partition("waiting")[0]


async def test_show_with_key_has_the_processes_of_that_key(
    fleet: Limiter, own_server: Server
) -> None:
    key = fleet["tenant 7"]
    async with key:
        waiter = asyncio.create_task(enter(key))
        await waiting(key, 1)
        seen = (
            await done(own_server.user_url, "show", "full", "--key", "tenant 7", "--json")
        ).object
        whole = (await done(own_server.user_url, "show", "full", "--json")).object
    (await waiter).release()

    assert [(each["holding"], each["waiting"]) for each in (seen, whole)] == [(1, 1), (0, 0)]
    assert [each["units"] for each in seen["holders"]] == [{"permits": 1}]


async def test_top_puts_the_longest_queue_first(fleet: Limiter, own_server: Server) -> None:
    url = own_server.user_url
    async with fleet.acquire():
        waiter = asyncio.create_task(enter(fleet))
        await waiting(fleet, 1)
        snapshot = (await done(url, "top", "--json")).object
    (await waiter).release()

    assert snapshot["names"] == 2
    found = [(each["name"], each["waiting"]) for each in snapshot["limiters"]]
    assert found == [("full", 1), ("idle", 0)]
    longest, idle = (each["oldest_wait"] for each in snapshot["limiters"])
    assert (0 < longest < LONG, idle) == (True, None)
    assert (await headgate_here(url, "top")).code == 64  # no terminal


async def test_watch_prints_a_line_each_second_until_it_is_interrupted(
    fleet: Limiter, own_server: Server
) -> None:
    started = Started(own_server.user_url, "watch", "full")
    first = await asyncio.to_thread(started.line)
    async with fleet.acquire():
        second = await asyncio.to_thread(started.line)
    started.signal(signal.SIGINT)

    ended = await asyncio.to_thread(started.done)
    lines = Done(0, f"{first}\n{second}\n", "").objects
    assert [each["limits"][0]["used"] for each in lines] == [0, 1]
    assert (ended.code, ended.err) == (130, "")


async def test_top_is_live_on_a_terminal(fleet: Limiter, own_server: Server) -> None:
    """A name has no markup, and no character of it acts."""
    hostile = Limiter("[red]\x1b]0;x\x07", "1/hour", store=own_server.user_url)
    await hostile.acquire()
    await refreshed(own_server.user_url)

    async with fleet.acquire():
        waiter = asyncio.create_task(enter(fleet))
        await waiting(fleet, 1)
        with terminal(own_server.user_url, "top") as (process, screen):
            last = "'[red]\\x1b]0;x\\x07'"  # its row comes after the name with a queue
            text = await asyncio.to_thread(read_until, screen, last)
            process.send_signal(signal.SIGINT)
    (await waiter).release()

    assert "3 names" in text
    assert re.search(r"'full'[^\n]* 1 [^\n]*?[\d.]+ s", text)
    assert last in text
    assert "\x1b]0;x" not in text
    assert process.returncode == 130


async def test_a_terminal_is_as_it_was_when_sigterm_has_ended_top(
    fleet: Limiter, own_server: Server
) -> None:
    with terminal(own_server.user_url, "top") as (process, screen):
        await asyncio.to_thread(read_until, screen, "'full'")
        process.send_signal(signal.SIGTERM)
        after = await asyncio.to_thread(read_until, screen, NORMAL_SCREEN)

    assert after.endswith(NORMAL_SCREEN)
    assert process.returncode == 128 + signal.SIGTERM


async def test_the_table_of_top_fits_into_80_columns(name: str) -> None:
    """A bar that is cut off says nothing."""
    limiter = Limiter(f"{name}-{'long' * 20}", "100/minute", "1 concurrent")
    async with limiter:
        snapshot = Snapshot(1, 0, [await limiter.astatus()], {})
    screen = Console(width=80, file=io.StringIO())
    screen.print(table(snapshot, 24))

    text = screen.file.getvalue()
    assert re.findall(r"\[[#.]+(.)", text) == ["]", "]"]
    assert "1 of 100 requests" in text


async def test_looking_declares_nothing(fleet: Limiter, own_server: Server) -> None:
    def names() -> set[str]:  # a second session makes another key of a name
        keys = (key for key in own_server.admin.scan_iter() if "index" not in key)
        return {key.removesuffix(":who") for key in keys}

    before = names()
    own_server.admin.zadd("headgate:{/index}:names", {"gone": 2**40})

    for words in (["ls"], ["show", "gone"], ["top", "--json"]):
        await headgate_here(own_server.user_url, *words)

    assert names() == before
