"""The server's clock, moved: what would take a server half a minute is told to it in a word.

Here lives a script that is headgate's own but for its clock. Only what this process asks is told
the later time; another process that asked too would have its clock clamped (T6).
"""

from __future__ import annotations

import pytest

from headgate.stores.redis.protocol import script


class ServerClock:
    """The time that the server's scripts see when this process calls them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._ahead = 0

    def forward(self, seconds: float) -> None:
        """From the next call on it is so much later."""
        self._ahead += round(seconds * 1_000_000)
        moved = f"local real = clock\nlocal function clock()\n  return real() + {self._ahead}\nend"
        sources = script.sources()
        later = script.Library({**sources, "clock": f"{sources['clock']}\n{moved}"})
        for form, its in vars(later).items():
            self._patch.setattr(script.library(), form, its)
