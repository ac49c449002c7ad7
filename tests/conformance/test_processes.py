"""A process forks, ends or is ended while limiters are in use: fresh identities (F10), nothing lost, no word of complaint (F7)."""

from __future__ import annotations

import pytest

from headgate import Concurrency, Limiter, Rate
from tests.processes import finished
from tests.world import at_rest, waiting

WAYS_TO_END = ["returns", "fails", "stops", "exits", "threads"]


def place(store_kind: str, request: pytest.FixtureRequest) -> str:
    """How a program is told which store to use."""
    return "memory" if store_kind == "memory" else str(request.getfixturevalue("redis_url"))


def test_a_fork_in_memory_is_a_process_of_its_own(name: str) -> None:
    """F10: the child holds nothing of the parent's and still knows what the rates have counted; the parent notices nothing."""
    said = finished("fork", "memory", name).splitlines()

    assert said == [
        "in child [0, 2] [1, 3] True",
        "child leaves [0, 3]",
        "child 0",
        "parent [2, 2] [2, 2] True",
        "end [0, 2]",
    ]


def test_a_fork_on_redis_has_an_identity_of_its_own(name: str, redis_url: str) -> None:
    """F10, S4: the child cannot release the parent's permits, and what it takes beside them is its own."""
    said = finished("fork", redis_url, name).splitlines()

    assert said == [
        "in child [2, 2] [3, 3] True",
        "child leaves [2, 3]",
        "child 0",
        "parent [2, 2] [2, 3] True",
        "end [0, 3]",
    ]


def test_a_child_settles_by_a_connection_of_its_own(name: str, redis_url: str) -> None:
    """F10, T1: given a permit of the parent, when the child of a fork settles it, then the parent's next acquires are charged."""
    assert finished("fork_settle", redis_url, name).splitlines() == ["child 6", "parent 4"]


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_script_that_ends_while_others_wait_ends_in_silence(
    store_kind: str, name: str, how: str, request: pytest.FixtureRequest
) -> None:
    """F7: no "never retrieved", no "destroyed but it is pending", no warning; and on the server nobody waits any more."""
    where = place(store_kind, request)

    assert finished("ending", where, name, how) == ""  # it also looks at stderr

    if store_kind == "redis" and how != "threads":
        await at_rest(Limiter(f"{name}-held", Concurrency(1), store=where))
        await waiting(Limiter(f"{name}-queued", Rate(1, per=3600), store=where), 0)
