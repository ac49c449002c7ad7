"""The server's clock, moved: half a minute of a server passes by one word.

This module has a script that is headgate's own but for its clock. Only the calls of this process
see the later time. Another process that asked too would have its clock clamped (T6).
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
