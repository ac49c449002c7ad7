"""The loop in which threads have their calls made (stores/redis/transport/portal.py): a test may
end it, and the next call makes another.

This module has that ending. As long as there is a loop, it offers undelivered operations to a
server that has ended. An hour later another server may have its port.
"""

from __future__ import annotations

import asyncio
import os
from unittest.mock import patch

from headgate.stores.redis.transport import lifecycle, portal

DRAIN_TIMEOUT = 0.1  # seconds: many tests have ended their servers


def end_portal() -> None:
    """Calls in flight arrive, if they can; then nothing is left of the loop, of its thread and of
    its connections.
    """
    found = portal._portals.pop(os.getpid(), None)
    if found is None:
        return
    with patch.object(lifecycle, "DRAIN_TIMEOUT", DRAIN_TIMEOUT):
        found.close()
    found.tell(found.loop.stop)
    with found._running:  # until then the thread runs
        portal._threads.discard(found.thread)
    found._close_pipe()
    left = asyncio.all_tasks(found.loop)
    for task in left:
        task.cancel()
    found.loop.run_until_complete(asyncio.wait(left) if left else asyncio.sleep(0))
    found.loop.run_until_complete(found.loop.shutdown_default_executor())
    found.loop.close()
