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
    name: str, operations: Iterable[Operation], error: StoreError, now: float
) -> list[Operation]:
    """Of operations whose server is away, keep those to offer again."""
    owed = []
    for operation in operations:
        if operation.owed_at(now):
            owed.append(operation)
        else:
            give_up(name, operation, error)
    return owed


def give_up(name: str, operation: Operation, error: StoreError) -> None:
    """Log an operation that is given up, if no caller waits for the answer."""
    if operation.asker is None and operation.logged:
        log(WARNING, "%s: the server did not hear of a %s: %s", title(name), operation.verb, error)


def keep_refused(
    name: str, operations: Iterable[Operation], error: StoreError, now: float
) -> list[Operation]:
    """Of operations that the server has refused, keep those to offer again."""
    again = []
    for operation in operations:
        if not operation.repeatable:
            give_up(name, operation, error)
        elif operation.owed_at(now):
            again.append(operation)
    return again
