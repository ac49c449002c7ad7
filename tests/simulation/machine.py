"""Lua as a server has it: functions and scripts that were loaded, and the `redis`, `struct` and
`cmsgpack` that they see.

This module is the border between Lua and Python, and knows no meaning of a command. A process has
one Lua, which keeps its compiled texts. A server that starts anew runs the same text anew, and so
has a new state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, lru_cache
from struct import Struct, error
from typing import Any

import lupa.lua51 as lua  # type: ignore[import-untyped]  # it brings no types
import msgpack

from tests.simulation.commands import Failure, Reply

PRELUDE = b"""
local raw, pack, raw_unpack, pack_message, unpack_message, redis = ...
local function read_packed(format, text, from) return raw_unpack(format, text, from or 1) end
struct = { pack = pack, unpack = read_packed }
cmsgpack = { pack = pack_message, unpack = unpack_message }
local function answer(fine, reply, ...)
  if fine then return reply end
  return { err = reply }
end
function redis.pcall(...) return answer(raw(...)) end
function redis.call(...)
  local fine, reply = raw(...)
  if not fine then error({ err = reply }) end
  return reply
end
function redis.register_function(name, callback)
  if type(name) == 'table' then name, callback = name.function_name, name.callback end
  redis.registered(name, callback)
end
_G.redis = redis
return function(body, keys, args)
  local fine, reply = pcall(body, keys, args)
  if fine then
    if type(reply) == 'table' then return false, reply.err or 'ERR a table' end
    return true, reply
  end
  if type(reply) == 'table' then return false, reply.err end
  return false, 'ERR ' .. tostring(reply)
end
"""
OF_SCRIPT = b"local KEYS, ARGV = ...\n"
TEXTS = 32  # that are kept compiled: tests that take guards out of the Lua make many


class Machine:
    """The functions and scripts that one server has loaded.

    `within` answers the calls of a script. `failed` is called with the text of a script that has
    failed.
    """

    def __init__(
        self, within: Callable[[list[bytes]], Reply], failed: Callable[[str], None]
    ) -> None:
        self.within = within
        self.libraries: set[bytes] = set()
        self.functions: dict[bytes, Any] = {}
        self.scripts: dict[bytes, Any] = {}
        self._failed = failed
        self._lua = the_lua()

    def load_library(self, text: bytes) -> bytes:
        header, _, body = text.partition(b"\n")
        name = header.partition(b"name=")[2]
        if name in self.libraries:
            raise Failure(f"ERR Library '{name.decode()}' already exists")
        self._lua.serve(self, self._lua.compiled(body))
        self.libraries.add(name)
        return name

    def load_script(self, text: bytes) -> Any:
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if digest not in self.scripts:
            self.scripts[digest] = self._lua.compiled(OF_SCRIPT + text)
        return digest

    def run(self, body: Any, name: str, keys: list[bytes], args: list[bytes]) -> bytes | int | None:
        fine, reply = self._lua.serve(
            self, self._lua.run, body, self._lua.table(keys), self._lua.table(args)
        )
        if not fine:
            self._failed(f"{name}: {reply.decode()}")
            raise Failure(f"{reply.decode()} script: {name}, on @user_script:1.")
        return (
            None
            if reply is False or reply is None
            else int(reply)
            if isinstance(reply, float)
            else reply
        )


class Lua:
    """Serves one machine at a time, and keeps none: that would keep a whole fleet."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        runtime = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self.table: Any = runtime.table_from
        load: Any = runtime.globals()[b"loadstring"]
        self._collector: Any = runtime.globals()[b"collectgarbage"]
        self._collector(b"stop")
        self.compiled: Any = lru_cache(TEXTS)(load)
        self.run: Any = load(PRELUDE)(
            self._called,
            packed,
            unpacked,
            packed_message,
            unpacked_message,
            self.table({b"registered": self._registered}),
        )

    def collect(self) -> None:
        """Between runs: within one there is not that much garbage."""
        self._collector(b"collect")
        self._collector(b"stop")  # a collection starts it again

    def serve(self, machine: Machine, function: Any, *args: Any) -> Any:
        self._machine = machine
        try:
            return function(*args)
        finally:
            self._machine = None

    def _registered(self, name: bytes, function: Any) -> None:
        assert self._machine is not None, "Lua runs for somebody"
        self._machine.functions[name] = function

    def _called(self, *words: Any) -> tuple[bool, Any]:
        """redis.call: whether it went well, and the reply in Lua's types.

        Numbers are words as a server writes them.
        """
        assert self._machine is not None, "Lua runs for somebody"
        try:
            reply = self._machine.within(
                [word if type(word) is bytes else b"%.17g" % word for word in words]
            )
        except Failure as failure:
            return False, str(failure).encode()
        if type(reply) is list:
            return True, self.table([False if each is None else each for each in reply])
        return True, False if reply is None else reply


@cache
def the_lua() -> Lua:
    return Lua()


# struct -------------------------------------------------------------------------------------------


@lru_cache
def layout_of(codes: bytes) -> Struct:
    return Struct(codes)


def packed(layout: bytes, *values: Any) -> bytes:
    its = layout_of(layout)
    try:
        return its.pack(*values)
    except error:  # a number that comes as text: Lua accepts it as a number
        return its.pack(
            *(
                int(each) if code == 66 else float(each)
                for code, each in zip(layout[1:], values, strict=True)
            )
        )


def unpacked(layout: bytes, text: bytes, start: float) -> tuple[Any, ...]:
    """The values, and where the next one would begin, from 1."""
    its, first = layout_of(layout), int(start)
    return (*its.unpack_from(text, first - 1), first + its.size)


# cmsgpack -----------------------------------------------------------------------------------------


def packed_message(*values: Any) -> bytes:
    """Whole numbers as integers, and texts as they are."""
    pack = msgpack.Packer(use_bin_type=False).pack
    return b"".join(
        pack(int(each) if isinstance(each, float) and each % 1 == 0 and abs(each) < 2**63 else each)
        for each in values
    )


def unpacked_message(text: bytes) -> tuple[Any, ...]:
    unpacker = msgpack.Unpacker(raw=True)
    unpacker.feed(text)
    return tuple(float(each) if isinstance(each, int) else each for each in unpacker)
