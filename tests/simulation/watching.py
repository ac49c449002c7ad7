"""The ways in which a fleet learns of its clients' actions: methods of the product that call the
fleet before they act, or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headgate.permit import Permit
from headgate.stores.redis.session import loop_session
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.session.traffic import Traffic
from headgate.stores.redis.threads import Threads

if TYPE_CHECKING:
    from headgate.gate.gate import Grant
    from tests.simulation.fleet import Fleet


def watched(fleet: Fleet) -> list[tuple[Any, str, Any]]:
    """The witness sees each caller that gets a permit, hands one over, or gives up."""
    issue, found_of, give_up, hand_over = (
        loop_session.issued,
        Threads.acquire_at_once,
        Traffic.give_up,
        LoopSession.hand_over,
    )
    begin, keys = Session.__init__, WeakKeyDictionary[Traffic, str]()

    def _begin(session: Session, key: str, *args: Any) -> None:
        begin(session, key, *args)
        keys[session.traffic] = key

    def _give_up(traffic: Traffic, pending: PendingAcquire) -> None:
        fleet.witness.gives_up(keys[traffic].encode(), (pending.caller.session_id, pending.number))
        give_up(traffic, pending)

    def _hand_over(session: LoopSession, permit: Permit) -> bool:
        next_waiter = session.machine.handoff.next_waiter(permit, session.client.loop.time())
        handed = hand_over(session, permit)
        if handed:
            fleet.handed(session, permit, next_waiter)
        return handed

    def _issue(
        session: LoopSession, pending: PendingAcquire, grant: Grant, waited: float
    ) -> Permit | None:
        permit, issuer = issue(session, pending, grant, waited), session.queue.issuer
        # A block whose limits hold nothing has no permit. The witness gets one for it.
        plain = Permit(issuer, pending.request.units, grant, waited, pending.caller, None, session)
        fleet.permitted(issuer, permit or plain)
        return permit

    def _found(threads: Threads, *args: Any) -> Permit | None:
        permit = found_of(threads, *args)
        if permit is not None:
            fleet.permitted(threads._queue.issuer, permit)
        return permit

    seen = [
        (Session, "__init__", _begin),
        (Traffic, "give_up", _give_up),
        (LoopSession, "hand_over", _hand_over),
    ]
    return [*seen, (loop_session, "issued", _issue), (Threads, "acquire_at_once", _found)]
