"""`headgate run`: a command that holds a permit, as part of the fleet.

The limiters of these tests stand for the fleet: they see what the command holds.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from headgate import Concurrency, Limiter
from headgate.cli.parser import parse
from tests.cli.command import COMMAND, Done, Started, headgate_done, variables
from tests.faults.scene import eventually
from tests.machine import scaled
from tests.servers import dead_port
from tests.world import waiting

# A command that says "begins" and its environment, and ends at a line of stdin.
TALKS = "echo begins $HEADGATE_NAME $HEADGATE_FENCE; read line; exit 3"
# The same command, which counts the signals that it gets.
COUNTS = """
import signal as s, sys, time
def count(number, frame): print(s.Signals(number).name, flush=True); sys.exit(5)
for number in (s.SIGINT, s.SIGTERM): s.signal(number, count)
print("begins", flush=True)
time.sleep(60)
"""


# It prints the process that has started it, each signal, and all of them at a SIGTERM.
COLLECTS = """
import os, signal as s, sys, time
seen = []
def note(number, frame):
    seen.append(s.Signals(number).name)
    print(seen[-1], flush=True)
    if number == s.SIGTERM: print("all:", *seen, flush=True); sys.exit(5)
for number in (s.SIGINT, s.SIGTERM): s.signal(number, note)
print(os.getppid(), flush=True)
while True: time.sleep(60)
"""
# It runs its arguments at a terminal of their own.
TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.fixture
async def fleet(name: str, redis_url: str) -> Limiter:
    """A name with one permit, which is free."""
    return await used(Limiter(name, "1 concurrent", store=redis_url))


@pytest.fixture
async def brief(name: str, redis_url: str) -> Limiter:
    """The same with a short lease: a loss shows soon. A busy machine must still renew in time."""
    return await used(Limiter(name, Concurrency(1, lease=scaled(1.5)), store=redis_url))


async def used(limiter: Limiter) -> Limiter:
    """The store knows its limits."""
    async with limiter:
        pass
    await limiter.aflush()
    return limiter


async def held(limiter: Limiter) -> int:
    return (await limiter.astatus()).limits[0].used


async def ended(started: Started) -> Done:
    return await asyncio.to_thread(started.done)


async def test_a_command_holds_a_permit_while_it_runs(fleet: Limiter, redis_url: str) -> None:
    started = Started(redis_url, "run", fleet.name, "--", "sh", "-c", TALKS, stdin="go\n")
    said, name, fence = (await asyncio.to_thread(started.line)).split()
    during = await held(fleet)

    done = await ended(started)

    assert (said, name, during, done.code, done.err) == ("begins", fleet.name, 1, 3, "")
    assert await held(fleet) == 0
    async with fleet.acquire() as permit:
        assert permit.fence > int(fence)


@pytest.mark.parametrize("verb", ["forget", "pause"])
def test_a_limiter_may_be_named_run(verb: str) -> None:
    args = parse([verb, "run", "--yes", "--", "5"])
    assert (args.verb, args.name, args.command) == (verb, "run", [])


async def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(
    fleet: Limiter, redis_url: str
) -> None:
    done = headgate_done(redis_url, "run", fleet.name, "--", "sh", "-c", "kill -KILL $$")

    assert done.code == 128 + signal.SIGKILL
    assert await held(fleet) == 0


async def test_ctrl_c_at_a_terminal_reaches_the_command_once(
    fleet: Limiter, redis_url: str
) -> None:
    """headgate gets both signals in their order, so it passes SIGTERM on after all that it does
    about Ctrl-C.
    """
    around = [sys.executable, "-c", TERMINAL]
    words = "run", fleet.name, "--", sys.executable, "-c", COLLECTS
    started = Started(redis_url, *words, around=around)
    headgate = int(await asyncio.to_thread(started.line))

    started.write("\x03")
    assert "SIGINT" in await asyncio.to_thread(started.line)
    os.kill(headgate, signal.SIGTERM)

    done = await ended(started)
    assert (done.code, done.out.splitlines()[-1]) == (5, "all: SIGINT SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
async def test_a_signal_is_passed_on_to_the_command(
    number: signal.Signals, fleet: Limiter, redis_url: str
) -> None:
    started = Started(redis_url, "run", fleet.name, "--", sys.executable, "-c", COUNTS)
    assert await asyncio.to_thread(started.line) == "begins"

    started.signal(number)

    done = await ended(started)
    assert (done.code, done.out) == (5, f"{number.name}\n")
    assert await held(fleet) == 0


async def test_a_signal_ends_the_wait_for_a_turn(
    fleet: Limiter, redis_url: str, tmp_path: Path
) -> None:
    async with fleet.acquire():
        started = Started(redis_url, "run", fleet.name, "--", "touch", tmp_path / "ran")
        await waiting(fleet, 1)

        started.signal(signal.SIGTERM)

        assert (await ended(started)).code == 128 + signal.SIGTERM
        await waiting(fleet, 0)
    assert not (tmp_path / "ran").exists()


async def test_a_full_limit_refuses_a_command_that_may_not_wait(
    fleet: Limiter, redis_url: str, tmp_path: Path
) -> None:
    words = "--max-sleep", "0", "--", "touch", tmp_path / "ran"
    async with fleet.acquire():
        full = await asyncio.to_thread(headgate_done, redis_url, "run", fleet.name, *words)
    rate = Limiter(f"{fleet.name}-rate", "1/hour", store=redis_url)
    await rate.acquire()
    used_up = await asyncio.to_thread(headgate_done, redis_url, "run", rate.name, *words)

    assert (full.code, used_up.code) == (75, 75)
    assert "only a release can say" in full.err
    assert 3_000 < float(used_up.err.rpartition("Retry after ")[2].removesuffix(" s.\n")) <= 3_600
    assert not (tmp_path / "ran").exists()


async def test_an_unknown_name_is_an_error_unless_limits_declare_it(
    name: str, redis_url: str, tmp_path: Path
) -> None:
    words = "--", "touch", tmp_path / "ran"
    unknown = headgate_done(redis_url, "run", name, *words)
    assert (unknown.code, (tmp_path / "ran").exists()) == (66, False)

    declared = headgate_done(redis_url, "run", name, "--limits", "5/hour, 2 concurrent", *words)

    assert (declared.code, (tmp_path / "ran").exists()) == (0, True)
    status = await Limiter.attach(name, store=redis_url).astatus()
    assert [(str(limit.limit), limit.used) for limit in status.limits] == [
        ("5 in any hour", 1),
        ("2 concurrent", 0),
    ]


async def test_a_command_that_cannot_start_charges_nothing(name: str, redis_url: str) -> None:
    limits = "--limits", "5/hour", "--cost", "3"
    assert headgate_done(redis_url, "run", name, *limits, "--", "true").code == 0

    assert headgate_done(redis_url, "run", name, "--", f"no-{name}").code == 127
    assert (await Limiter.attach(name, store=redis_url).astatus()).limits[0].used == 3


def test_no_command_runs_while_the_store_is_away(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{dead_port()}"

    done = headgate_done(url, "run", "api", "--", "touch", tmp_path / "ran")

    assert (done.code, (tmp_path / "ran").exists()) == (69, False)


async def test_a_lost_lease_ends_the_command(
    brief: Limiter, redis_url: str, admin_url: str
) -> None:
    started = Started(redis_url, "run", brief.name, "--", sys.executable, "-c", COUNTS)
    assert await asyncio.to_thread(started.line) == "begins"

    forget(admin_url, brief.name)

    done = await ended(started)
    assert (done.code, done.out) == (71, "SIGTERM\n")
    assert "lost its permit" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.proof("takes as long as the grace of a command")
async def test_a_lost_lease_kills_a_command_that_ignores_sigterm(
    brief: Limiter, redis_url: str, admin_url: str
) -> None:
    command = "trap '' TERM; echo begins; while :; do sleep 0.1; done"
    started = Started(redis_url, "run", brief.name, "--", "sh", "-c", command)
    assert await asyncio.to_thread(started.line) == "begins"

    forget(admin_url, brief.name)

    assert (await ended(started)).code == 71


async def test_a_killed_headgate_gives_its_permit_back_when_the_lease_ends(
    brief: Limiter, redis_url: str
) -> None:
    started = Started(redis_url, "run", brief.name, "--", "sh", "-c", TALKS, stdin="go\n")
    await asyncio.to_thread(started.line)

    started.signal(signal.SIGKILL)

    assert (await ended(started)).code == -signal.SIGKILL
    async with brief.acquire(max_sleep=scaled(20)) as permit:
        assert permit.waited <= scaled(10)


async def test_each_line_of_stdin_is_a_call(fleet: Limiter, redis_url: str) -> None:
    command = 'echo "$HEADGATE_FENCE $1"; test "$1" != "b  c"'
    words = "run", fleet.name, "--each", "-P", "3", "--", "sh", "-c", command, "sh"

    done = headgate_done(redis_url, *words, stdin="a\nb  c\n\n$(d)")

    fences, lines = zip(*(line.split(" ", 1) for line in done.out.splitlines()), strict=True)
    assert sorted(lines) == ["", "$(d)", "a", "b  c"]
    assert len(set(fences)) == 4
    assert (done.code, done.err) == (1, "")


async def test_as_many_lines_run_at_once_as_both_the_limit_and_p_allow(
    name: str, redis_url: str, tmp_path: Path
) -> None:
    command = f'touch "{tmp_path}/$1"; ls {tmp_path} | wc -l; sleep 0.05; rm "{tmp_path}/$1"'

    def most_at_once(limit: str, parallel: int) -> int:
        options = "--limits", limit, "--each", "-P", parallel
        words = "run", f"{name}-{parallel}", *options, "--", "sh", "-c", command, "sh"
        done = headgate_done(redis_url, *words, stdin="".join(f"{n}\n" for n in range(8)))
        assert done.code == 0
        return max(map(int, done.out.split()))

    assert most_at_once("2 concurrent", 4) == 2
    assert most_at_once("4 concurrent", 3) == 3


async def test_a_refused_line_leaves_the_others_alone(name: str, redis_url: str) -> None:
    words = "run", name, "--limits", "2/hour", "--max-sleep", "0", "--each", "--", "echo"

    done = headgate_done(redis_url, *words, stdin="a\nb\nc\nd\n")

    assert (done.code, done.out) == (75, "a\nb\n")
    assert [line.split(": ")[1] for line in done.err.splitlines()] == ["line 'c'", "line 'd'"]


def test_an_error_of_all_lines_ends_the_run(name: str, redis_url: str) -> None:
    done = headgate_done(redis_url, "run", name, "--each", "--", "echo", stdin="a\nb\nc\n")

    assert (done.code, done.out) == (66, "")
    assert len(done.err.splitlines()) == 1


async def test_a_signal_ends_the_reading_of_lines(fleet: Limiter, redis_url: str) -> None:
    words = "run", fleet.name, "--each", "-P", "2", "--", sys.executable, "-c", COUNTS
    started = Started(redis_url, *words)
    started.write("a\nb\nc\n")
    assert await asyncio.to_thread(started.line) == "begins"
    await waiting(fleet, 1)

    started.signal(signal.SIGTERM)

    done = await ended(started)
    assert (done.code, done.out) == (128 + signal.SIGTERM, "SIGTERM\n")
    assert await held(fleet) == 0


def forget(admin_url: str, name: str) -> None:
    """The server loses all that it knows about the name."""
    admin: Redis = Redis.from_url(admin_url)
    admin.delete(*admin.keys(f"headgate:{{{name}}}*"))


# Signals, closed files and strange lines ----------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
async def test_a_signal_of_a_terminal_ends_the_command_with_headgate(
    redis_url: str, name: str, number: signal.Signals, tmp_path: Path
) -> None:
    """It would run on without its permit otherwise."""
    ready = tmp_path / "ready"
    script = f"touch {ready}; exec sleep 60"
    started = Started(redis_url, "run", name, "--limits", "1 concurrent", "--", "sh", "-c", script)
    await eventually(ready.exists, within=scaled(30))
    started.signal(number)
    assert started.done().code == 128 + number
    permit = await Limiter(name, Concurrency(1), store=redis_url).acquire(max_sleep=scaled(5))
    permit.release()


@pytest.mark.parametrize(("words", "code"), [("run NAME -- sh -c 'exit 3' >&-", 3), ("ls 2>&-", 0)])
def test_closed_output_does_not_change_the_exit_code(
    redis_url: str, name: str, words: str, code: int
) -> None:
    with Limiter(name, Concurrency(1), store=redis_url):
        pass
    shell = f"{shlex.join(COMMAND)} {words.replace('NAME', name)}"
    done = subprocess.run(shell, shell=True, env=variables(redis_url), check=False)
    assert done.returncode == code


def test_output_that_cannot_be_written_is_an_error(redis_url: str) -> None:
    shell = f"{shlex.join(COMMAND)} ls --json > /dev/full"
    done = subprocess.run(
        shell, shell=True, env=variables(redis_url), capture_output=True, text=True, check=False
    )
    assert done.returncode == 74
    assert "Traceback" not in done.stderr


def test_lines_of_a_closed_stdin_are_an_error(redis_url: str, name: str) -> None:
    shell = f"{shlex.join(COMMAND)} run {name} --limits '1 concurrent' --each -- true <&-"
    done = subprocess.run(
        shell, shell=True, env=variables(redis_url), capture_output=True, text=True, check=False
    )
    assert done.returncode == 74
    assert "stdin cannot be read" in done.stderr


def test_a_line_that_can_be_no_argument_fails_alone(redis_url: str, name: str) -> None:
    lines = f"one\nt\0wo\n{'x' * 200_000}\nfour\n"
    done = headgate_done(
        redis_url, "run", name, "--limits", "1 concurrent", "--each", "--", "echo", stdin=lines
    )
    assert done.code == 126
    assert done.out == "one\nfour\n"
    assert done.err.count("no argument has a NUL") == 2


def test_a_cost_of_thousands_of_digits_is_an_error_of_usage(redis_url: str, name: str) -> None:
    done = headgate_done(redis_url, "run", name, "--cost", "9" * 5000, "--", "true")
    assert (done.code, "Traceback" in done.err) == (64, False)
