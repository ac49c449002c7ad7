"""The fixtures of all tests: a real server, a name of their own, and each of the two stores."""

from __future__ import annotations

import gc
import os
import re
import secrets
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from types import FrameType

# It looks at the collector's objects when it is imported, which must not be frozen by then.
import hypothesis
import pytest
import redis.utils

from headgate import log_writer
from headgate.stores import registry
from headgate.stores.memory.store import MemoryStore
from headgate.stores.redis import fast_path, threads
from headgate.stores.redis.session import deadlines
from tests import loops, peers
from tests.alone import set_apart
from tests.machine import Stalls, scaled, scaled_now
from tests.places import PLACES, SERVERS, Place, missing
from tests.portals import end_portal
from tests.proofs import Proofs, kind_of
from tests.servers import Server, ServerMissing
from tests.world import World

# For each connection redis-py reads its own version from a file, which takes half a millisecond.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)

HERE = "redis"
FOR_EVER = round(scaled(60))  # seconds after which a test that still waits will wait for ever
ADDRESS = re.compile(r"\b0x[0-9a-f]{8,}|\bid='\d{6,}'")
PROOF_FOR_EVER = round(scaled(600))  # the same for a proof


# A machine that stands still for a moment makes no example slow: FOR_EVER is the limit of a whole
# test.
for profile, examples in {"short": 25, "thorough": 250}.items():
    hypothesis.settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("short")  # .ci/run names the other one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--place",
        choices=sorted(PLACES),
        default=HERE,
        help="where the tests that need Redis run, and no others",
    )
    parser.addoption(
        "--loop",
        choices=sorted(loops.LOOPS),
        default=loops.OWN,
        help="the event loop that the stories are told on",
    )
    parser.addoption("--all", action="store_true", help="run the proofs, too: see tests/proofs.py")


def pytest_configure(config: pytest.Config) -> None:
    try:
        loops.tell_on(config.getoption("loop"))
    except loops.LoopMissing as lacking:
        raise pytest.UsageError(f"--loop {config.getoption('loop')}: {lacking}") from None
    config.pluginmanager.register(Proofs(config))
    # A shell starts its background jobs so that they ignore the first two, and nohup the third. The
    # programs of the tests would ignore them, too.
    signals = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    for number, handler in signals.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_report_header() -> list[str]:
    absent = {**missing(), **peers.missing()}
    return [f"not here: {name}: {reason}" for name, reason in absent.items()]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Set aside the objects that the collection makes: a garbage collection in a test would visit
    all tests and clients each time.
    """
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """At another place run the tests for that place, and no others."""
    unstable = [item.nodeid for item in items if ADDRESS.search(item.nodeid)]
    if unstable:
        raise pytest.UsageError(
            "these ids differ from run to run: give each parameter an id of its own: "
            + ", ".join(unstable)
        )
    place = config.getoption("place")
    if place != HERE:
        told = [
            item
            for item in items
            if _needs_redis(item) and (place in SERVERS or not _needs_one_server(item))
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in told])
        items[:] = told
    set_apart(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: many tests wait for moments of real time, so two processes keep one core busy."""
    return 2 * (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )


def _needs_redis(item: pytest.Item) -> bool:
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    return (
        params.get("store_kind") == "redis"
        or "redis_url" in _fixtures(item)
        or _needs_one_server(item)
    )


def _needs_one_server(item: pytest.Item) -> bool:
    return not {"redis_server", "own_server"}.isdisjoint(_fixtures(item))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else ()


def _started(place: Place) -> None:
    try:
        place.start()
    except ServerMissing as lacking:
        pytest.fail(str(lacking), pytrace=False)


@pytest.fixture(scope="session")
def redis_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The server that all tests share, each under names of its own. No test stops or pauses this
    one.
    """
    place = PLACES[request.config.getoption("place")]()
    _started(place)
    yield place
    place.stop()


@pytest.fixture
def redis_server(redis_place: Place) -> Server:
    """The same, where it is one server."""
    assert isinstance(redis_place, Server), "this test needs one server; run it without --place"
    return redis_place


@pytest.fixture
def redis_url(redis_place: Place) -> str:
    """Where it is, for the user of docs/redis.md: that suffices for all that headgate does."""
    return redis_place.user_url


@pytest.fixture
def admin_url(redis_server: Server) -> str:
    """The same server, for a test that has to look into it or to change it."""
    return redis_server.url


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A second server, for one test alone: to be paused, killed and started again."""
    server = SERVERS.get(request.config.getoption("place"), Server)()
    _started(server)
    yield server
    server.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, nor an earlier run of this one."""
    return f"{request.node.originalname[:80]}-{secrets.token_hex(6)}"


@pytest.fixture(params=["memory", "redis"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """The test runs once for each store."""
    return str(request.param)


@pytest.fixture
def store(store_kind: str, request: pytest.FixtureRequest) -> MemoryStore | str:
    """A store to hand to a limiter: a fresh one in this process, or the server's URL."""
    return MemoryStore() if store_kind == "memory" else str(request.getfixturevalue("redis_url"))


@pytest.fixture
def slow_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of a busy machine may stand still for half a second. Callers with a `max_sleep` wait
    for it.
    """
    for module in (deadlines, fast_path, threads):
        monkeypatch.setattr(module, "SILENCE", scaled_now(5.0))


@pytest.fixture
def world(store_kind: str, name: str, request: pytest.FixtureRequest) -> World:
    """A store and its time: memory in virtual time, or Redis in real milliseconds."""
    if store_kind == "memory":
        return World(name, None, virtual=_virtual(request))
    request.getfixturevalue("slow_replies")
    return World(name, request.getfixturevalue("redis_url"), virtual=_virtual(request))


@pytest.fixture
def slack() -> Callable[[], float]:
    """By how many seconds this test may be late where a time is promised."""
    return Stalls().slack


@pytest.fixture
def memory(name: str, request: pytest.FixtureRequest) -> World:
    """Memory alone."""
    return World(name, virtual=_virtual(request))


def _virtual(request: pytest.FixtureRequest) -> bool:
    """Whether a test in memory takes no real time: asyncio's own loop has a virtual twin, others
    have none.
    """
    return loops.virtual() or request.node.get_closest_marker("exact") is not None


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """A thread writes headgate's log lines: each look at the log waits for those that are
    queued.
    """
    handler = caplog.handler

    def after_flush(_: pytest.LogCaptureFixture) -> object:
        assert log_writer.flush()
        return handler

    assert log_writer.flush()
    caplog.clear()
    monkeypatch.setattr(pytest.LogCaptureFixture, "handler", property(after_flush))
    return caplog


@pytest.fixture(autouse=True, scope="module")
def _tidiness() -> Iterator[None]:
    """Objects that a module has dropped complain in that module, and not wherever Python happens to
    collect them; its threads are over. A later module counts and reads no names of its stores.
    """
    yield
    end_portal()
    registry.by_url.clear()
    registry.MEMORY = MemoryStore()
    gc.collect()


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that hangs fails, and says where it hung."""
    for_ever = PROOF_FOR_EVER if kind_of(request.node) else FOR_EVER

    def give_up(number: int, frame: FrameType | None) -> None:
        raise SystemExit(
            f"the test still waits after {for_ever} seconds"
        )  # an event loop would swallow any other error

    former = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(for_ever)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)
