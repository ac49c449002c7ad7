"""headgate keeps a program's outgoing calls within the limits of a service, in one process or
across a fleet.
"""

from headgate.classics import RateLimiter, Semaphore, TokenBucket
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
from headgate.limit_parser import parse_limit
from headgate.limiter import Limiter
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.listing import akeys_of, alongest_queues, anames, keys_of, longest_queues, names
from headgate.permit import Permit, Refusal
from headgate.stores.status import LimitStatus, QueueLength, Status
from headgate.waiting import Waiting

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
