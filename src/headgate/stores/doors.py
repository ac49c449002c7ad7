"""The hot path of the memory store: what `async with` and `with` cost when nothing stands in the way.

Here live two ways to enter that skip all that an uncontended entry does not need: built once for each line, with everything they
touch at hand. They only ever say yes where the gate would; false means: ask properly.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from headgate.gate.gate import Gate

Door = Callable[[], bool]


def shut() -> bool:
    """The door of a line that has to be looked at first."""
    return False


def timed_door(gate: Gate, lock: Lock, now: Callable[[], int]) -> Door:
    """For limits that count over time: one decision under the lock."""
    admit = gate.single[0][0].admit if len(gate.single) == 1 else gate.admit
    acquire, release = lock.acquire, lock.release  # not `with`, which costs twice as much (benchmarks, rate-async)

    def enter() -> bool:
        acquire()
        try:
            t = now()
            if gate.queue or t < gate.t or not admit(t):
                return False
            gate.t = t
            return True
        finally:
            release()

    return enter


def pooled_door(gate: Gate, pool: list[None], otherwise: Door) -> Door:
    """For concurrency alone: take a permit that somebody left in the pool, where it still counts as held. `pop` is atomic."""
    pop = pool.pop

    def enter() -> bool:
        if gate.queue:
            return False
        if not pool:
            return otherwise()
        try:
            pop()
        except IndexError:  # another thread was faster
            return False
        return True

    return enter
