"""The server in memory answers like a real one: both get the same commands, by chance.

Without this, the results of the simulation would hold for a server that does not exist.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from headgate.stores.redis.protocol.script import library
from tests.simulation.commands import Failure, Keyspace, Simple
from tests.simulation.server import Connection, Server

KEYS = [b"simulation:a", b"simulation:b"]
MEMBERS = [b"", b"x", b"y", b"+x", b"z:1", b"\x00\xff"]
SCORES = [
    b"0",
    b"-1",
    b"1.5",
    b"-4503599627370496",
    b"4503599627370495",
    b"9007199254740991",
    b"1e17",
]
SCORES += [b"inf", b"-inf", b"nan", b"", b"one"]
key, member, score = some.sampled_from(KEYS), some.sampled_from(MEMBERS), some.sampled_from(SCORES)
rank = some.sampled_from([b"0", b"1", b"2", b"-1", b"-2", b"99", b"-99", b"01", b"x"])
left = some.sampled_from([b"0", b"-5", b"100000", b"7", b"1.5", b"x"])


def words(*parts: Any) -> some.SearchStrategy[list[bytes]]:
    """A command of words, and of strategies for words and for lists of words."""
    each = [some.just([part]) if isinstance(part, bytes) else part.map(listed) for part in parts]
    return some.tuples(*each).map(lambda lists: [word for its in lists for word in its])


def listed(drawn: Any) -> list[bytes]:
    return drawn if isinstance(drawn, list) else [drawn]


def several(*parts: some.SearchStrategy[bytes]) -> some.SearchStrategy[list[bytes]]:
    return some.lists(some.tuples(*parts), min_size=1, max_size=4).map(
        lambda rows: [word for row in rows for word in row]
    )


COMMAND = some.one_of(
    words(b"HSET", key, several(member, member)),
    words(b"HGET", key, member),
    words(b"HMGET", key, several(member)),
    words(b"HKEYS", key),
    words(b"HDEL", key, several(member)),
    words(b"ZADD", key, several(score, member)),
    words(b"ZADD", key, some.sampled_from([b"NX", b"XX"]), several(score, member)),
    words(b"ZREM", key, several(member)),
    words(b"ZRANGE", key, rank, rank),
    words(b"ZRANGEBYSCORE", key, score, score),
    words(b"ZRANGEBYSCORE", key, score, score, b"WITHSCORES"),
    words(b"ZRANGEBYSCORE", key, score, score, b"WITHSCORES", b"LIMIT", rank, rank),
    words(b"ZRANGEBYSCORE", key, score, score, b"LIMIT", b"0", rank),
    words(b"ZCARD", key),
    words(b"ZCOUNT", key, score, score),
    words(b"ZSCORE", key, member),
    words(b"ZREMRANGEBYSCORE", key, score, score),
    words(b"DEL", several(key)),
    words(b"PEXPIRE", key, some.sampled_from([b"0", b"-5", b"1.5", b"x", b"100000000"])),
    words(
        b"PEXPIRE",
        key,
        some.sampled_from([b"-5", b"x", b"100000000"]),
        some.sampled_from([b"NX", b"nx", b"AX"]),
    ),
)


@pytest.fixture
def real(admin_url: str) -> redis.Redis:
    return redis.Redis.from_url(admin_url, protocol=2)


def answer_of(server: redis.Redis, command: list[bytes]) -> Any:
    """As bytes and numbers: redis-py would read scores otherwise."""
    connection = server.connection_pool.get_connection()
    try:
        connection.send_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        return connection.read_response()
    except redis.ResponseError as refusal:
        return str(refusal)
    finally:
        server.connection_pool.release(connection)


def ours(keys: Keyspace, command: list[bytes]) -> Any:
    try:
        return keys.call(command)
    except Failure as failure:
        return str(failure).removeprefix("ERR ")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(commands=some.lists(COMMAND, min_size=1, max_size=25))
def test_commands_have_the_same_answers_as_on_a_real_server(
    real: redis.Redis, commands: list[list[bytes]]
) -> None:
    """Given the same commands, a real server and the simulated one give the same answers, refusals
    included.
    """
    real.delete(*KEYS)
    keys = Keyspace(lambda: 0)
    for command in commands:
        assert ours(keys, command) == answer_of(real, command), command
    for each in KEYS:
        assert (keys.pttl(each) > 0) == (real.pttl(each) > 0)
        assert (each in keys.names()) == bool(real.exists(each))


NUMBERS = some.one_of(
    some.integers(-(2**53), 2**53), some.sampled_from([0.5, -0.25, math.pi, 1e300])
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(numbers=some.lists(NUMBERS, min_size=1, max_size=4), count=some.integers(0, 255))
def test_lua_writes_and_packs_as_a_server_does(
    real: redis.Redis, numbers: list[float], count: int
) -> None:
    """Given numbers, struct, cmsgpack and redis.call make the same bytes of them, and read them
    again.
    """
    text = b"""
    local numbers = {}
    for i = 2, #ARGV do numbers[i - 1] = tonumber(ARGV[i]) end
    local layout = '<B' .. string.rep('d', #numbers)
    local message = cmsgpack.pack(math.floor(numbers[1]), tonumber(ARGV[1]), 'a text')
    local first, second, third, fourth = cmsgpack.unpack(message)
    assert(first == math.floor(numbers[1]) and second == tonumber(ARGV[1]))
    assert(third == 'a text' and fourth == nil)
    local packed = struct.pack(layout, tonumber(ARGV[1]), unpack(numbers))
    assert(struct.pack('<d', ARGV[2]) == struct.pack('<d', numbers[1]))
    local back = { struct.unpack(layout, 'xx' .. packed, 3) }
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'packed', packed .. message, 'first', numbers[1],
      'next', back[#back], 'second', back[2], 'count', back[1])
    redis.call('ZADD', KEYS[1] .. 'z', numbers[1], 'm')
    local all = redis.call('HMGET', KEYS[1], 'packed', 'first', 'next', 'second', 'count', 'none')
    local refused = redis.pcall('ZADD', KEYS[1], 1, 'm').err
    local score = redis.call('ZSCORE', KEYS[1] .. 'z', 'm')
    return table.concat(all, '|', 1, 5) .. tostring(all[6]) .. score .. refused
    """
    arguments = [b"1", b"simulation:k", b"%d" % count, *(b"%.17g" % number for number in numbers)]
    assert asked([b"EVAL", text, *arguments]) == answer_of(real, [b"EVAL", text, *arguments])


def asked(command: list[bytes]) -> Any:
    """The answer of a fresh simulated server."""
    server = Server(lambda: 0)
    found = server.answer(Connection(server, lambda reply: None), command)
    return str(found) if isinstance(found, Simple) else found


def test_a_key_expires_at_its_time_and_not_before() -> None:
    """Given a key that expires, then it is gone at its millisecond, and not before. PTTL says so,
    as a server's does.
    """
    moment = 5_000_500
    keys = Keyspace(lambda: moment)
    keys.call([b"HSET", b"k", b"f", b"v"])
    assert keys.call([b"PTTL", b"k"]) == -1
    keys.call([b"PEXPIRE", b"k", b"2"])
    moment = 5_001_999
    assert (keys.call([b"PTTL", b"k"]), keys.call([b"HGET", b"k", b"f"])) == (1, b"v")
    moment = 5_002_000
    assert (keys.call([b"PTTL", b"k"]), keys.call([b"HGET", b"k", b"f"]), keys.names()) == (
        -2,
        None,
        [],
    )


@pytest.mark.parametrize("functions", [True, False])
def test_a_script_that_was_not_loaded_is_an_error_as_on_a_real_server(functions: bool) -> None:
    """Given a server without headgate's scripts, then its error is that of a real server (node.py
    reads it), until the script is loaded.
    """
    server = Server(lambda: 1_000_000, functions)
    script = library().whole
    errors = {
        "FCALL": "ERR Function not found" if functions else "ERR unknown command 'FCALL'",
        "EVALSHA": "NOSCRIPT",
    }
    for verb, name in (("FCALL", script.function), ("EVALSHA", script.digest)):
        with pytest.raises(Failure, match=errors[verb]):
            asked_of(server, verb, name, "0")
    if functions:
        its = library().text.partition(b"name=")[2].partition(b"\n")[0]
        assert asked_of(server, "FUNCTION", "LOAD", library().text) == its
        with pytest.raises(Failure, match="already exists"):
            asked_of(server, "FUNCTION", "LOAD", library().text)


def asked_of(server: Server, *parts: str | bytes) -> Any:
    words = [part if isinstance(part, bytes) else part.encode() for part in parts]
    return server.answer(Connection(server, lambda reply: None), words)
