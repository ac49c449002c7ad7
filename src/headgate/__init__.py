"""headgate keeps a program's outgoing calls within the limits of a service, in one process or
across a fleet.
"""

from typing import TYPE_CHECKING

from headgate.errors import (
    CostExceedsCapacityError,
    HeadgateError,
    LeaseLostError,
    LimiterClosedError,
    MaxSleepExceededError,
    QueueFullError,
    RedisError,
    StoreError,
    UnknownLimiterError,
)
from headgate.limiter import Limiter
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.permit import Permit, Refusal
from headgate.stores.status import LimitStatus, QueueLength, Status
from headgate.waiting import Waiting

# Few programs need these names. The first use of one imports its module, so `import headgate` takes
# less time. Type checkers see them here.
if TYPE_CHECKING:
    from headgate.classics import RateLimiter, Semaphore, TokenBucket
    from headgate.limit_parser import parse_limit
    from headgate.listing import akeys_of, alongest_queues, anames, keys_of, longest_queues, names
else:
    _LATER = {
        "classics": ("RateLimiter", "Semaphore", "TokenBucket"),
        "limit_parser": ("parse_limit",),
        "listing": ("akeys_of", "alongest_queues", "anames", "keys_of", "longest_queues", "names"),
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module  # here, so that it is no name of this package

        for module, its_names in _LATER.items():
            if name in its_names:
                found = getattr(import_module(f"headgate.{module}"), name)
                globals()[name] = found  # the next use does not come here
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "Concurrency",
    "CostExceedsCapacityError",
    "HeadgateError",
    "LeaseLostError",
    "Limit",
    "LimitStatus",
    "Limiter",
    "LimiterClosedError",
    "MaxSleepExceededError",
    "Permit",
    "QueueFullError",
    "QueueLength",
    "Quota",
    "Rate",
    "RateLimiter",
    "RedisError",
    "Refusal",
    "Semaphore",
    "Status",
    "StoreError",
    "TokenBucket",
    "UnknownLimiterError",
    "Waiting",
    "Window",
    "akeys_of",
    "alongest_queues",
    "anames",
    "keys_of",
    "longest_queues",
    "names",
    "parse_limit",
]
