"""Virtual time for headgate and its peers: both see the same moments, and no test waits.

The peers read the time in three ways. One is asyncio's loop, another the functions of the module
`time`, and the third the names that PyrateLimiter imports from it. Give aiolimiter a rate that a
float holds exactly, such as 3 per 3 s. Otherwise it waits for a rest of 1e-15 s, which this clock
cannot show.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from headgate.testing import ManualClock
from tests.peers import missing

# The head of a run names the missing peers.
collect_ignore = [f"test_{peer.replace('-', '_')}.py" for peer in missing()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    """The time of this test: it moves when a caller sleeps or waits for its turn."""
    import pyrate_limiter.abstracts.bucket
    import pyrate_limiter.clocks
    import pyrate_limiter.limiter
    import throttled.throttled

    with ManualClock(skips=True) as clock:
        readings = {
            "time": lambda: clock.now() / 1_000_000,
            "time_ns": lambda: clock.now() * 1_000,
            "monotonic": clock.elapsed,
            "monotonic_ns": lambda: (clock.now() - clock.start) * 1_000,
            "sleep": clock.advance,
        }
        for module, names in (
            (time, readings),
            (pyrate_limiter.limiter, ("monotonic", "sleep")),
            (pyrate_limiter.clocks, ("monotonic_ns", "time_ns")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, readings[name])
        # Its thread only frees memory, and would run on after the test.
        monkeypatch.setattr(pyrate_limiter.abstracts.bucket.Leaker, "start", lambda leaker: None)
        fresh = throttled.MemoryStore()
        monkeypatch.setattr(throttled.throttled.BaseThrottled, "_DEFAULT_GLOBAL_STORE", fresh)
        monkeypatch.setattr(asyncio, "run", clock.run)
        yield clock
