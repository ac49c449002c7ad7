"""How the tools beside the rows begin and end: on a private server that always ends with them.

Each tool measures by itself; this module knows no library and no figure.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from benchmarks import machine, server
from benchmarks.table import say

NOTHING_MEASURED = 2


def on_private_server(work: Callable[[str], bool]) -> int:
    """The exit status: 0 when `work`, given a server's URL, reports success; 1 when it does not; 2
    when there is no server.
    """
    # A kill must not leave a redis-server behind: it becomes an exit, which every `finally` sees.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        with server.private_server() as url:
            say(machine.facts(server.server_version(url)))
            return 0 if work(url) else 1
    except server.ServerMissingError as error:
        say(str(error))
        return NOTHING_MEASURED
