"""How a fleet hears of what its clients do: methods of the product that tell the fleet before they act, or after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.permit import Permit
from headgate.stores.redis.protocol.messages import Ticket
from headgate.stores.redis.queue import RedisLine
from headgate.stores.redis.session.local_handoff import Succession
from headgate.stores.redis.session.session import Lane

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet


def watched(fleet: Fleet) -> list[tuple[Any, str, Any]]:
    """The witness sees who gets a permit, who leaves one to another, and who gives up."""
    permit_of, found_of, give_up, hand_over = (
        RedisLine._permit,
        RedisLine.found,
        Lane._give_up,
        Succession.hand_over,
    )

    def _give_up(lane: Lane, ticket: Ticket) -> None:
        fleet.witness.gives_up(lane.key.encode(), (ticket.session, ticket.number))
        give_up(lane, ticket)

    def _hand_over(succession: Succession, permit: Permit) -> bool:
        heir = succession.heir(permit)
        handed = hand_over(succession, permit)
        if handed:
            fleet.handed(succession._lane, permit, heir)
        return handed

    def _permit(line: RedisLine, *args: Any) -> Permit:
        permit = permit_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    def _found(line: RedisLine, *args: Any) -> Permit:
        permit = found_of(line, *args)
        fleet.permitted(line, permit)
        return permit

    seen = [(Lane, "_give_up", _give_up), (Succession, "hand_over", _hand_over)]
    return [*seen, (RedisLine, "_permit", _permit), (RedisLine, "found", _found)]
