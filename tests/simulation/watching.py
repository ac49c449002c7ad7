"""How a fleet hears of what its clients do: methods of the product that tell the fleet before they
act, or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.permit import Permit
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.local_handoff import LocalHandoff
from headgate.stores.redis.session.session import Session

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet


def watched(fleet: Fleet) -> list[tuple[Any, str, Any]]:
    """The witness sees who gets a permit, who leaves one to another, and who gives up."""
    permit_of, found_of, give_up, hand_over = (
        RedisQueue._permit,
        RedisQueue.make_quick_permit,
        Session._give_up,
        LocalHandoff.hand_over,
    )

    def _give_up(lane: Session, pending: PendingAcquire) -> None:
        fleet.witness.gives_up(lane.key.encode(), (pending.session_id, pending.number))
        give_up(lane, pending)

    def _hand_over(succession: LocalHandoff, permit: Permit) -> bool:
        heir = succession.next_waiter(permit)
        handed = hand_over(succession, permit)
        if handed:
            fleet.handed(succession._session, permit, heir)
        return handed

    def _permit(line: RedisQueue, *args: Any) -> Permit:
        permit = permit_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    def _found(line: RedisQueue, *args: Any) -> Permit:
        permit = found_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    seen = [(Session, "_give_up", _give_up), (LocalHandoff, "hand_over", _hand_over)]
    return [*seen, (RedisQueue, "_permit", _permit), (RedisQueue, "make_quick_permit", _found)]
