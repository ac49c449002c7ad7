"""Children of multiprocessing: their releases and settlements have arrived when they have ended.

Python ends such a child without its atexit callbacks (before 3.14). Every process here is a real
one: see programs/children.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.machine import scaled
from tests.processes import finished

METHODS = ["fork", "forkserver", "spawn"]
WAYS = ["exits", "fails", "loop", "thread", "finalizer", "pool", "executor"]
SETTLED = 5000


def check(url: str, name: str, method: str, way: str, count: int) -> None:
    said = finished(
        "children", url, name, method, way, count, within=scaled(60 + 5 * count)
    ).splitlines()
    assert said == [f"0 {SETTLED * (child + 1)} True" for child in range(count)]


@pytest.mark.parametrize("method", METHODS)
def test_the_releases_and_settlements_of_a_child_have_arrived_when_it_has_ended(
    name: str, redis_url: str, method: str
) -> None:
    """L6, S7: each start method of multiprocessing."""
    check(redis_url, name, method, "returns", 2)


@pytest.mark.parametrize("way", WAYS)
def test_the_releases_of_a_child_have_arrived_however_it_ends(
    name: str, redis_url: str, way: str
) -> None:
    """L6, S7: the child ends by sys.exit, by an exception, with a stopped loop, with a thread that
    goes on, with a finalizer of its own, in a pool, in an executor.
    """
    check(redis_url, name, "fork", way, 2)


@pytest.mark.proof
@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("way", WAYS)
def test_the_releases_of_a_child_have_arrived_for_every_start_method_and_end(
    name: str, redis_url: str, method: str, way: str
) -> None:
    """L6, S7: the same of forkserver and spawn."""
    check(redis_url, name, method, way, 2)


@pytest.mark.proof("stress")
@pytest.mark.parametrize(("method", "count"), [("fork", 250), ("forkserver", 250), ("spawn", 30)])
def test_hundreds_of_children_lose_no_release(
    name: str, redis_url: str, method: str, count: int
) -> None:
    """L6, S7: given four names, each with children that run one after another, then each child
    finds the only permit free. A child of `spawn` imports everything again.
    """
    with ThreadPoolExecutor(4) as pool:
        checks = [
            pool.submit(check, redis_url, f"{name}-{part}", method, "returns", count)
            for part in range(4)
        ]
        for each in checks:
            each.result()
