"""The shape of the package, held by tests: the allowed imports, the places of things, the shipped
files.

This module has the rules of docs/architecture.md that a reader cannot see in one file. Each names
the way out of a breach.
"""

from __future__ import annotations

import ast
import fnmatch
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeGuard, get_type_hints

import pytest

import headgate
from tests import structure
from tests.definitions import definitions
from tests.processes import finished

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "headgate"
GATE = PACKAGE / "gate"

# Names that are known in one module alone; none of them is there when only headgate is installed.
CLIENTS = {
    "http/aiohttp.py": {"aiohttp"},
    "http/httpx.py": {"httpx"},
    "http/httpx2.py": {"httpx2"},
    "http/requests.py": {"requests", "urllib3"},
    "http/openai.py": {"openai", "httpx2"},
    "http/anthropic.py": {"anthropic", "httpx2"},
    "http/rate_limit_headers.py": {"http_sf"},
}
# Modules of clients share these, which need the parser of header fields.
SHARED = {
    "http/adoption.py",
    "http/feedback.py",
    "http/httpx_transports.py",
    "http/limiter_chain.py",
    "http/point_metering.py",
    "http/token_metering.py",
}
SDKS = {"http/openai.py", "http/anthropic.py"}  # they use the module of httpx2
FRAMEWORKS = {
    "frameworks/langchain.py": {"langchain_core"},
    "frameworks/litellm.py": {"litellm"},
    "frameworks/pydantic_ai.py": {"pydantic_ai"},
    "frameworks/stamina.py": set(),  # a hook is a function
    "frameworks/tenacity.py": {"tenacity"},
}
EXPORTERS = {
    "telemetry/opentelemetry.py": {"opentelemetry"},
    "telemetry/prometheus.py": {"prometheus_client"},
}
FOREIGN = {
    **CLIENTS,
    **FRAMEWORKS,
    **EXPORTERS,
    "cli/exporter.py": {"prometheus_client"},
    "cli/top.py": {"rich"},
}
EXTRAS = ("redis", "hiredis", "rich", "click", *sorted(set().union(*FOREIGN.values())))
# The part of the standard library for arithmetic and text: no clock, no I/O, no loop, no lock, no
# chance.
PURE = {
    *("__future__", "collections", "collections.abc", "dataclasses", "datetime", "decimal"),
    *("difflib", "enum", "fractions", "functools", "itertools", "keyword", "math", "re"),
    *("reprlib", "types", "typing", "urllib.parse"),
}
CLOCKS = frozenset({"now", "today", "utcnow"})  # the calls that make a clock of datetime
TWINS = sorted(path.stem for path in GATE.glob("*.lua"))
ONLY_PYTHON = {
    "__init__": "`new` in Lua, where a state is a plain table",
    "text": "a declaration is written in Python and only read in Lua",
    "costs": "RequestId.costs_of",
    "admit": "the hot path of one process",
    "freed_at": "a value of the state in Lua",
    "drop_skipped": "the log is one string in Lua",
    "at_once": "the hot path of one process",
    "entry_at": "operations.lua finds the head of the queue first",
    "next_at": "operations.lua asks `ready` for the head of the queue",
}
ONLY_LUA = {
    "new": "`__init__` in Python",
    "entries": "the log is one list in memory",
    "set_log": "the log is one list in memory",
    "forget_first": "the log is one list in memory",
    "numbers": "memory keeps the rules themselves",
    "restore": "memory keeps the rules themselves",
    "pass": "many `acquire`s in one: memory is asked for one at a time",
}
LUA = re.compile(
    r"redis\.p?call|\b(?:KEYS|ARGV)\s*\[|^\s*(?:if .* then$|(?:for|while) .* do$)", re.MULTILINE
)
LONGEST_MODULE, LONGEST_FUNCTION = 800, 65
FILE_NAME = re.compile(r"(?<![\w/-])[\w/-]*\w\.(?:py|lua|md)\b")
PROGRAM = re.compile(r"^```python\n# (\w+\.py)$", re.MULTILINE)  # in a document, by its name
HOSTS = {
    "keepachangelog.com",
    "semver.org",
    "localhost",
    "127.0.0.1",
    "user",
    "h",
    "host",
}  # that a URL here may name
URL = re.compile(r"\bhttps?://([\w.-]*\w)")
ONE_MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home|tmp|Users|var/lib)/\w")
OWN_SIGNAL = re.compile(
    r"\b(?:signal\.(?:signal|raise_signal|pthread_kill|setitimer|alarm)|os\.getpid\(\), signal)\b"
)
REGISTRY = re.compile(
    "py" + r"pi\.|python" + r"hosted|index-" + r"url|artif" + r"actory", re.IGNORECASE
)


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def ours() -> list[Path]:
    """Every file of the repository, but for those that .gitignore leaves out."""
    ignored = [".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())]

    def kept(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                yield from kept(path) if path.is_dir() else [path]

    return list(kept(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _few_objects() -> Iterator[None]:
    """A garbage collection in a later test need not look at a million nodes of the trees."""
    yield
    tree.cache_clear()


def module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def assert_kept(paths: Iterable[Path], breach: Callable[[Path], object]) -> None:
    """Fail with every file that breaks a rule, and with the faults that `breach` finds in it."""
    found = {title(path): breach(path) for path in paths}
    wrong = [f"{name}: {each}" for name, each in found.items() if each]
    assert not wrong, "\n".join(wrong)


PYTHON = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = sorted(PACKAGE.rglob("*.lua"))
MODULES = {module(path): path for path in PYTHON}


# Imports ------------------------------------------------------------------------------------------


def for_types_only(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything in it that runs: code under TYPE_CHECKING does not."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not for_types_only(child):
            yield from at_run_time(child)


@cache
def imported(path: Path, walk: Callable[[ast.AST], Iterable[ast.AST]] = at_run_time) -> set[str]:
    """The modules that a file imports when it runs, wherever in it that stands; with `ast.walk`:
    those for types, too.
    """
    found: set[str] = set()
    for node in walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{title(path)} imports relatively: write out where from"
            assert node.module is not None
            found |= {
                f"{node.module}.{alias.name}"
                if f"{node.module}.{alias.name}" in MODULES
                else node.module
                for alias in node.names
            }
    return found


def of_us(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] == "headgate"}


def in_folder(path: Path, *folders: str) -> bool:
    return any(path.is_relative_to(PACKAGE / folder) for folder in folders)


def test_the_gate_imports_no_clock_no_io_and_no_lock() -> None:
    """All imports of the gate, and their imports, have no clock, no I/O, no loop, no lock and no
    redis.
    """
    reached: dict[str, Path] = {}
    todo = [module(path) for path in GATE.glob("*.py")]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached[name] = MODULES[name]
            todo += of_us(MODULES[name])

    outside = {name for name in reached if not name.startswith("headgate.gate")}
    assert outside <= {"headgate.validation", "headgate.limits", "headgate.values"}, (
        "the gate knows the limits that it makes rules of, and no more of us"
    )
    impure = {title(path): imported(path) - of_us(path) - PURE for path in reached.values()}
    assert {name: found for name, found in impure.items() if found} == {}
    told_the_time = [
        f"{title(path)}:{node.lineno}"
        for path in reached.values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCKS
    ]
    assert told_the_time == [], "time is an argument"


OUTSIDE_REDIS = [path for path in PYTHON if not in_folder(path, "stores/redis")]
STORE = "headgate.stores.redis"


def test_each_extra_is_imported_by_its_own_modules_alone() -> None:
    """The Redis store alone imports redis-py and hiredis; the module of a client or framework alone
    imports that.
    """

    def breach(path: Path) -> set[str]:
        allowed = FOREIGN.get(path.relative_to(PACKAGE).as_posix(), set())
        return ({name.partition(".")[0] for name in imported(path)} & {*EXTRAS}) ^ allowed

    assert_kept(OUTSIDE_REDIS, breach)


def test_only_the_choice_of_a_store_imports_the_redis_store() -> None:
    """`store_of` imports it where a Redis store is asked for, not at the top of its module."""

    def breach(path: Path) -> set[str]:
        allowed = {STORE} if path == PACKAGE / "stores/registry.py" else set()
        at_the_top = {
            node.module or "" for node in tree(path).body if isinstance(node, ast.ImportFrom)
        }
        return ({name for name in of_us(path) if name.startswith(STORE)} ^ allowed) | (
            at_the_top & {STORE}
        )

    assert_kept(OUTSIDE_REDIS, breach)


def test_no_module_imports_that_of_a_client_or_framework() -> None:
    """They import one another only for shared code. An SDK uses the module of httpx2, and the
    command's exporter that of prometheus-client.
    """
    foreign = {module(PACKAGE / name) for name in FOREIGN.keys() | SHARED}
    shared = {module(PACKAGE / name) for name in SHARED | {"http/rate_limit_headers.py"}}

    def breach(path: Path) -> set[str]:
        allowed = shared if module(path) in foreign else set()
        if path.relative_to(PACKAGE).as_posix() in SDKS:
            allowed = allowed | {"headgate.http.httpx2"}
        if path == PACKAGE / "cli/exporter.py":
            allowed = allowed | {"headgate.telemetry.prometheus"}
        return of_us(path) & foreign - allowed

    assert_kept(OUTSIDE_REDIS, breach)


def test_each_layer_imports_only_those_below_it() -> None:
    """Errors and names import nothing of ours, limits their checks, and stores none of their users;
    the shells wait for nothing.
    """
    assert_kept(PYTHON, above)


# The web page is a user of the public names. Beside them it knows how a store is named and shown.
WEB_KNOWS = {
    *["errors", "internals", "keys", "limiter", "listing", "log_writer", "validation"],
    *["stores.members", "stores.memory.store", "stores.registry", "stores.status"],
}


def above(path: Path) -> set[str]:
    """Return the modules that a module imports and must not, by its layer."""
    knows = {name.removeprefix("headgate.") for name in of_us(path)}
    if (
        path.name in ("errors.py", "keys.py", "clock.py", "validation.py", "values.py")
        and path.parent == PACKAGE
    ):
        return knows
    if path == PACKAGE / "limits.py":
        return knows - {"validation", "values"}
    if path == PACKAGE / "limit_parser.py":
        return knows - {"validation", "limits"}
    if in_folder(path, "web"):
        return {name for name in knows if not name.startswith("web")} - WEB_KNOWS
    if in_folder(path, "stores"):
        return knows & {"limiter", "entrance", "classics", "decorator", "limit_parser"}
    if path.name in ("limiter.py", "entrance.py", "classics.py", "decorator.py"):
        return imported(path) & {"asyncio", "time", "select", "socket", "concurrent.futures"}
    return set()


def test_no_module_imports_itself_through_others() -> None:
    """An import for types counts, too: a reader has to follow it."""
    texts = {path: path.read_text(encoding="utf-8") for path in PYTHON}
    assert structure.circles(PACKAGE, texts) == []


REDIS = PACKAGE / "stores/redis"
# From the lowest. A layer knows those below it, but not those beside it in one line.
REDIS_LAYERS = [
    ["protocol"],
    ["transport", "limit_sync.py"],
    ["session", "fast_path.py"],
    ["routing.py", "index.py", "members.py"],
    ["listing.py", "texts.py"],
    ["permit_issuer.py"],
    ["threads.py", "diagnosis.py"],
    ["queue.py"],
    ["store.py"],
    ["__init__.py"],
]


def test_each_layer_of_the_redis_store_imports_only_those_below_it() -> None:
    """Imports for types count, too. The table is that of docs/architecture.md."""

    def place(path: Path) -> tuple[int, str]:
        name = path.relative_to(REDIS).parts[0]
        return next(i for i, names in enumerate(REDIS_LAYERS) if name in names), name

    def breach(path: Path) -> list[str]:
        known = [MODULES[name] for name in imported(path, ast.walk) & MODULES.keys()]
        own, ours = place(path), [each for each in known if each.is_relative_to(REDIS)]
        return [title(each) for each in ours if place(each) != own and place(each)[0] >= own[0]]

    assert_kept([path for path in PYTHON if path.is_relative_to(REDIS)], breach)


# The drivers of the session, and those that end it, belong to a loop and its threads.
DRIVERS = {"loop_session.py", "delivery.py", "pause_watch.py"}
OUTSIDE = {"asyncio", "concurrent.futures", "os", "random", "select", "socket", "threading", "time"}


def test_a_session_has_no_loop_no_clock_and_no_connection() -> None:
    """It is a state machine, and so are the calls and replies. Imports for types count, too."""
    machines = [
        path
        for path in PYTHON
        if in_folder(path, "stores/redis/protocol")
        or (in_folder(path, "stores/redis/session") and path.name not in DRIVERS)
    ]
    assert len(machines) > len(DRIVERS)
    assert_kept(machines, lambda path: imported(path, ast.walk) & OUTSIDE)


def test_only_tests_import_the_modules_for_tests() -> None:
    """Only headgate.testing imports its modules, and only the fixtures import pytest.

    The fixtures import headgate when a test asks for them.
    """
    ours = {name for name in MODULES if name.startswith("headgate.testing")}

    def breach(path: Path) -> set[str]:
        return imported(path) & ({"pytest"} if in_folder(path, "testing") else {"pytest", *ours})

    assert_kept(PYTHON, breach)
    at_the_top = [
        node
        for node in tree(SOURCE / "headgate_pytest.py").body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert [name for name in map(ast.unparse, at_the_top) if "headgate" in name] == []


ADAPTERS = ("http", "frameworks", "testing", "web")


def test_adapters_read_no_private_attribute_of_a_limiter() -> None:
    """They use `headgate.internals`.

    Private names of their own classes and of others' are theirs.
    """
    private = {
        node.attr
        for path in PYTHON
        if not in_folder(path, *ADAPTERS, "stores/redis")
        for node in ast.walk(tree(path))
        if is_private(node) and ast.unparse(node.value) == "self"
    }

    def breach(path: Path) -> set[str]:
        nodes = [node for node in ast.walk(tree(path)) if is_private(node)]
        own = {node.attr for node in nodes if ast.unparse(node.value) in ("self", "cls")}
        return {node.attr for node in nodes} & private - own

    assert_kept([path for path in PYTHON if in_folder(path, *ADAPTERS)], breach)


def is_private(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr[0] == "_" and node.attr[1] != "_"


def test_the_package_is_imported_without_any_extra() -> None:
    """`import headgate` brings none of the extras in and needs none. Every module can be imported
    but the Redis store's and those of the HTTP clients and frameworks.
    """
    foreign = {PACKAGE / name for name in FOREIGN.keys() | SHARED}
    needs_none = sorted(
        name
        for name, path in MODULES.items()
        if not in_folder(path, "stores/redis") and path not in foreign
    )
    program = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # an import of them fails
import importlib, headgate
for name in {needs_none!r}: importlib.import_module(name)
found = (name for name in sys.modules if name.partition('.')[0] in {EXTRAS!r})
print(sorted(name for name in found if sys.modules[name]))
"""
    assert finished(program) == "[]\n"
    assert (
        finished(f"import headgate, sys; print(sorted({{*{EXTRAS!r}}} & {{*sys.modules}}))")
        == "[]\n"
    )


def test_no_module_generates_code_at_run_time() -> None:
    def breach(path: Path) -> set[str]:
        calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        return {call.id for call in calls if isinstance(call, ast.Name)} & {
            "eval",
            "exec",
            "compile",
            "isawaitable",
            "__import__",
        }

    assert_kept(PYTHON, breach)


def test_the_users_own_random_numbers_stay_as_they_are() -> None:
    """A user that seeds `random` gets the same numbers with headgate and without: headgate has its
    own generators.
    """

    def breach(path: Path) -> set[str]:
        attributes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
        return {node.attr for node in attributes if ast.unparse(node.value) == "random"} - {
            "Random",
            "SystemRandom",
        }

    assert_kept(PYTHON, breach)


# Twins --------------------------------------------------------------------------------------------


def python_functions(name: str) -> dict[str, list[str]]:
    """The functions of the Python twin, in its order: name and parameters, the object itself left
    out.
    """
    found = {}
    for node in tree(GATE / f"{name}.py").body:
        protocol = isinstance(node, ast.ClassDef) and any(
            "Protocol" in ast.unparse(base) for base in node.bases
        )
        for each in [] if protocol else node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                found[each.name] = [
                    argument.arg for argument in each.args.args if argument.arg != "self"
                ]
    return found


def lua_functions(name: str) -> dict[str, list[str]]:
    """The same of the Lua twin."""
    text = (GATE / f"{name}.lua").read_text(encoding="utf-8")
    found = re.findall(r"^(?:local )?function (?:\w+\.)?(\w+)\(([^)]*)\)", text, re.MULTILINE)
    return {
        name: [word for word in re.findall(r"\w+", words) if word != "rule"]
        for name, words in found
    }


def test_every_algorithm_has_its_twin() -> None:
    """The modules that say so, and no others."""
    says = {
        path.stem
        for path in GATE.glob("*.py")
        if f"Twin: {path.stem}.lua" in (ast.get_docstring(tree(path)) or "")
    }
    assert says == set(TWINS)
    assert {
        name
        for name in TWINS
        if f"Twin: {name}.py" in (GATE / f"{name}.lua").read_text().splitlines()[0]
    } == set(TWINS)
    assert set(TWINS) >= {"gate", "token_bucket", "sliding_window", "fixed_window", "concurrency"}


def test_twins_have_the_same_functions_in_the_same_order() -> None:
    """A function of one twin alone is named at the top of this file, with its reason."""
    python = {
        name: [each for each in python_functions(name) if each not in ONLY_PYTHON] for name in TWINS
    }
    python["gate"].remove("idle_at")  # expiry.lua asks the rules themselves
    lua = {name: [each for each in lua_functions(name) if each not in ONLY_LUA] for name in TWINS}
    assert lua == python


def test_twins_take_the_same_arguments() -> None:
    """Those of the rules do: the gate's own functions take as arguments in Lua the values that they
    find in the gate in Python.
    """

    rules = [name for name in TWINS if name != "gate"]
    python = {name: python_functions(name) for name in rules}
    lua = {name: lua_functions(name) for name in rules}

    def shared(functions: dict[str, dict[str, list[str]]]) -> dict[tuple[str, str], list[str]]:
        both = [
            (name, each)
            for name in rules
            for each in lua[name]
            if each in python[name] and each not in ONLY_LUA
        ]
        return {(name, each): functions[name][each] for name, each in both}

    assert shared(lua) == shared(python)


def test_each_exception_of_the_twins_names_a_function_that_exists() -> None:
    functions = {
        function for name in TWINS for function in (*python_functions(name), *lua_functions(name))
    }
    assert (ONLY_PYTHON.keys() | ONLY_LUA.keys()) - functions == set()


def test_no_lua_stands_in_a_python_string() -> None:
    """Lua lives in .lua files; the parts that script.py puts around them decide nothing."""

    def breach(path: Path) -> list[str]:
        values = [node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
        return [value for value in values if isinstance(value, str) and LUA.search(value)]

    assert_kept(PYTHON, breach)


# Files --------------------------------------------------------------------------------------------


CODE = [path for path in ours() if path.suffix in (".py", ".lua")]
DOCUMENTS = [path for path in ours() if path.suffix == ".md"]


def test_each_file_begins_with_a_docstring_or_comment_about_itself() -> None:
    """Its first line, and those after it, say which code lives there, and which must not."""

    def breach(path: Path) -> bool:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".lua":
            return not re.match(r"-- \w.{20,}", text)
        said = re.match(r'(#!/usr/bin/env python3\n)?"""((?!""").){21}', text, re.DOTALL)
        return not said and bool(text or path.is_relative_to(SOURCE))

    assert_kept(CODE, breach)


def test_a_file_that_is_named_exists() -> None:
    """The package names files of its own, and documents."""
    known = {each.name for each in ours()} | {"x.py", "x.lua"}  # any pair of twins
    known |= {
        name for path in DOCUMENTS for name in PROGRAM.findall(path.read_text(encoding="utf-8"))
    }
    of_package = {path.name for path in [*SOURCE.rglob("*.py"), *SCRIPTS, *DOCUMENTS]}

    def breach(path: Path) -> set[str]:
        named = {Path(name).name for name in FILE_NAME.findall(path.read_text(encoding="utf-8"))}
        return named - (known if path in DOCUMENTS else of_package)

    assert_kept([*PYTHON, *SCRIPTS, *DOCUMENTS], breach)


def test_modules_are_short() -> None:
    def breach(path: Path) -> int:
        length = len(path.read_text(encoding="utf-8").splitlines())
        return length if length >= LONGEST_MODULE else 0

    assert_kept(CODE, breach)


def test_a_test_that_signals_its_own_process_runs_in_one_of_its_own() -> None:
    """Each file with such a test marks it: @pytest.mark.signals."""

    def breach(path: Path) -> list[str]:
        text = path.read_text(encoding="utf-8")
        return [] if "pytest.mark.signals" in text else OWN_SIGNAL.findall(text)

    assert_kept(sorted((ROOT / "tests").rglob("test_*.py")), breach)


def test_functions_are_short() -> None:
    def breach(path: Path) -> dict[str, int]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: length for name, length in lengths(path, lines) if length >= LONGEST_FUNCTION}

    assert_kept(CODE, breach)


def lengths(path: Path, lines: list[str]) -> Iterator[tuple[str, int]]:
    """Each function, and how many lines it has."""
    if path.suffix == ".py":
        for node in definitions(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or 0) - node.lineno + 1
    else:
        starts = [
            number for number, line in enumerate(lines) if re.match(r"(local )?function ", line)
        ]
        for start in starts:
            ends = (
                number
                for number in range(start, len(lines))
                if re.match(r"end\b|.*\bend$", lines[number]) and lines[number][0] != " "
            )
            yield lines[start], next(ends) - start + 1


def test_no_file_names_a_machine_or_a_registry() -> None:
    """No absolute path of one machine, no package index, no host but those of links."""
    found: dict[str, Any] = {}
    for path in ours():
        if path.suffix == ".png":
            continue
        text = path.read_text(encoding="utf-8")
        hosts = {host for host in URL.findall(text) if host not in HOSTS}
        if ONE_MACHINE.search(text) or REGISTRY.search(text) or hosts:
            found[title(path)] = [*ONE_MACHINE.findall(text), *REGISTRY.findall(text), *hosts]
    assert found == {}


# The public names ---------------------------------------------------------------------------------


def test_the_public_names_are_those_of_the_package_itself() -> None:
    """All public names are in `__all__`, sorted, come from an import in __init__.py, and have a
    docstring. Those that are imported for type checkers can be used, too.
    """
    init = tree(PACKAGE / "__init__.py").body
    for_types = [each for node in init if for_types_only(node) for each in node.body]
    named = [
        alias.asname or alias.name
        for node in [*init, *for_types]
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    ]
    assert sorted(named) == sorted(headgate.__all__) == headgate.__all__
    submodules = {name.split(".")[1] for name in MODULES if "." in name}
    shown = {name for name in dir(headgate) if not name.startswith("_")} - {"TYPE_CHECKING"}
    assert shown - submodules == set(headgate.__all__)
    assert [name for name in headgate.__all__ if not getattr(headgate, name).__doc__] == []


@pytest.mark.parametrize("name", headgate.__all__)
def test_the_annotations_of_a_public_name_can_be_resolved(name: str) -> None:
    """So tools that read them at run time work, such as pydantic."""
    public = getattr(headgate, name)
    of_class = vars(public) if isinstance(public, type) else {}
    methods = [value for key, value in of_class.items() if key == "__init__" or key[0] != "_"]
    for each in (public, *methods):
        # Most limits have no anchor, so limits.py does not import datetime.
        if isinstance(each, (type, FunctionType)) and each is not headgate.Quota.__init__:
            get_type_hints(each)


def test_documents_name_all_public_names_and_import_no_others() -> None:
    """Every public name stands in a document. No document, example or demo imports from any deeper
    than headgate. The modules of HTTP clients, of frameworks, of telemetry and for tests are the
    exception: they are public as they are.
    """
    documents = [path for path in ours() if path.suffix == ".md"]
    users = [
        *documents,
        *(
            path
            for path in ours()
            if path.parts[len(ROOT.parts)] in ("examples", "demo") and path.suffix == ".py"
        ),
    ]
    text = "\n".join(path.read_text() for path in documents)
    assert [name for name in headgate.__all__ if not re.search(rf"\b{name}\b", text)] == []
    deeper = [
        title(path)
        for path in users
        if re.search(
            r"^\s*(from|import) headgate\.(?!http\.|frameworks\.|telemetry\b|testing\b|web\b)",
            path.read_text(),
            re.MULTILINE,
        )
    ]
    assert deeper == []


def test_every_public_method_has_a_docstring() -> None:
    """Every method and property of a public class that has no underscore before it."""
    silent = [
        f"{name}.{attribute}"
        for name in headgate.__all__
        if isinstance(kind := getattr(headgate, name), type)
        for attribute, value in vars(kind).items()
        if not attribute.startswith("_")
        and (callable(value) or isinstance(value, property))
        and not value.__doc__
    ]
    assert silent == []


WRITTEN = {
    **dict.fromkeys(CLIENTS, "docs/http.md"),
    **dict.fromkeys(
        FRAMEWORKS.keys() - {"frameworks/litellm.py"}, "docs/frameworks.md"
    ),  # that one: tests/frameworks
    **dict.fromkeys(EXPORTERS, "docs/telemetry.md"),
    "testing/__init__.py": "docs/testing.md",
    "web/__init__.py": "docs/web.md",
}


def test_documents_name_all_that_the_optional_modules_offer() -> None:
    """All names stand in `__all__`, have a docstring, down to the methods, and are found in their
    document.
    """

    def breach(path: Path) -> list[str]:
        offered = import_module(module(path))
        document = (ROOT / WRITTEN[path.relative_to(PACKAGE).as_posix()]).read_text()
        unwritten = [each for each in offered.__all__ if not re.search(rf"\b{each}\b", document)]
        unsorted = [] if sorted(offered.__all__) == offered.__all__ else ["__all__"]
        return [*unsorted, *unwritten, *silent(offered)]

    assert_kept([PACKAGE / name for name in sorted(WRITTEN)], breach)


def silent(offered: ModuleType) -> list[str]:
    """Return the names of a module without a docstring, down to the methods."""
    methods = [
        f"{each}.{attribute}"
        for each in offered.__all__
        if isinstance(kind := getattr(offered, each), type)
        for attribute, value in inspect.getmembers(kind)
        if attribute in vars(kind)
        and not attribute.startswith("_")
        and isinstance(value, property | FunctionType)
        if not value.__doc__
    ]
    return [*(each for each in offered.__all__ if not getattr(offered, each).__doc__), *methods]


# The shipped package ------------------------------------------------------------------------------


def test_the_core_depends_on_nothing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert any(need.startswith("redis") for need in project["optional-dependencies"]["redis"])
