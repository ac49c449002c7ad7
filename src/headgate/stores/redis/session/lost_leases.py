"""The log line of lost leases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.counts import note_loss
from headgate.keys import title
from headgate.log_writer import log
from headgate.permit import report_loss

if TYPE_CHECKING:
    from headgate.permit import Permit

MOST_SHOWN = 8  # fences in one line


def log_those_lost(name: str, permits: Sequence[Permit]) -> None:
    """Warn of those of `permits` that have lost the lease, once for each.

    A holder that goes on may work beside another one.
    """
    lost = [permit for permit in permits if report_loss(permit)]
    if not lost:
        return
    note_loss(name, [permit.fence for permit in lost])
    fences = ", ".join(str(permit.fence) for permit in lost[:MOST_SHOWN])
    more = f" and {len(lost) - MOST_SHOWN} more" if len(lost) > MOST_SHOWN else ""
    log(
        logging.WARNING,
        "%d held permit(s) of %s lost the lease (fence %s%s): "
        "it was not renewed in time, or the store has forgotten it. "
        "Another caller may hold the capacity now.",
        *(len(lost), title(name), fences, more),
        kind="lease_lost",
        name=name,
    )
