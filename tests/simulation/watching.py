"""How a fleet hears of what its clients do: methods of the product that tell the fleet before they
act, or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headgate.permit import Permit
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.session.traffic import Traffic

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet


def watched(fleet: Fleet) -> list[tuple[Any, str, Any]]:
    """The witness sees who gets a permit, who leaves one to another, and who gives up."""
    permit_of, found_of, give_up, hand_over = (
        RedisQueue._permit,
        RedisQueue.make_quick_permit,
        Traffic.give_up,
        LoopSession.hand_over,
    )
    begin, keys = Session.__init__, WeakKeyDictionary[Traffic, str]()

    def _begin(lane: Session, *args: Any) -> None:
        begin(lane, *args)
        keys[lane.traffic] = lane.key

    def _give_up(traffic: Traffic, pending: PendingAcquire) -> None:
        fleet.witness.gives_up(keys[traffic].encode(), (pending.session_id, pending.number))
        give_up(traffic, pending)

    def _hand_over(lane: LoopSession, permit: Permit) -> bool:
        heir = lane.machine.handoff.next_waiter(permit, lane.client.loop.time())
        handed = hand_over(lane, permit)
        if handed:
            fleet.handed(lane, permit, heir)
        return handed

    def _permit(line: RedisQueue, *args: Any) -> Permit:
        permit = permit_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    def _found(line: RedisQueue, *args: Any) -> Permit:
        permit = found_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    seen = [
        (Session, "__init__", _begin),
        (Traffic, "give_up", _give_up),
        (LoopSession, "hand_over", _hand_over),
    ]
    return [*seen, (RedisQueue, "_permit", _permit), (RedisQueue, "make_quick_permit", _found)]
