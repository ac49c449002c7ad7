"""The state of a name that goes back while a fleet runs, and the check that none of it stays held.

The state goes back as after a RESTORE of an older DUMP, or at a new primary that lacks the last
writes. Then all connections break.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.loop import SECOND
from tests.simulation.plan import Fault

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

Held = tuple[str, int]  # a caller and the end of its lease
HEARTBEAT = 3 * SECOND  # after that, a session that misses a notification asks by itself


def keys_of(index: int) -> tuple[bytes, list[bytes]]:
    """The main key of a name, and all of its keys."""
    key = f"headgate:{{name-{index}}}".encode()
    return key, [key, key + b":who"]


class Restores:
    """Of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._copies: dict[Fault, tuple[bytes, Any]] = {}

    def take_copy(self, fault: Fault) -> None:
        fleet, (key, keys) = self._fleet, keys_of(fault.who)
        self._copies[fault] = fleet.server.look().copy_of(keys), fleet.witness.copy().get(key)
        fleet.recorder.copied(fault)

    def restore(self, fault: Fault, was_calm: bool) -> None:
        """`was_calm`: no earlier fault is under way. Then it must be over soon."""
        fleet, (key, keys) = self._fleet, keys_of(fault.who)
        copy, known = self._copies[fault]
        fleet.recorder.restored(fault, key.decode())
        fleet.server.look().put_back(keys, copy)
        fleet.witness.went_back(key, known)
        for cable in list(fleet.network.cables):
            cable.cut()
        if was_calm:
            look = partial(self._look, key, len(fleet.befallen), frozenset())
            fleet.world.after(fleet.slow(), look)

    def _look(self, key: bytes, befallen: int, before: frozenset[Held]) -> None:
        """L5, F56: the sessions know by now, so no process that lives has holders without
        callers.
        """
        fleet = self._fleet
        if len(fleet.befallen) > befallen:
            return  # another fault has happened since
        links = fleet.living_links()
        held = frozenset(
            each for each in fleet.witness.unclaimed(key) if each[0].partition(".")[0] in links
        )
        if left := held & before:
            fleet.witness.blame(
                "L5", f"{sorted(left)} are held of {key!r}, and their callers hold nothing"
            )
        elif held and not before:  # a grant may be on its way to its caller
            heard = fleet.slow() + (HEARTBEAT if fleet.plan.deaf else 0)
            fleet.world.after(heard, partial(self._look, key, befallen, held))
