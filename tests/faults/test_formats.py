"""A state that another version of headgate has written: an older one is worth nothing, a newer one is left alone."""

from __future__ import annotations

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, StoreError
from tests.faults.scene import visit
from tests.world import soon

OLD, OLDEST, NEWER = b"\x01 and numbers", b"\x8e, as MessagePack began", "\x7f and whatever"


@pytest.mark.parametrize("state", [OLD, OLDEST])
async def test_an_older_state_is_begun_afresh(name: str, redis_url: str, admin: Redis, state: bytes) -> None:
    """F47: given a state of an older format, when somebody enters, then nothing is held, and the next one finds a state of ours."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    await soon(visit(limiter))
    admin.hset(f"headgate:{{{name}}}", "state", state)

    for _ in range(2):
        await soon(visit(limiter))

    assert (await limiter.astatus()).limits[0].capacity == 1


async def test_a_newer_state_is_left_alone(name: str, redis_url: str, admin: Redis) -> None:
    """F47: given a state of a newer format, when somebody asks, then the error says what to do, and the state is as it was."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    await soon(visit(limiter))
    admin.hset(f"headgate:{{{name}}}", "state", NEWER)

    with pytest.raises(StoreError, match="update this one, too"):
        await soon(limiter.acquire())

    assert admin.hget(f"headgate:{{{name}}}", "state") == NEWER
