"""Whether a mutant is noticed: both twins run stories, one of them changed, until they differ.

This module has the jury: the seeds, and stories of the twins' author. Those that have told mutants
apart before come first. The tests of tests/twins and tests/gate cover the cases that no story
reaches. The server is its own, since a mutant may keep it busy for ever.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import resource
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
import redis

from headgate.stores.redis.protocol.script import Library
from tests.mutants.making import Mutant
from tests.servers import Server
from tests.twins import wire
from tests.twins.driver import Player, Story
from tests.twins.stories import Author

SEEDS = sorted((Path(__file__).parent.parent / "seeds").glob("*.json"))
STORIES, LENGTH = 30, 120
CROWDS = 4  # stories of windows with more moments than they keep
PATIENCE = (
    20  # seconds of this process's work for all stories of one mutant: one that takes longer hangs
)
# Seconds of a processor for the tests of one mutant: where they take longer, it does not come to an
# end.
TRIAL = 60
TWINS = (
    *(
        "declarations",
        "formats",
        "lifetimes",
        "nonsense",
        "notifications",
        "pauses",
        "remembered_states",
    ),
    *("states_gone_back", "threads", "window_logs", "window_rules"),
)
BY_HAND = [f"tests/twins/test_{what}.py" for what in TWINS]  # cases that no story reaches
BY_HAND += ["tests/twins/test_twins.py::test_an_acquire_that_is_in_the_queue_keeps_its_place"]
ALSO = {
    "gate/compile.py": ["tests/twins/test_formats.py"],
    "gate/sliding_window.py": ["tests/twins/test_window_rules.py"],
    "gate/gate.py": ["tests/gate/test_pause.py", "tests/gate/test_resume_and_reset.py"],
}  # tests outside of tests/gate that cover a file of the gate
ANSWER = 20.0  # seconds for one call, on a machine that may have more to do


class Jury:
    """Stories in the order of their success."""

    def __init__(self) -> None:
        self.server = Server().start()
        self.stories: list[Story] = [json.loads(path.read_text()) for path in SEEDS]
        self.stories += [Author(f"mutants.{number}").story(LENGTH) for number in range(STORIES)]
        self.stories += [
            Author(f"crowds.{number}").crowded_window(4 * LENGTH) for number in range(CROWDS)
        ]
        self._numbers = itertools.count()
        self._token = secrets.token_hex(6)
        self._open()

    def _open(self) -> None:
        self.client = redis.Redis.from_url(self.server.url, socket_timeout=ANSWER)

    def close(self) -> None:
        self.client.close()
        self.server.stop()

    def agrees(self) -> bool:
        """Without a mutant: whether the jury is right in its mind."""
        return self._notices() is None and noticed_by(BY_HAND) is None

    def notices_lua(self, mutant: Mutant, sources: dict[str, str]) -> str | None:
        """The proof against a mutant of the Lua; None: there is none."""
        former, wire.LUA = (
            wire.LUA,
            Library({**sources, Path(mutant.file).stem: mutant.text, "clock": clock()}),
        )
        try:
            return self._notices() or noticed_by(BY_HAND)
        finally:
            wire.LUA = former

    def notices_python(self, mutant: Mutant) -> str | None:
        """The twins do not see the calls that the memory store alone makes to the gate: tests/gate
        is for those.
        """
        with changed(mutant):
            tests = [f"tests/gate/test_{Path(mutant.file).stem}.py", *ALSO.get(mutant.file, [])]
            return self._notices() or noticed_by(tests)

    def notices_shell(self, mutant: Mutant, tests: list[str]) -> str | None:
        """The code around the gate: its own tests have to notice."""
        with changed(mutant):
            return noticed_by(tests)

    def _notices(self) -> str | None:
        try:
            self.client.flushall()
            self.client.function_flush()
            wire.load(self.client)
            with deadline():
                return next(filter(None, map(self._difference, list(self.stories))), None)
        except Exception as error:  # it does not even load, or does not come to an end
            self._start_anew()
            return f"{error!r}"

    def _difference(self, story: Story) -> str | None:
        """The difference between the twins in `story`."""
        spoken = wire.Wire(self.client, f"{self._token}-{next(self._numbers)}")
        try:
            Player(spoken, story).play(story["steps"])
        except (redis.exceptions.TimeoutError, Hangs):
            raise
        except Exception as difference:
            self.stories.remove(story)
            self.stories.insert(0, story)
            return repr(difference)
        finally:
            spoken.subscriptions.close()
        return None

    def _start_anew(self) -> None:
        self.client.close()
        self.server.kill()
        self.server.start()
        self._open()


def noticed_by(tests: list[str]) -> str | None:
    """In a child, which runs the changed code as this process does: which of these tests fail, or
    do not come to an end.
    """
    child = os.fork()
    if child == 0:
        try:
            os._exit(tried(tests))
        finally:
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    _, status = os.waitpid(child, 0)
    failed = os.waitstatus_to_exitcode(status) in (
        pytest.ExitCode.TESTS_FAILED,
        -signal.SIGXCPU,
        -signal.SIGKILL,
    )
    return " or ".join(tests) if failed else None


def tried(tests: list[str]) -> int:
    """The exit status of pytest, without output, and each time the same, in spite of chance or a
    slow machine.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL, TRIAL))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[Calm()]))


class Calm:
    """Makes hypothesis the same each time. pytest has to come upon it first, or complains."""

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile(
            "calm",
            max_examples=100,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("calm")


class Hangs(Exception):
    """A mutant does not come to an end."""


@contextmanager
def deadline() -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hangs

    former = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def clock() -> str:
    return f"local function clock() return tonumber(redis.call('GET', '{wire.HOUR_HAND}')) end"


# Python in place ----------------------------------------------------------------------------------


@contextmanager
def changed(mutant: Mutant) -> Iterator[None]:
    """The functions of a module run the code of `mutant`; modules that have imported them already
    run it, too.
    """
    module = importlib.import_module(
        "headgate." + mutant.file.removesuffix(".py").replace("/", ".")
    )
    codes = {
        code.co_qualname: code
        for code in codes_in(compile(mutant.text, f"{module.__file__}", "exec"))
    }
    functions = {function: function.__code__ for function in functions_of(module)}
    forget(module)
    for function in functions:
        function.__code__ = codes[function.__code__.co_qualname]
    try:
        yield
    finally:
        for function, code in functions.items():
            function.__code__ = code
        forget(module)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_in(constant)


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """All that were written there: functions, and those of classes, behind properties and caches
    too.
    """
    places = [
        vars(module),
        *(vars(kind) for kind in vars(module).values() if isinstance(kind, type)),
    ]
    for value in {id(value): value for place in places for value in place.values()}.values():
        function = written(value)
        if function is not None and function.__code__.co_filename == module.__file__:
            yield function


def written(value: Any) -> FunctionType | None:
    value = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
    value = getattr(value, "__wrapped__", value)
    return value if isinstance(value, FunctionType) else None


def forget(module: ModuleType) -> None:
    """Values that other code remembered."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
