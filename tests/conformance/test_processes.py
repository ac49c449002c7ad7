"""A process forks, ends or is killed while limiters are in use: fresh identities (F10), no lost
permit, no complaint on stderr (F7).
"""

from __future__ import annotations

import pytest

from headgate import Concurrency, Limiter, Rate
from tests.processes import finished
from tests.world import at_rest, waiting

WAYS_TO_END = ["returns", "fails", "stops", "exits", "threads"]


def place(store_kind: str, request: pytest.FixtureRequest) -> str:
    """The argument that names a program's store."""
    return "memory" if store_kind == "memory" else str(request.getfixturevalue("redis_url"))


def test_the_child_of_a_fork_in_memory_has_limiters_of_its_own(name: str) -> None:
    """F10: the child holds no permit of the parent and still knows the counts of the rates. The
    parent notices nothing.
    """
    said = finished("fork", "memory", name).splitlines()

    assert said == [
        "in child [0, 2] [1, 3] True",
        "child leaves [0, 3]",
        "child 0",
        "parent [2, 2] [2, 2] True",
        "end [0, 2]",
    ]


def test_the_child_of_a_fork_on_redis_has_an_identity_of_its_own(name: str, redis_url: str) -> None:
    """F10, S4: the child cannot release the parent's permits, and its further permits are its
    own.
    """
    said = finished("fork", redis_url, name).splitlines()

    assert said == [
        "in child [2, 2] [3, 3] True",
        "child leaves [2, 3]",
        "child 0",
        "parent [2, 2] [2, 3] True",
        "end [0, 3]",
    ]


def test_a_child_charges_permits_of_its_parent_and_only_the_parent_gives_back(
    name: str, redis_url: str
) -> None:
    """F10, T1: given two permits of the parent, when the child of a fork settles one above and one
    below its cost, then it charges the first. Only the parent gives back tokens of the second.
    """
    assert finished("fork_settle", redis_url, name).splitlines() == ["child 8", "parent 12"]


def test_a_child_of_a_fork_inside_a_release_leaves_it_to_the_parent(
    name: str, redis_url: str
) -> None:
    """F10, S4: given a permit that the portal gives back, when a signal handler forks at any line
    of its release, then the child writes nothing to the parent's connection.
    """
    assert finished("fork_in_release", redis_url, name) == "steps\n"


def forked_while_it_waited(what: str) -> str:
    """The error in the child."""
    return (
        f"This process was forked while a call of limiter {what!r} waited. The call goes on in the "
        "parent, which keeps its place and gets the answer. In the child, call again, or end the "
        "child in the function that forks: os._exit(0)."
    )


@pytest.mark.parametrize(
    "how",
    [
        "block",
        "on_wait",
        *(
            pytest.param(how, marks=pytest.mark.proof)
            for how in ("permits", "granted", "open", "task")
        ),
    ],
)
def test_a_child_that_returns_into_a_waiting_acquire_gets_an_error_and_can_acquire_again(
    store_kind: str, name: str, how: str, request: pytest.FixtureRequest
) -> None:
    """F10, promise 10: the parent keeps its place and its permits, and the child releases none of
    them.
    """
    lines = finished("fork_in_wait", place(store_kind, request), name, how).splitlines()

    memory, granted = store_kind == "memory", how == "granted"
    assert lines == [
        f"child: {forked_while_it_waited(name)}",
        f"child sees {0 if memory else 2} used, {0 if memory or granted else 1} waiting",
        "child inside 2",
        "parent 0 0 used, 0 waiting",
    ]


def test_each_wait_that_a_fork_interrupts_ends_in_the_child(
    store_kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    """F10, promise 10: given a signal handler that waits inside a wait, when a second handler
    forks, then both waits end.
    """
    lines = finished("fork_in_wait", place(store_kind, request), name, "nested").splitlines()

    assert lines[:2] == [
        f"handler: {forked_while_it_waited(f'{name}-other')}",
        f"child: {forked_while_it_waited(name)}",
    ]
    assert lines[-2:] == ["child inside 2", "parent 0 0 used, 0 waiting"]


@pytest.mark.parametrize("method", ["status", "try_acquire", "flush"])
def test_a_child_that_returns_into_any_call_on_redis_gets_an_error_and_can_call_again(
    name: str, redis_url: str, method: str
) -> None:
    """F10, promise 10: the thread that would answer runs in the parent alone."""
    lines = finished("fork_in_call", redis_url, name, method).splitlines()

    assert lines == [f"child: {forked_while_it_waited(name)}", "parent 0 None"]


@pytest.mark.parametrize("moment", ["acquire", "first", "granted", "connect"])
def test_a_child_that_returns_into_an_acquire_without_a_wait_leaves_the_permit_to_the_parent(
    name: str, redis_url: str, moment: str
) -> None:
    """F10, S4: the child neither reads the parent's reply, nor cancels the parent's grant. No call
    has failed there.
    """
    lines = finished("fork_in_call", redis_url, name, moment).splitlines()

    waited = f"{name}-new" if moment == "first" else name
    assert lines == [
        f"child: {forked_while_it_waited(waited)}",
        "parent 0 True",
        "2",
    ]  # with the permit that the child acquired then


def test_a_child_of_a_fork_before_the_first_call_is_sent_makes_its_own(
    name: str, redis_url: str
) -> None:
    """F10, promise 10: given a thread that starts for the first call, when a signal handler forks,
    then both processes call.
    """
    assert finished("fork_in_call", redis_url, name, "start") == "parent 0 None\n"


@pytest.mark.parametrize("how", WAYS_TO_END)
async def test_a_script_that_ends_while_others_wait_ends_in_silence(
    store_kind: str, name: str, how: str, request: pytest.FixtureRequest
) -> None:
    """F7: no "never retrieved", no "destroyed but it is pending", no warning. On the server no
    caller waits any more.
    """
    where = place(store_kind, request)

    assert finished("ending", where, name, how) == ""  # it also looks at stderr

    if store_kind == "redis" and how != "threads":
        await at_rest(Limiter(f"{name}-held", Concurrency(1), store=where))
        await waiting(Limiter(f"{name}-queued", Rate(1, per=3600), store=where), 0)
