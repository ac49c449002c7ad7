"""The lock of a line: nobody waits for it who only brings something back.

Here lives the way out of two dead ends. The collector may run in the middle of the line's own locked code and close a generator or
a coroutine that holds a permit there: it is given back in the very thread that has the lock. And what a finalizer brings while
another thread has the lock must not lie there until somebody comes by. So what is brought is laid down, and whoever has the lock
does it before he leaves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Lock:
    """Held in a `with` block; or brought something to be done under it."""

    __slots__ = ("acquire", "brought", "release")

    def __init__(self, lock: threading.Lock) -> None:
        self.acquire, self.release = lock.acquire, lock.release
        self.brought: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self.acquire()
        while self.brought:
            self.brought.popleft()()

    def __exit__(self, *outcome: object) -> None:
        self.release()
        if self.brought:
            self.see_to_it()

    def bring(self, act: Callable[[], None]) -> None:
        """Have `act` done under the lock: now, or by whoever has it. Never blocks."""
        if not self.acquire(False):
            self.brought.append(act)
            self.see_to_it()  # the lock may be free again
            return
        try:
            act()
        finally:
            self.release()
        if self.brought:
            self.see_to_it()

    def see_to_it(self) -> None:
        while self.brought and self.acquire(False):
            try:
                while self.brought:
                    self.brought.popleft()()
            finally:
                self.release()
