"""The acquires and events of this process, for metrics, logs and your own code.

    headgate.telemetry.opentelemetry    instrument(): metrics and spans for the OpenTelemetry SDK
    headgate.telemetry.prometheus       collector(): metrics for prometheus-client
    headgate.telemetry.add_hook         your function gets each event

Each event is one of the types below. Only `opentelemetry` and `prometheus` import other packages.
"""

from headgate.events import (
    AnyEvent,
    Event,
    Granted,
    Hook,
    LeaseLost,
    LimitsChanged,
    Paused,
    Refused,
    Released,
    ResponseActedOn,
    Resumed,
    StoreAway,
    StoreBack,
    StoreCalled,
)
from headgate.hooks import add_hook, remove_hook

__all__ = [
    "AnyEvent",
    "Event",
    "Granted",
    "Hook",
    "LeaseLost",
    "LimitsChanged",
    "Paused",
    "Refused",
    "Released",
    "ResponseActedOn",
    "Resumed",
    "StoreAway",
    "StoreBack",
    "StoreCalled",
    "add_hook",
    "remove_hook",
]
