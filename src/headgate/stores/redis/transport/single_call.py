"""One call of a script, on a connection of its own and beside the calls of sessions.

It suits a script that an operator runs now and then, and that may run twice: a call whose reply is
lost is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, ResponseError

from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.transport.endpoint import is_unknown
from headgate.stores.redis.transport.failures import NotThereError
from headgate.stores.redis.transport.questions import persistently

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.stores.redis.protocol.script import Script
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology


async def run_script(topology: Topology, call: str, script: Script, keys: Sequence[str]) -> Any:
    """The reply. `call`: the user's call, for an error.

    Raises StoreError when the server refuses the script or cannot be asked.
    """
    return await persistently(topology, call, lambda: run_now(topology, script, keys))


async def run_now(topology: Topology, script: Script, keys: Sequence[str]) -> Any:
    server = topology.where(keys[0])
    if server is None:
        raise NotThereError("no server has this name's slot")
    words = str(len(keys)), *keys
    try:
        return await run_function(server, script.function, words)
    except NoPermissionError:
        pass  # this user may run scripts only
    except ResponseError as refusal:
        if not (is_unknown("FCALL", str(refusal)) or is_unknown("FUNCTION", str(refusal))):
            raise
    return await server.asked("EVAL", script.text.decode(), *words)


async def run_function(server: Endpoint, function: str, words: Sequence[str]) -> Any:
    try:
        return await server.asked("FCALL", function, *words)
    except ResponseError as refusal:
        if "Function not found" not in str(refusal):
            raise
    await server.asked("FUNCTION", "LOAD", "REPLACE", library().text.decode())
    return await server.asked("FCALL", function, *words)
