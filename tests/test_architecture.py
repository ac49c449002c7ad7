"""The shape of the package, held by tests: who may import whom, what stands where, what ships.

Here live the rules of docs/architecture.md that a reader cannot see in one file; each says what to do about a breach.
"""

from __future__ import annotations

import ast
import fnmatch
import inspect
import re
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import headgate
from tests.processes import finished

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "headgate"
GATE = PACKAGE / "gate"

# What is known of each in one module alone; none of them is there when only headgate is installed.
CLIENTS = {
    "http/aiohttp.py": {"aiohttp"},
    "http/httpx.py": {"httpx"},
    "http/httpx2.py": {"httpx2"},
    "http/requests.py": {"requests", "urllib3"},
    "http/openai.py": {"openai", "httpx2"},
    "http/anthropic.py": {"anthropic", "httpx2"},
    "http/answers.py": {"http_sf"},
    "http/heed.py": set(),
}
FRAMEWORKS = {
    "frameworks/langchain.py": {"langchain_core"},
    "frameworks/litellm.py": {"litellm"},
    "frameworks/pydantic_ai.py": {"pydantic_ai"},
    "frameworks/stamina.py": set(),  # a hook is a function
    "frameworks/tenacity.py": {"tenacity"},
}
FOREIGN = CLIENTS | FRAMEWORKS
ANSWERS = {"headgate.http.answers", "headgate.http.heed"}  # which each client's module needs
EXTRAS = ("redis", "hiredis", "rich", "click", *sorted(set().union(*FOREIGN.values())))
# What arithmetic and text need of the standard library: no clock, no I/O, no loop, no lock, no chance.
PURE = {
    *["__future__", "collections", "collections.abc", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions"],
    *["functools", "itertools", "keyword", "math", "re", "reprlib", "types", "typing", "urllib.parse"],
}
CLOCKS = frozenset({"now", "today", "utcnow"})  # what makes a clock of datetime
TWINS = sorted(path.stem for path in GATE.glob("*.lua"))
ONLY_PYTHON = {
    "__init__": "`new` in Lua, where a state is a plain table",
    "text": "a declaration is written in Python and only read in Lua",
    "costs_of": "State.costs_of",
    "costs": "State.costs_of",
    "read_rules": "a call of the script reads its rules once anyway",
    "admit": "the hot path of one process",
    "at_once": "the hot path of one process",
    "pass_on": "the hot path of one process",
    "over": "the hot path of one process",
    "entry_at": "requests.lua asks who is alive first",
    "paused": "a call of the script sees it by the moment of its answer",
    "orphan": "a server does not fork",
}
ONLY_LUA = {
    "new": "`__init__` in Python",
    "each": "the log is a sorted set here, read in pages by log.lua",
    "pass": "many `acquire`s in one: memory is asked for one at a time",
    "recount": "a key can be lost without the rest of the state",
}
LUA = re.compile(r"redis\.p?call|\b(?:KEYS|ARGV)\s*\[|^\s*(?:if .* then$|(?:for|while) .* do$)", re.MULTILINE)
LONGEST_MODULE, LONGEST_FUNCTION = 600, 50
FILE_NAME = re.compile(r"\b[\w/]*\w\.(?:py|lua|md)\b")
HOSTS = {"keepachangelog.com", "semver.org", "localhost", "127.0.0.1", "user", "h", "host"}  # that a URL here may name
URL = re.compile(r"\bhttps?://([\w.-]*\w)")
ONE_MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|tmp|Users|var/lib)/\w")
REGISTRY = re.compile("py" + r"pi\.|python" + r"hosted|index-" + r"url|artif" + r"actory", re.IGNORECASE)


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def ours() -> list[Path]:
    """Every file of the repository, but for what .gitignore leaves out."""
    ignored = [".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())]

    def kept(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                yield from kept(path) if path.is_dir() else [path]

    return list(kept(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


PYTHON = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(PACKAGE.rglob("*.lua"))
MODULES = {module(path): path for path in PYTHON}


# Imports -----------------------------------------------------------------------------------------------------------------------


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything in it that runs: what stands under TYPE_CHECKING does not."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not for_types_only(child):
            yield from at_run_time(child)


def imported(path: Path) -> set[str]:
    """The modules that a file imports when it runs, wherever in it that stands."""
    found: set[str] = set()
    for node in at_run_time(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{title(path)} imports relatively: write out where from"
            assert node.module is not None
            found |= {
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else node.module for alias in node.names
            }
    return found


def of_us(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] == "headgate"}


def in_folder(path: Path, *folders: str) -> bool:
    return any(path.is_relative_to(PACKAGE / folder) for folder in folders)


def test_the_gate_decides_and_does_nothing_else() -> None:
    """Whatever the gate imports, and whatever that imports, has no clock, no I/O, no loop, no lock and no redis."""
    reached: dict[str, Path] = {}
    todo = [module(path) for path in GATE.glob("*.py")]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = MODULES[name]
            todo += of_us(MODULES[name])

    outside = {name for name in reached if not name.startswith("headgate.gate")}
    assert outside <= {"headgate.checks", "headgate.limits"}, "the gate knows the limits that it makes rules of, and no more of us"
    impure = {title(path): imported(path) - of_us(path) - PURE for path in reached.values()}
    assert {name: found for name, found in impure.items() if found} == {}
    told_the_time = [
        f"{title(path)}:{node.lineno}"
        for path in reached.values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS
    ]
    assert told_the_time == [], "time is an argument"


@pytest.mark.parametrize("path", PYTHON, ids=title)
def test_what_is_not_ours_is_known_in_one_place(path: Path) -> None:
    """redis-py and hiredis are imported by the Redis store alone, and that store by `store_of` alone, when it is asked for; each
    HTTP client and framework by its own module, which nobody else imports."""
    if in_folder(path, "stores/redis"):
        return
    foreign = {name.partition(".")[0] for name in imported(path)} & {*EXTRAS}
    assert foreign == FOREIGN.get(path.relative_to(PACKAGE).as_posix(), set())
    ours = {name for name in of_us(path) if name.startswith("headgate.stores.redis")}
    assert ours == ({"headgate.stores.redis"} if path == PACKAGE / "stores/__init__.py" else set())
    foreign = {module(PACKAGE / name) for name in FOREIGN}
    assert of_us(path) & (foreign - ANSWERS if module(path) in foreign else foreign) == set()
    at_the_top = {node.module for node in tree(path).body if isinstance(node, ast.ImportFrom)}
    assert "headgate.stores.redis" not in at_the_top, "import it where a Redis store is asked for"


@pytest.mark.parametrize("path", PYTHON, ids=title)
def test_each_layer_knows_those_below_it(path: Path) -> None:
    """Errors and names know nobody, limits know their checks, stores do not know who uses them, and the shells only send."""
    knows = {name.removeprefix("headgate.") for name in of_us(path)}
    if path.name in ("errors.py", "names.py", "clock.py", "checks.py") and path.parent == PACKAGE:
        assert knows == set()
    elif path == PACKAGE / "limits.py":
        assert knows <= {"checks"}
    elif path == PACKAGE / "grammar.py":
        assert knows <= {"checks", "limits"}
    elif in_folder(path, "stores"):
        assert knows & {"limiter", "entrance", "classics", "decorate", "grammar"} == set()
    elif path.name in ("limiter.py", "entrance.py", "classics.py", "decorate.py"):
        waits = {"asyncio", "threading", "time", "select", "socket", "concurrent.futures"}
        assert imported(path) & waits == set(), "who waits, and how, is the store's to know"


def test_what_is_for_tests_is_known_to_tests_alone() -> None:
    """Nobody in the package imports headgate.testing, or pytest; and the fixtures import headgate when a test asks for them."""
    knows = {title(path): imported(path) & {"headgate.testing", "pytest"} for path in PYTHON}
    assert {name: found for name, found in knows.items() if found} == {}
    at_the_top = [node for node in tree(SOURCE / "headgate_pytest.py").body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [name for name in map(ast.unparse, at_the_top) if "headgate" in name] == []


def test_it_is_imported_without_any_extra() -> None:
    """`import headgate` brings none of the extras in and needs none: every module can be imported but the Redis store's and those
    of the HTTP clients and frameworks."""
    foreign = {PACKAGE / name for name in FOREIGN}
    needs_none = sorted(name for name, path in MODULES.items() if not in_folder(path, "stores/redis") and path not in foreign)
    program = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # an import of them fails
import importlib, headgate
for name in {needs_none!r}: importlib.import_module(name)
print(sorted(name for name in sys.modules if name.partition('.')[0] in {EXTRAS!r} and sys.modules[name]))
"""
    assert finished(program) == "[]\n"
    assert finished(f"import headgate, sys; print(sorted({{*{EXTRAS!r}}} & {{*sys.modules}}))") == "[]\n"


@pytest.mark.parametrize("path", PYTHON, ids=title)
def test_nothing_is_generated_or_guessed_at_run_time(path: Path) -> None:
    names = {node.func.id for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert names & {"eval", "exec", "compile", "isawaitable", "__import__"} == set()


@pytest.mark.parametrize("path", PYTHON, ids=title)
def test_the_users_own_chance_is_left_alone(path: Path) -> None:
    """Whoever seeds `random` gets the same numbers with headgate and without: it has a generator of its own."""
    drawn = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random"}
    assert drawn <= {"Random", "SystemRandom"}


# Twins -------------------------------------------------------------------------------------------------------------------------


def python_functions(name: str) -> dict[str, list[str]]:
    """What the Python twin can do, in its order: name and parameters, the object itself left out."""
    found = {}
    for node in tree(GATE / f"{name}.py").body:
        protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for each in [] if protocol else node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                found[each.name] = [argument.arg for argument in each.args.args if argument.arg != "self"]
    return found


def lua_functions(name: str) -> dict[str, list[str]]:
    """The same of the Lua twin."""
    text = (GATE / f"{name}.lua").read_text(encoding="utf-8")
    found = re.findall(r"^(?:local )?function (?:\w+\.)?(\w+)\(([^)]*)\)", text, re.MULTILINE)
    return {name: [word for word in re.findall(r"\w+", words) if word != "rule"] for name, words in found}


def test_every_algorithm_has_its_twin() -> None:
    """The modules that say so, and no others."""
    says = {path.stem for path in GATE.glob("*.py") if f"Twin: {path.stem}.lua" in (ast.get_docstring(tree(path)) or "")}
    assert says == set(TWINS)
    assert {name for name in TWINS if f"Twin: {name}.py" in (GATE / f"{name}.lua").read_text().splitlines()[0]} == set(TWINS)
    assert set(TWINS) >= {"gate", "bucket", "window", "quota", "slots"}


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_functions_in_the_same_order(name: str) -> None:
    """What stands in one alone is named at the top of this file, with its reason."""
    python = [function for function in python_functions(name) if function not in ONLY_PYTHON]
    lua = [function for function in lua_functions(name) if function not in ONLY_LUA]
    if name == "gate":
        python.remove("idle_at")  # promises.lua asks the rules themselves
    assert lua == python


@pytest.mark.parametrize("name", [name for name in TWINS if name != "gate"])
def test_twins_take_the_same_arguments(name: str) -> None:
    """The rules do; the gate's own functions are told in Lua what in Python they find in the gate."""
    python, lua = python_functions(name), lua_functions(name)
    both = [function for function in lua if function in python and function not in ONLY_LUA]
    assert {function: lua[function] for function in both} == {function: python[function] for function in both}


def test_nobody_is_excused_who_is_not_there() -> None:
    functions = {function for name in TWINS for function in (*python_functions(name), *lua_functions(name))}
    assert (ONLY_PYTHON.keys() | ONLY_LUA.keys()) - functions == set()


@pytest.mark.parametrize("path", PYTHON, ids=title)
def test_no_lua_stands_in_a_python_string(path: Path) -> None:
    """Lua lives in .lua files; what script.py puts around them decides nothing."""
    strings = [node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert [text for text in strings if LUA.search(text)] == []


# Files -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in ours() if path.suffix in (".py", ".lua")], ids=title)
def test_a_file_opens_with_its_law(path: Path) -> None:
    """What lives here, and what must not, in its first line and those after it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        assert re.match(r"-- \w.{20,}", text)
    elif text or path.is_relative_to(SOURCE):
        assert len(ast.get_docstring(tree(path)) or "") > 20
        assert text.removeprefix("#!/usr/bin/env python3\n").startswith('"""')


@pytest.mark.parametrize("path", [*PYTHON, *SCRIPTS, *(path for path in ours() if path.suffix == ".md")], ids=title)
def test_a_file_that_is_spoken_of_is_there(path: Path) -> None:
    known = {each.name for each in ours()} | {"x.py", "x.lua"}  # any pair of twins
    named = {Path(name).name for name in FILE_NAME.findall(path.read_text(encoding="utf-8"))}
    assert named - known == set()


@pytest.mark.parametrize("path", [path for path in ours() if path.suffix in (".py", ".lua")], ids=title)
def test_modules_and_functions_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < LONGEST_MODULE
    assert {name: length for name, length in lengths(path, lines) if length >= LONGEST_FUNCTION} == {}


def lengths(path: Path, lines: list[str]) -> Iterator[tuple[str, int]]:
    """Each function, and how many lines it has."""
    if path.suffix == ".py":
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1
    else:
        starts = [number for number, line in enumerate(lines) if re.match(r"(local )?function ", line)]
        for start in starts:
            ends = (
                number
                for number in range(start, len(lines))
                if re.match(r"end\b|.*\bend$", lines[number]) and lines[number][0] != " "
            )
            yield lines[start], next(ends) - start + 1


def test_no_file_knows_one_machine_or_a_registry() -> None:
    """No absolute path of somebody's machine, no package index, no host but those that documents link to."""
    found: dict[str, Any] = {}
    for path in ours():
        text = path.read_text(encoding="utf-8")
        hosts = {host for host in URL.findall(text) if host not in HOSTS}
        if ONE_MACHINE.search(text) or REGISTRY.search(text) or hosts:
            found[title(path)] = [*ONE_MACHINE.findall(text), *REGISTRY.findall(text), *hosts]
    assert found == {}


# What is offered ---------------------------------------------------------------------------------------------------------------


def test_the_public_names_are_those_of_the_package_itself() -> None:
    """All that is public is in `__all__`, sorted, comes from an import in __init__.py, and says what it is."""
    init = tree(PACKAGE / "__init__.py")
    named = [alias.asname or alias.name for node in init.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(named) == sorted(headgate.__all__) == headgate.__all__
    submodules = {name.split(".")[1] for name in MODULES if "." in name}
    assert {name for name in vars(headgate) if not name.startswith("_")} - submodules == set(headgate.__all__)
    assert [name for name in headgate.__all__ if not getattr(headgate, name).__doc__] == []


def test_what_is_public_is_written_about_and_nothing_else_is() -> None:
    """Every public name stands in a document, and no document, example or demo imports from any deeper than headgate,
    but for the modules of HTTP clients, of frameworks and for tests, which are offered as they are."""
    documents = [path for path in ours() if path.suffix == ".md"]
    users = [*documents, *(path for path in ours() if path.parts[len(ROOT.parts)] in ("examples", "demo") and path.suffix == ".py")]
    text = "\n".join(path.read_text() for path in documents)
    assert [name for name in headgate.__all__ if not re.search(rf"\b{name}\b", text)] == []
    deeper = [
        title(path)
        for path in users
        if re.search(r"^\s*(from|import) headgate\.(?!http\.|frameworks\.|testing\b)", path.read_text(), re.MULTILINE)
    ]
    assert deeper == []


def test_public_methods_say_what_they_do() -> None:
    """Every method and property of a public class that has no underscore before it."""
    silent = [
        f"{name}.{attribute}"
        for name in headgate.__all__
        if isinstance(kind := getattr(headgate, name), type)
        for attribute, value in vars(kind).items()
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property)) and not value.__doc__
    ]
    assert silent == []


WRITTEN = {
    **dict.fromkeys(CLIENTS.keys() - {"http/heed.py"}, "docs/http.md"),
    **dict.fromkeys(FRAMEWORKS.keys() - {"frameworks/litellm.py"}, "docs/frameworks.md"),  # that one: tests/frameworks
    "testing.py": "docs/testing.md",
}


@pytest.mark.parametrize(("name", "written"), sorted(WRITTEN.items()))
def test_what_the_modules_beside_the_package_itself_offer_is_written_about(name: str, written: str) -> None:
    """All of it stands in `__all__`, says what it is, down to the methods, and is found in its document."""
    offered = import_module(module(PACKAGE / name))
    document = (ROOT / written).read_text()
    assert sorted(offered.__all__) == offered.__all__
    assert [each for each in offered.__all__ if not getattr(offered, each).__doc__] == []
    assert [each for each in offered.__all__ if not re.search(rf"\b{each}\b", document)] == []
    silent = [
        f"{each}.{attribute}"
        for each in offered.__all__
        if isinstance(kind := getattr(offered, each), type)
        for attribute, value in inspect.getmembers(kind)
        if attribute in vars(kind) and not attribute.startswith("_") and isinstance(value, property | FunctionType)
        if not value.__doc__
    ]
    assert silent == []


# What ships --------------------------------------------------------------------------------------------------------------------


def test_the_wheel_has_every_file_of_the_package_and_no_other(tmp_path: Path) -> None:
    """py.typed, every .lua file and the fixtures for pytest, built as a release is: by the project's own build backend."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert any(need.startswith("hatchling") for need in project["project"]["optional-dependencies"]["dev"]), "this test needs it"
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert shipped == {path.relative_to(SOURCE).as_posix() for path in ours() if path.is_relative_to(SOURCE)}
    assert {name for name in shipped if not name.startswith("headgate/")} == {"headgate_pytest.py"}
    assert "headgate/py.typed" in shipped
    assert {path.relative_to(SOURCE).as_posix() for path in SCRIPTS} <= shipped


def test_the_core_depends_on_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert any(need.startswith("redis") for need in project["optional-dependencies"]["redis"])
