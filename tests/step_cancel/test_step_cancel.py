"""STEP: every public coroutine, interrupted at its k-th suspension, for every k and in every way,
leaves nothing behind.

F1 to F6, F8: before and after the call was sent, while it waits, in the turn of its grant, while it
releases. The name of a failed test has the call, the store, the scene and the way of interrupting;
the error has the k.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import CodeType

import pytest
from redis import Redis

import headgate
from tests import loops
from tests.faults.scene import members_of
from tests.machine import scaled
from tests.servers import Server, dead_port
from tests.step_cancel.scenes import SCENES, Scene, Unlimited, scenes_of
from tests.step_cancel.test_clients import ran_in_clients
from tests.step_cancel.visits import UNLIMITED, VISITS, Visit
from tests.stepping import INTERRUPTIONS, Stepped
from tests.world import World

NEVER = -1
BEAT = scaled(0.004)  # seconds
CANCEL, PROOF = (
    "asked",
    pytest.mark.proof("interrupts at each step"),
)  # every run cancels; --all interrupts in each other way
SOURCE = Path(headgate.__file__).parent
AT_ONCE = {
    "asked",
    "thrown",
    "twice",
    "timed",
    "crossed",
    "met",
    "failed",
    "closed",
}  # ways that no other event can come before
# Modules whose coroutines run in tasks of headgate's own: no caller awaits them.
NOT_CALLERS = {
    f"stores/redis/{name}.py"
    for name in (
        "transport/portal",
        "transport/questions",
        "session/delivery",
        "transport/availability",
        "transport/client",
        "transport/endpoint",
        "transport/eviction_check",
        "transport/lifecycle",
        "transport/node",
        "transport/reconnection",
        "transport/sending",
        "transport/shutdown",
        "transport/subscriber",
        "transport/tasks",
        "transport/topology",
    )
}
# The command and the page call limiters, as a user's program does. Their own tests end them.
PROGRAMS = "cli/", "web/"
PROTOCOLS = {
    "interfaces.py": [
        "Queue.enter_waiting",
        "Queue.acquire",
        "Queue.atake",
        "Queue.astatus",
        "Queue.achange",
        "Queue.aflush",
        "Queue.learn",
        "Queue.check_in_use",
        "Lists.anames",
        "Lists.akeys",
        "Lists.alongest",
        *("Lists.amembers", "Lists.aoldest_waits"),
    ],
    "permit.py": ["Issuer.arelease"],
    "stores/redis/queue.py": ["Store.flush"],
    "stores/fallback.py": ["Askable.acquire", "Askable.atake", "Askable.astatus"],
}
OWN_TASKS = {  # that aflush starts with gather() or in other loops, or an exporter in the portal
    "stores/redis/store.py": ["flush_in", "flush_queues", "flush_elsewhere", "statuses_of"],
    # The last words of a loop, and estimates that processes share.
    "stores/redis/index.py": ["Refresher.finish"],
    "stores/redis/texts.py": [
        "RedisTexts._begin.<locals>.run",
        "RedisTexts.read_later.<locals>.read",
        "RedisTexts.write_later.<locals>.write",
    ],
}
PASSED_ON = {  # to the wrapped or whole queue, and they hold nothing while they wait
    "wrapping.py": ["OuterQueue.astatus", "OuterQueue.check_in_use"],
    "stores/memory/key_queue.py": [
        f"KeyQueue.{name}" for name in ("acquire", "atake", "achange", "astatus")
    ],
}
OPERATORS = {  # for the command and the page alone: they hold nothing
    "declaring.py": ["Attached.astatus_in_use"],
    "internals.py": ["status_in_use"],
    "listing.py": ["LastNames.read"],
    "stores/memory/listing.py": ["MemoryLists.amembers", "MemoryLists.aoldest_waits"],
    "stores/redis/listing.py": ["RedisLists.amembers", "RedisLists.aoldest_waits"],
    "stores/redis/members.py": ["read_oldest_waits", "read_labels"],
    "stores/redis/diagnosis.py": [
        *("diagnose", "findings_of", "name_findings", "dead_findings", "now_of"),
    ],
    "stores/redis/store.py": [
        *("RedisStore.astatuses", "RedisStore.diagnose", "RedisStore.forget"),
        "RedisStore.encoded_names",
    ],
    "stores/redis/transport/probes.py": ["probe"],
    "stores/redis/transport/single_call.py": ["run_function", "run_now", "run_script"],
}
TESTING = {  # for tests: they ask no limiter for anything
    "testing/clock.py": ["ManualClock.aadvance", "_give_turns"],
    "testing/virtual_loop.py": ["VirtualLoop.shutdown_default_executor"],
}
LITELLM = {  # it is not here: tests/frameworks/litellm_stories.py cancels its calls
    "frameworks/litellm.py": [
        *(
            "LiteLLMLimiter.async_pre_call_deployment_hook",
            "LiteLLMLimiter.async_post_call_success_deployment_hook",
        ),
        *(
            "LiteLLMLimiter.async_post_call_failure_deployment_hook",
            "LiteLLMLimiter.async_log_success_event",
        ),
        "LiteLLMLimiter.async_log_failure_event",
    ],
}
EXCUSED = (PROTOCOLS, OWN_TASKS, PASSED_ON, OPERATORS, TESTING, LITELLM)
NOT_DRIVEN = [
    f"{module}: {name}" for where in EXCUSED for module, names in where.items() for name in names
]
CASES = [
    pytest.param(
        store,
        visit,
        scene,
        way,
        id=f"{name}-{store}-{scene}-{way}",
        marks=() if way == CANCEL else PROOF,
    )
    for name, visit in VISITS.items()
    for store in visit.stores
    for scene in scenes_of(visit)
    for way in INTERRUPTIONS
    if visit.closes or way != "closed"
]


@pytest.fixture
def admin(redis_server: Server) -> Iterator[Redis]:
    with Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def step_world(store: str, name: str, request: pytest.FixtureRequest) -> World:
    """The world of the test, with a short beat: there are hundreds of cases."""
    return world_at(store, name, request)


def world_at(store: str, name: str, request: pytest.FixtureRequest) -> World:
    if store == "memory" and loops.virtual():
        return World(name)
    world = World(name, url_of(store, request), virtual=False)
    world.beat = BEAT
    return world


def url_of(store: str, request: pytest.FixtureRequest) -> str | None:
    if store == "memory":
        return None
    return (
        str(request.getfixturevalue("redis_url"))
        if store == "redis"
        else f"redis://127.0.0.1:{dead_port()}/0"
    )


@pytest.mark.parametrize(("store", "visit", "scene", "way"), CASES)
def test_a_call_that_is_interrupted_at_any_suspension_leaves_nothing_behind(
    step_world: World,
    store: str,
    visit: Visit,
    scene: str,
    way: str,
    request: pytest.FixtureRequest,
) -> None:
    """S1, S7, L4, L6, T5: capacity is whole, no caller waits, and only granted calls are charged.
    Callers behind it get their turn. F1, F2, F3, F5, F6.
    """
    names = at_each_suspension(SCENES[scene], step_world, visit, way)

    if store == "redis":
        admin = request.getfixturevalue("admin")
        assert [
            member for name in names for member in members_of(admin, name) if ":" in member
        ] == [], "who holds or waits is on the server"


@pytest.mark.parametrize("way", INTERRUPTIONS)
@pytest.mark.parametrize("visit", UNLIMITED.values(), ids=UNLIMITED)
def test_a_call_without_limits_that_is_interrupted_leaves_no_task_behind(
    name: str, visit: Visit, way: str
) -> None:
    """L4, L6: while the process looks for the store, and when the store is known to be away."""
    world = World(name, f"redis://127.0.0.1:{dead_port()}/0")
    at_each_suspension(Unlimited, world, visit, way)


def at_each_suspension(scene: type[Scene], world: World, visit: Visit, way: str) -> list[str]:
    """Interrupt one limiter after another, until there is no such suspension. The result has their
    names in the store.
    """
    names: list[str] = []
    while True:
        at = len(names)
        try:
            name, stepped = world.run(interrupted(scene, world, visit, way, at))
            assert not stepped.reached or way not in AT_ONCE or stepped.ended, (
                "F8: the interruption was swallowed"
            )
        except BaseException as error:
            error.add_note(f"interrupted at suspension {at}, in this way: {way}")
            raise
        names.append(name)
        if not stepped.reached:
            return names


async def interrupted(
    scene: type[Scene], world: World, visit: Visit, way: str, at: int
) -> tuple[str, Stepped]:
    played = scene(world, visit, f"{world.name}-{at}")
    stepped = await played.play(way, at)
    await played.assert_nothing_is_left(stepped)
    return played.line.name, stepped


# Completeness -------------------------------------------------------------------------------------


@pytest.mark.proof
def test_every_coroutine_of_headgate_is_driven(name: str, request: pytest.FixtureRequest) -> None:
    """A new `async def` that a caller may wait for has to be driven here."""
    ran, numbers = set[tuple[str, int]](), count()
    for store, visit, scene in {case.values[:3]: None for case in CASES}:
        ran |= ran_in(
            SCENES[scene], world_at(store, name, request), visit, f"{name}-{next(numbers)}"
        )
    for visit in UNLIMITED.values():
        ran |= ran_in(Unlimited, world_at("nowhere", name, request), visit, name)
    ran |= {(code.co_filename, code.co_firstlineno) for code in ran_in_clients(f"{name}-http")}

    missing = {place: what for place, what in coroutines().items() if place not in ran}
    assert sorted(missing.values()) == sorted(NOT_DRIVEN)


def ran_in(scene: type[Scene], world: World, visit: Visit, name: str) -> set[tuple[str, int]]:
    """The code that runs inside of a visit without an interruption."""
    stepped = world.run(scene(world, visit, name).play("asked", NEVER, looks=True))
    return {(code.co_filename, code.co_firstlineno) for code in stepped.ran}


def coroutines() -> dict[tuple[str, int], str]:
    """Every coroutine function and async generator of headgate that its callers wait for, by its
    place in the code.
    """
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = str(path.relative_to(SOURCE))
        if module not in NOT_CALLERS and not module.startswith(PROGRAMS):
            for code in codes_in(compile(path.read_text(), str(path), "exec")):
                if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
                    found[code.co_filename, code.co_firstlineno] = f"{module}: {code.co_qualname}"
    return found


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)
