"""The memory of blocks between their two ends."""

from __future__ import annotations

import pytest

from headgate import Concurrency, Limiter
from headgate.stores.context_stack import ContextStack


def test_the_end_of_a_block_that_had_not_begun_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="had not begun"):
        ContextStack().leave()


def test_the_end_of_a_watched_block_that_had_not_begun_is_an_error(
    name: str, redis_url: str
) -> None:
    limiter = Limiter(name, Concurrency(1), store=redis_url, on_lost="cancel")
    with pytest.raises(RuntimeError, match="had not begun"):
        limiter.__exit__(None, None, None)
