"""The history of a fleet on a real server: the server itself records the calls that it runs, and a
proxy the events that its clients see.

The Lua is the real one. A few lines around each of its calls append the call, the time that it read
and its answer to a list. So the order is that of execution, and the length of the list numbers the
commits. Each process of the fleet must `install` it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from hiredis import Reader
from redis import Redis

from headgate.stores.redis.protocol import script
from tests.faults.proxy import Connection, Proxy, Way
from tests.history.events import Commit, History, Invoked, Op, Returned

LIST, NOW, UNHEARD = "headgate:history", "headgate:history-now", "headgate:history-unheard"
CLOCK = f"""
local function clock()
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  redis.call('SET', '{NOW}', string.format('%.0f', now))
  return now
end
"""
AROUND = f"""
local programs, run

local function call(name)
  return function(its_keys, its_args)
    if not programs then
      programs = make_programs()
      run = redis.call('TIME')[1]
    end
    local words = {{ unpack(its_args) }}
    redis.call('DEL', '{NOW}', '{UNHEARD}')
    local reply = programs[name](its_keys, its_args)
    if reply then
      local now, unheard = redis.call('GET', '{NOW}'), redis.call('LRANGE', '{UNHEARD}', 0, -1)
      local event = {{ now, its_keys[1], words, reply, table.concat(unheard, ' '), run }}
      redis.call('RPUSH', '{LIST}', cjson.encode(event))
    end
    return reply
  end
end
"""


NOTIFIES = "  return redis.pcall('PUBLISH', 'headgate:' .. client, text)\n"
NOTED = f"""
  local received = redis.pcall('PUBLISH', 'headgate:' .. client, text)
  if received == 0 then redis.call('RPUSH', '{UNHEARD}', client) end
  return received
"""


def install(change: Callable[[Any, str, Any], object] = setattr) -> None:
    """From now on this process calls the Lua that keeps a history."""
    sources = script.sources()
    _, registers, names = sources["library"].partition("redis.register_function")
    assert NOTIFIES in sources["outbox"], "the Lua has changed: say here how it notifies now"
    outbox = sources["outbox"].replace(NOTIFIES, NOTED)
    recording = script.Library(
        {**sources, "clock": CLOCK, "outbox": outbox, "library": AROUND + registers + names}
    )
    for form, its in vars(recording).items():
        change(script.library(), form, its)


def commits(server: Redis) -> History:
    """The calls that the server has run so far.

    A call that was answered from memory has read no clock: it has the time of the one before.
    """
    history: History = []
    t = 0
    for seq, line in enumerate(server.lrange(LIST, 0, -1), 1):
        now, key, words, reply, unheard, run = json.loads(line)
        t = int(now or t)
        history.append(Commit(seq, t, key, tuple(words), reply, tuple(unheard.split()), int(run)))
    return history


class Witness(Proxy):
    """A proxy that records its traffic: a call when it comes, an answer when the client has
    got it.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.history: History = []
        self._asked: dict[Connection, deque[Op | None]] = {}

    async def __aenter__(self) -> Witness:
        await super().__aenter__()
        return self

    @property
    def admin_url(self) -> str:
        """For the server's administrator: the documented user may not keep a history."""
        return f"redis://{self.url.rpartition('@')[2]}"

    async def _pump(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Callable[[bytes], Way],
    ) -> None:
        parser, forth, asked = (
            Reader(),
            way == connection.way_out,
            self._asked.setdefault(connection, deque()),
        )
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 20):
                if forth:
                    self._called(parser, piece, asked)
                if not await way(piece).carry(piece, writer) or writer.transport.is_closing():
                    break
                if not forth and not connection.listens:
                    self._answered(parser, piece, asked)
        connection.reset()
        self.connections.discard(connection)

    def _called(self, parser: Reader, piece: bytes, asked: deque[Op | None]) -> None:
        parser.feed(piece)
        while (words := parser.gets()) is not False:
            op = op_of(words)
            asked.append(op)
            if op is not None:
                self.history.append(Invoked(op))

    def _answered(self, parser: Reader, piece: bytes, asked: deque[Op | None]) -> None:
        parser.feed(piece)
        while (reply := parser.gets()) is not False:
            op = asked.popleft()
            if op is not None and isinstance(reply, bytes):
                self.history.append(Returned(op, reply.decode()))


def op_of(words: list[bytes]) -> Op | None:
    if words[0] != b"FCALL":
        return None
    first = 3 + int(words[2])
    return words[3].decode(), words[first + 1].decode(), int(words[first + 2])
