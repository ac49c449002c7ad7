"""The memory of blocks between their two ends."""

from __future__ import annotations

import pytest

from headgate.stores.context_stack import Inside


def test_the_end_of_a_block_that_had_not_begun_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="had not begun"):
        Inside().leave()
