"""Operations that the server did not carry out."""

from __future__ import annotations

from logging import WARNING
from typing import TYPE_CHECKING

from headgate.keys import title
from headgate.log_writer import log

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
    """Keep the operations to offer again, and log the others."""
    owed = []
    for operation in operations:
        if operation.owed_at(now) and (operation.repeatable or not refused):
            owed.append(operation)
        elif operation.asker is None and operation.logged:
            verb = operation.verb
            log(WARNING, "%s: the server did not hear of a %s: %s", title(name), verb, error)
    return owed
