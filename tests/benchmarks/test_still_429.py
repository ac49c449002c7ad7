"""Each cause of a 429 in spite of a limiter is refused more often with its fault than without."""

from __future__ import annotations

import pytest

from benchmarks.still_429 import CAUSES, measured


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
@pytest.mark.proof("stages causes of refusals in real time")
async def test_a_fault_is_refused_more_often_than_its_remedy(cause: object) -> None:
    (found,) = [each async for each in measured([cause])]  # type: ignore[list-item]

    _, fault, remedy = found
    assert fault > remedy
