"""The statements of the documents are true: their Python runs, their commands exist, their links
lead somewhere.

Every block of Python is run here, on a memory store where it names a server; `call`, `ask` and
`work` are the reader's own. Programs are run by test_tutorial.py, and the pages of docs/migration
and docs/recipes by tests of their own. Tables and lines that follow a comment such as `<!-- table:
text, limit -->` are read too.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

import headgate
import headgate.stores.registry
from headgate import Concurrency, Limiter, Rate, Window, parse_limit
from headgate.stores.memory.store import MemoryStore
from tests.examples.promises import PROMISES, citing, links
from tests.faults.scene import eventually
from tests.servers import Server

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"])
PROSE = [*DOCUMENTS, *sorted(ROOT.glob("examples/*.py"))]
SERVER = "redis://localhost:6379"
LEASE = 4.5  # seconds: short enough to be renewed, and longer than a busy machine stands still
SITES = (
    "https://keepachangelog.com/",
    "https://semver.org/",
)  # all that a document may link to outside

BESIDE = {
    ROOT / "docs/migration",
    ROOT / "docs/recipes",
}  # folders whose blocks are run by other tests
PROGRAM = re.compile(r"# (\w+\.py)\n")  # how a block begins that is a program of its own
# Before a block whose second run takes the branches that the first did not.
TWICE = "<!-- run twice -->"
# After a block: the indented lines that it prints.
PRINTS = re.compile(r"\n<!-- prints -->\n\n((?:    .*\n)+)")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"\./run (\w+)")


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_blocks(text: str) -> str:
    return BLOCK.sub("", text)


def python_blocks() -> list[Any]:
    blocks = []
    for path in DOCUMENTS:
        if path.parent in BESIDE:
            continue
        text = path.read_text()
        found = [
            match
            for match in BLOCK.finditer(text)
            if match[1] == "python" and not PROGRAM.match(match[2])
        ]
        for match in found:
            line = text.count("\n", 0, match.start()) + 1
            times = 2 if text[: match.start()].endswith(f"{TWICE}\n\n") else 1
            shown = PRINTS.match(text, match.end() + 1)
            prints = textwrap.dedent(shown[1]) if shown else None
            blocks.append(pytest.param(match[2], times, prints, id=f"{title(path)}:{line}"))
    return blocks


def table_after(path: Path, comment: str) -> list[list[str]]:
    """The cells of the table that follows a comment, without its heading."""
    _, found, rest = path.read_text().partition(f"<!-- {comment} -->\n\n")
    assert found, f"{title(path)} has no comment {comment!r}"
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def quoted_after(path: Path, pattern: str) -> tuple[re.Match[str], str]:
    """A comment, and the indented lines that follow it."""
    found = re.search(rf"<!-- {pattern} -->\n\n((?:    .*\n)+)", path.read_text())
    assert found, f"{title(path)} has no comment {pattern!r} with lines after it"
    return found, inspect.cleandoc("\n" + found[found.re.groups])


# The reader's own code


async def call() -> str:
    return "reply"


async def ask() -> SimpleNamespace:
    return SimpleNamespace(tokens=700)


def work() -> None:
    """The work of a thread."""


# Blocks that run


@pytest.mark.parametrize(("source", "times", "prints"), python_blocks())
async def test_every_block_of_python_runs(
    source: str,
    times: int,
    prints: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A block prints the lines that the page shows below it, if there are any."""
    monkeypatch.setattr(headgate.stores.registry, "MEMORY", MemoryStore())
    monkeypatch.setattr(
        headgate.stores.registry, "by_url", {}
    )  # which remembers it by "memory://", too
    source = source.replace(SERVER, "memory://")
    code = compile(source, "<document>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"call": call, "ask": ask, "work": work}
    for _ in range(times):
        running = eval(code, names)
        if inspect.iscoroutine(running):
            await running
    if prints is not None:
        assert capsys.readouterr().out == prints


def test_only_python_and_its_diffs_stand_in_fenced_blocks() -> None:
    pages = [path.read_text() for path in DOCUMENTS if path.parent not in BESIDE]
    languages = {match[1] for text in pages for match in BLOCK.finditer(text)}
    assert languages == {"python", "diff"}


def test_every_command_of_run_exists() -> None:
    tasks = runpy.run_path(str(ROOT / "run"))["TASKS"]
    named = {name for path in PROSE for name in COMMAND.findall(path.read_text())}
    assert named <= set(tasks)
    assert {"demo", "test"} <= named


def test_the_classics_have_the_names_that_the_readme_imports() -> None:
    changed = next(
        match[2] for match in BLOCK.finditer((ROOT / "README.md").read_text()) if match[1] == "diff"
    )
    removed, added = (line.partition(" import ")[2].split(", ") for line in changed.splitlines())
    assert removed == added
    assert [name for name in added if not hasattr(headgate, name)] == []


# Links


@pytest.mark.parametrize("path", DOCUMENTS, ids=title)
def test_no_link_of_a_document_is_broken(path: Path) -> None:
    broken = [
        target
        for target in LINK.findall(without_blocks(path.read_text()))
        if not leads(path, target)
    ]
    assert broken == []


def leads(path: Path, target: str) -> bool:
    if "://" in target:
        return target.startswith(SITES)
    file, _, anchor = target.partition("#")
    there = (path.parent / file).resolve() if file else path
    return there.exists() and (
        not anchor or anchor in {slug(heading) for heading in HEADING.findall(there.read_text())}
    )


def slug(heading: str) -> str:
    """The anchor of a heading, as the usual web pages make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# docs/limits.md


@pytest.mark.parametrize(
    "row", table_after(ROOT / "docs/limits.md", "table: text, limit"), ids=lambda row: row[0]
)
def test_every_text_in_the_table_parses_to_the_limit_beside_it(row: list[str]) -> None:
    text, limit = (cell.strip("`") for cell in row)
    assert parse_limit(text) == eval(limit, vars(headgate).copy())


def test_a_bad_text_is_refused_in_the_words_of_the_document() -> None:
    comment, words = quoted_after(ROOT / "docs/limits.md", "refused: (.*)")
    with pytest.raises(ValueError, match="parse_limit") as refused:
        parse_limit(comment[1])
    assert str(refused.value) == words


# docs/redis.md


def acl_line() -> list[str]:
    return quoted_after(ROOT / "docs/redis.md", "acl")[1].split()


def test_the_documented_rights_are_those_that_the_library_needs() -> None:
    scripts = " ".join(path.read_text() for path in (ROOT / "src").rglob("*.lua"))
    used = {name.lower() for name in re.findall(r"redis\.p?call\('([A-Z]+)'", scripts)}
    allowed = {word[1:] for word in acl_line() if word.startswith("+")}
    said = {
        "fcall",
        "function|load",
        "subscribe",
        "ssubscribe",
        "sunsubscribe",
        "info",
        "ping",
        "cluster|slots",
        "asking",
    }
    assert allowed == used | said


def test_a_user_with_these_rights_can_do_everything(own_server: Server, name: str) -> None:
    """Given the user of the document, when two event loops use every kind of limit, then nothing is
    denied.
    """
    with Redis.from_url(own_server.url) as admin:
        admin.execute_command(*acl_line())
        url = own_server.url.replace("redis://", "redis://headgate:password@")
        asyncio.run(use_everything(url, name))
        assert admin.execute_command("ACL", "LOG") == []
        assert admin.function_list() != []


@pytest.mark.parametrize(
    "changed",
    [{"+fcall": "+evalsha", "+function|load": "+eval"}, {"+function|load": "+evalsha +eval"}],
    ids=str,
)
def test_a_user_without_the_right_to_load_functions_is_served_by_scripts(
    changed: dict[str, str], own_server: Server, name: str
) -> None:
    """F29: given the other rights that the document names, or a right to call functions that no
    client has loaded.
    """
    words = " ".join(changed.get(word, word) for word in acl_line())
    with Redis.from_url(own_server.url) as admin:
        admin.execute_command(*words.split())
        asyncio.run(
            use_everything(own_server.url.replace("redis://", "redis://headgate:password@"), name)
        )
        assert admin.function_list() == []


async def use_everything(url: str, name: str) -> None:
    limits = (
        Concurrency(2, lease=LEASE),
        Rate(500, per=1),
        Window(10, per=0.02, unit="tokens"),
        "10k/day from midnight",
    )
    mine = Limiter(name, *limits, store=url)
    held = await mine.acquire(tokens=1)
    await asyncio.gather(
        asyncio.to_thread(asyncio.run, take_turns(url, name, limits)), take_turns(url, name, limits)
    )
    before = held.certain_until
    await eventually(lambda: held.certain_until != before)  # a third of the lease later at most
    assert await held.arelease()
    changed = Limiter(
        name, Concurrency(2, lease=LEASE), Window(5, per=0.02, unit="tokens"), store=url
    )
    async with changed:
        assert (await changed.astatus()).waiting == 0


async def take_turns(url: str, name: str, limits: tuple[Any, ...]) -> None:
    limiter = Limiter(name, *limits, store=url)

    async def turn() -> None:
        async with limiter.acquire(tokens=2) as permit:
            permit.settle(tokens=1)

    turns = [asyncio.create_task(turn()) for _ in range(20)]
    await asyncio.sleep(0.01)
    for task in turns[::3]:
        task.cancel()
    await asyncio.gather(*turns, return_exceptions=True)
    assert [task.exception() for task in turns if not task.cancelled() and task.exception()] == []


# docs/promises.md


def test_every_invariant_has_its_line() -> None:
    numbers = [row[0] for row in table_after(PROMISES, "table: number, invariant, tests")]
    series = [
        f"{kind}{n}" for kind, most in (("S", 9), ("L", 6), ("T", 12)) for n in range(1, most + 1)
    ]
    assert numbers == [*series, "TL1", "H1", "H2", "A1", "A2"]


@pytest.mark.parametrize(
    "row", table_after(PROMISES, "table: number, invariant, tests"), ids=lambda row: row[0]
)
def test_every_invariant_has_the_tests_that_cite_it(row: list[str]) -> None:
    """Each is cited, and its line links all the files that do so, and no other: promises.py beside
    this file writes it.
    """
    number, _, cited_by = row
    assert citing()[number], f"no test cites {number}"
    assert cited_by == links(number), "run: python -m tests.examples.promises"
