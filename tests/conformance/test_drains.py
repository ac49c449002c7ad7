"""drain(requests=...): the rest that a service reports holds for all callers of the name, in both
stores.
"""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Concurrency, Limiter, Quota, Rate, Window
from tests.world import HOUR, World, told, used

LIMITS = [Rate(10, per=1000 * HOUR), Window(10, per=HOUR), Quota(10, per=1000 * HOUR)]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
@told
async def test_the_next_callers_have_the_rest_that_a_drain_reports(
    world: World, limit: Any
) -> None:
    """T1: a higher number changes nothing."""
    limiter = world.limiter(limit, Rate(10, per=1000 * HOUR, unit="tokens"), Concurrency(5))
    async with limiter.acquire(tokens=4):
        pass

    limiter.drain(requests=3, tokens=8)
    assert used(await limiter.astatus())[:2] == [7, 4]
    limiter.drain(requests=9, tokens=0)
    assert used(await limiter.astatus())[:2] == [7, 10]

    permits = [await limiter.atry_acquire() for _ in range(4)]
    assert [bool(permit) for permit in permits] == [True, True, True, False]
    for permit in permits[:3]:
        permit.release()


@pytest.mark.parametrize(
    ("left", "error", "says"),
    [
        ({"requests": -1}, ValueError, "is left is from 0"),
        ({"requests": 1.5}, TypeError, "is left is an int"),
        ({"requests": True}, TypeError, "is left is an int"),
        ({"tokens": 1}, ValueError, "none of its limits counts 'tokens'"),
        ({"permits": 1}, ValueError, "drain a unit that a Rate, Window or Quota counts"),
    ],
)
def test_a_drain_to_an_impossible_rest_is_refused(
    name: str, store: object, left: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error comes before anything is sent."""
    limiter = Limiter(name, "10/hour", Concurrency(5), store=store)

    with pytest.raises(error, match=rf"drain\(.*{says}"):
        limiter.drain(**left)


class Tokens(int):
    """A number as a user's library may have it."""


@told
async def test_a_drain_accepts_a_number_of_a_class_of_the_user(world: World) -> None:
    """L6: neither this call nor that of another limiter in the same turn is lost."""
    limiter, other = (
        world.limiter(Window(10, per=HOUR), name=name) for name in ("drained", "beside it")
    )
    await limiter.acquire()
    await other.acquire()

    limiter.drain(requests=Tokens(3))
    await other.acquire()

    assert used(await limiter.astatus()) == [7]
