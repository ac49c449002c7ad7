"""Completion, in a real bash. The other shells ask the same question."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from headgate.cli.completion import candidates
from headgate.keys import encoded
from headgate.stores.redis.protocol.index import NAMES
from tests.cli.command import COMMAND, PATIENCE, headgate_here, variables


def completed(words: list[str], store: str, folder: Path) -> list[str]:
    """The candidates of bash for the last of `words`, after its user has sourced the script."""
    program = folder / "headgate"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = f"""
source <(headgate completion bash)
COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
_headgate
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p headgate
"""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-uec", script],
        env={**variables(store), "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *found, registered = done.stdout.splitlines()
    assert registered == "complete -o default -F _headgate headgate"
    return [each for each in found if each]


async def test_bash_completes_verbs_and_names(
    name: str, redis_url: str, admin_url: str, tmp_path: Path
) -> None:
    note_names(admin_url, f"{name}-b", f"{name}-a")

    assert completed(["headgate", "re"], "", tmp_path) == ["resume", "reset"]
    found = completed(["headgate", "show", name], redis_url, tmp_path)
    assert found == [f"{name}-a", f"{name}-b"]


def note_names(admin_url: str, *names: str) -> None:
    Redis.from_url(admin_url).zadd(NAMES, {encoded(name): 2**40 for name in names})


@pytest.mark.parametrize("words", ["show", "run --cost 2", "pause --yes", "set --json"])
async def test_a_name_that_a_shell_would_read_in_another_way_is_left_out(
    words: str, name: str, redis_url: str, admin_url: str
) -> None:
    note_names(admin_url, f"{name}-a", f"{name} $(touch x)", f"{name}'", f"{name}\n")

    found = await candidates(["--store", redis_url, *words.split()])

    assert [each for each in found if each.startswith(name)] == [f"{name}-a"]


@pytest.mark.parametrize("words", ["--store=URL show", "show --store URL", "show --store=URL"])
async def test_the_names_are_those_of_the_store_that_the_words_name(
    words: str, name: str, redis_url: str, admin_url: str
) -> None:
    note_names(admin_url, name)
    assert name in await candidates(words.replace("URL", redis_url).split())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("completion", ["bash", "zsh", "fish"]),
        ("set api", ["--json", "--yes"]),
        ("--store x set api", ["--json", "--yes"]),
    ],
)
async def test_arguments_and_options_are_completed(words: str, found: list[str]) -> None:
    assert set(found) <= set(await candidates(words.split()))


@pytest.mark.parametrize("words", ["run api --", "run api -- show", "run api --cost", "--store"])
async def test_files_and_free_text_are_left_to_the_shell(words: str) -> None:
    assert await candidates(words.split()) == []


async def test_an_unknown_shell_is_an_error_of_usage() -> None:
    done = await headgate_here("redis://localhost", "completion", "dos")

    assert (done.code, done.out) == (64, "")
    assert "'bash', 'zsh', 'fish'" in done.err
