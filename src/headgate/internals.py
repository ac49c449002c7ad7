"""The inside of limiters and permits, for headgate's own adapters.

`headgate.http`, `headgate.cli`, other adapters and the tests call these functions in place of
private attributes. A later release may change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from headgate.closing import CLOSINGS
from headgate.errors import CostExceedsCapacityError
from headgate.limits import Concurrency, Rate
from headgate.stores import registry
from headgate.threads import snapshot

if TYPE_CHECKING:
    from headgate.declaring import Attached
    from headgate.entrance import Entrance
    from headgate.interfaces import Queue, Store
    from headgate.limiter import Limiter
    from headgate.limits import Limit, Quota, Window
    from headgate.permit import Issuer, Permit
    from headgate.request import Request
    from headgate.stores.status import Status

Estimate: TypeAlias = "Callable[[Limiter], dict[str, Any]]"  # the units to ask a limiter for, now


@overload
def queue_of(owner: Permit) -> Issuer: ...
@overload
def queue_of(owner: Entrance) -> Queue: ...
@overload
def queue_of(owner: object) -> Any: ...
def queue_of(owner: Any) -> Any:
    """Return the queue behind a limiter, a classic, a permit or a wrapping queue."""
    return owner._queue


async def status_in_use(attached: Limiter) -> Status:
    """The status of an attached limiter for operators, also if only keys of it are in use."""
    return await cast("Attached", queue_of(attached)).astatus_in_use()


def store_of(owner: Any) -> Any:
    return owner._store


def state_of(limiter: Limiter) -> tuple[Store, str, str | None]:
    """Return a value that is equal for limiters that share one state, and for no others."""
    return registry.store_of(limiter._options["store"]), limiter.name, limiter.key


def limiters_in(store: Store) -> list[Limiter]:
    """Return all limiters of `store` that are in use, and their keys."""
    owners = [owner for closing in snapshot(CLOSINGS) for owner in closing.owners()]
    return [owner for owner in owners if store_of(owner) is store]


def restart_limiter(limiter: Limiter, limits: tuple[Limit, ...]) -> None:
    limiter._begin_again(limits)


def estimated(limiter: Limiter, estimate: Estimate, units: dict[str, Any]) -> Request:
    """The request of an acquire. While it waits, its cost follows the estimate.

    A queue calls `estimate` under its lock: it must be quick, and must not run the user's code.
    """
    request = limiter._request(1, None, None, units)
    if units:  # else it is the request that all acquires of the limiter share
        request.estimate = lambda: estimate(limiter)
    return request


async def acquire_estimated(limiter: Limiter, estimate: Estimate) -> Permit:
    """Acquire the units that `estimate` returns.

    An update can lower a capacity below the cost during the wait. Then try again with a new
    estimate, if it differs.
    """
    units = estimate(limiter)
    try:
        return await queue_of(limiter).acquire(estimated(limiter, estimate, units))
    except CostExceedsCapacityError:
        if estimate(limiter) == units:
            raise
    return await acquire_estimated(limiter, estimate)


def acquire_estimated_sync(limiter: Limiter, estimate: Estimate) -> Permit:
    units = estimate(limiter)
    try:
        return queue_of(limiter).acquire_sync(estimated(limiter, estimate, units))
    except CostExceedsCapacityError:
        if estimate(limiter) == units:
            raise
    return acquire_estimated_sync(limiter, estimate)


def settle_counted(permit: Permit, amounts: Mapping[str, int]) -> None:
    """Settle those of `amounts` that a rate, a window or a quota counts."""
    counted = queue_of(permit).declared.rated
    permit.settle(**{unit: amount for unit, amount in amounts.items() if unit in counted})


def settle_stated(permit: Permit, amounts: Mapping[str, int], heed_at_most: float) -> None:
    """Settle the `amounts` that a response states, by unit.

    A larger amount than the capacity of a limit leaves a debt of at most `heed_at_most` seconds.
    """
    bounded = dict(amounts)
    for limit in queue_of(permit).declared.limits:
        if limit.unit in bounded and not isinstance(limit, Concurrency):
            most = capacity_of(limit) + int(limit.amount * heed_at_most / limit.per)
            bounded[limit.unit] = min(bounded[limit.unit], most)
    settle_counted(permit, bounded)


def capacity_of(limit: Rate | Window | Quota) -> int:
    return limit.burst if isinstance(limit, Rate) else limit.amount


def refund(permit: Permit) -> None:
    """Settle the whole cost at 0, because no call was made."""
    settle_counted(permit, dict.fromkeys(("requests", *permit.units), 0))
