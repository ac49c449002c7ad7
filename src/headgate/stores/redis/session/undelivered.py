"""Operations that the server did not carry out: those to offer again, and the others' log lines."""

from __future__ import annotations

from logging import WARNING
from typing import TYPE_CHECKING

from headgate.keys import title
from headgate.logs import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.errors import StoreError
    from headgate.stores.redis.protocol.operations import Operation


def keep_owed(
    name: str,
    operations: Iterable[Operation],
    error: StoreError,
    now: float,
    *,
    refused: bool = False,
) -> list[Operation]:
    """Keep the operations to offer again: their server is away, or has `refused` them."""
    owed = []
    for operation in operations:
        if operation.owed_at(now) and (operation.repeatable or not refused):
            owed.append(operation)
        else:
            give_up(name, operation, error)
    return owed


def give_up(name: str, operation: Operation, error: StoreError) -> None:
    """Log an operation that is given up, if no caller waits for the answer."""
    if operation.asker is None and operation.logged:
        log(WARNING, "%s: the server did not hear of a %s: %s", title(name), operation.verb, error)
