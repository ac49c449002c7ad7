"""The keys of a Redis server, and the commands on them that the scripts call.

This module has their exact meaning (test_commands.py compares it with a real server), on a clock
that its caller moves. The server knows the connections and the scripts.
"""

from __future__ import annotations

import math
import pickle
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_INTEGER = "ERR value is not an integer or out of range"
NO_FLOAT = "ERR value is not a valid float"
NO_RANGE = "ERR min or max is not a float"
SYNTAX = "ERR syntax error"

Reply = Any  # None, int, bytes, a list of these, or a Simple


class Failure(Exception):
    """An error of a server, with the word it begins with."""


class Simple(str):
    """An answer that is no data, such as OK."""

    __slots__ = ()


class SortedSet:
    """Members by score; those of one score by their bytes."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []
        self.read: Any = None  # a value that was read out of it, until it changes

    def put(self, member: bytes, score: float) -> bool:
        """Add a member, and return whether it is new."""
        self.read = None
        known = self.scores.get(member)
        if known is not None:
            del self.order[bisect_left(self.order, (known, member))]
        self.scores[member] = score
        insort(self.order, (score, member))
        return known is None

    def drop(self, member: bytes) -> bool:
        """Remove a member, and return whether it was there."""
        self.read = None
        known = self.scores.pop(member, None)
        if known is not None:
            del self.order[bisect_left(self.order, (known, member))]
        return known is not None

    def between(self, low: float, high: float) -> slice:
        """The ranks of those with scores from `low` to `high`."""
        first = bisect_left(self.order, low, key=score_of)
        return slice(first, max(first, bisect_right(self.order, high, key=score_of)))

    def __len__(self) -> int:
        return len(self.order)


class Keyspace:
    """All keys of one server; `milliseconds()` is the time by which they expire."""

    def __init__(self, microseconds: Callable[[], int]) -> None:
        self.microseconds = microseconds
        self.expired: Callable[[bytes, Any], None] = lambda key, value: (
            None
        )  # called with each key that expires
        self._values: dict[bytes, dict[bytes, bytes] | SortedSet] = {}
        self._ends: dict[bytes, int] = {}  # when a key expires, in milliseconds
        self._soonest = math.inf  # no key expires before that

    # Keys -----------------------------------------------------------------------------------------

    def call(self, words: list[bytes]) -> Reply:
        """The answer to one command. Raises Failure, and then nothing has changed."""
        name, *others = words
        command = COMMANDS.get(name) or COMMANDS.get(name.upper())
        if command is None:
            raise Failure("ERR unknown command")
        fewest, most, run = command
        if not fewest <= len(others) <= most:
            raise Failure(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        return run(self, *others)

    def names(self) -> list[bytes]:
        self.expire()
        return list(self._values)

    def endless(self) -> list[bytes]:
        """The keys that have no expiry."""
        return (
            [key for key in self._values if key not in self._ends]
            if len(self._ends) < len(self._values)
            else []
        )

    def expire(self) -> None:
        """Forget the keys that have expired, whether or not a command asks for them."""
        if self.microseconds() // 1000 >= self._soonest:
            for key in list(self._values):
                self._value(key)
            self._soonest = min(self._ends.values(), default=math.inf)

    def copy(self) -> bytes:
        return pickle.dumps((self._values, self._ends))

    def restore(self, copy: bytes | None) -> None:
        """From None: without any key."""
        self._values, self._ends = pickle.loads(copy) if copy else ({}, {})
        self._soonest = min(self._ends.values(), default=math.inf)

    def copy_of(self, keys: Iterable[bytes]) -> bytes:
        """These keys, for `put_back`."""
        there = [key for key in keys if self._value(key) is not None]
        return pickle.dumps([(key, self._values[key], self._ends.get(key)) for key in there])

    def put_back(self, keys: Iterable[bytes], copy: bytes) -> None:
        """These keys are as they were when they were copied, or gone."""
        for key in keys:
            self._forget(key)
        for key, value, end in pickle.loads(copy):
            self._values[key] = value
            if end is not None:
                self._ends[key] = end
        self._soonest = min(self._ends.values(), default=math.inf)

    def set_of(self, key: bytes) -> SortedSet | None:
        """To look at."""
        value = self._value(key)
        return value if isinstance(value, SortedSet) else None

    def hash_of(self, key: bytes) -> dict[bytes, bytes]:
        """To look at."""
        value = self._value(key)
        return value if isinstance(value, dict) else {}

    def _value(self, key: bytes) -> Any:
        end = self._ends.get(key)
        if end is not None and end <= self.microseconds() // 1000:
            self.expired(key, self._values[key])
            self._forget(key)
        return self._values.get(key)

    def _forget(self, key: bytes) -> None:
        self._values.pop(key, None)
        self._ends.pop(key, None)

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        value = self._value(key)
        if isinstance(value, SortedSet):
            raise Failure(WRONG_TYPE)
        return {} if value is None else value

    def _set(self, key: bytes) -> SortedSet:
        value = self._value(key)
        if isinstance(value, dict):
            raise Failure(WRONG_TYPE)
        return SortedSet() if value is None else value

    def _keep(self, key: bytes, value: Any) -> None:
        """A key with an empty value does not exist."""
        if value:
            self._values[key] = value
        else:
            self._forget(key)

    def delete(self, *keys: bytes) -> int:
        there = [key for key in dict.fromkeys(keys) if self._value(key) is not None]
        for key in there:
            self._forget(key)
        return len(there)

    def pexpire(self, key: bytes, text: bytes, only_new: bytes = b"") -> int:
        if only_new.upper() not in (b"", b"NX"):
            raise Failure(f"ERR Unsupported option {only_new.decode()}")
        left = integer(text)
        if self._value(key) is None or (only_new and key in self._ends):
            return 0
        if left <= 0:
            self._forget(key)
        else:
            self._ends[key] = end = self.microseconds() // 1000 + left
            self._soonest = min(self._soonest, end)
        return 1

    def pttl(self, key: bytes) -> int:
        if self._value(key) is None:
            return -2
        end = self._ends.get(key)
        return -1 if end is None else end - self.microseconds() // 1000

    def time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self.microseconds(), 1_000_000)]

    # Hashes ---------------------------------------------------------------------------------------

    def hset(self, key: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise Failure("ERR wrong number of arguments for 'hset' command")
        its = self._hash(key)
        before = len(its)
        its.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._keep(key, its)
        return len(its) - before

    def hget(self, key: bytes, field: bytes) -> bytes | None:
        return self._hash(key).get(field)

    def hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        its = self._hash(key)
        return [its.get(field) for field in fields]

    def hkeys(self, key: bytes) -> list[bytes]:
        return list(self._hash(key))

    def hdel(self, key: bytes, *fields: bytes) -> int:
        its = self._hash(key)
        gone = sum(its.pop(field, None) is not None for field in fields)
        if gone:
            self._keep(key, its)
        return gone

    # Sorted sets ----------------------------------------------------------------------------------

    def zadd(self, key: bytes, *words: bytes) -> int:
        rest = list(words)
        only_new, only_old = False, False
        while rest and rest[0].upper() in (b"NX", b"XX"):
            only_new, only_old = (
                only_new or rest[0].upper() == b"NX",
                only_old or rest[0].upper() == b"XX",
            )
            del rest[0]
        if not rest or len(rest) % 2:
            raise Failure(SYNTAX)
        if only_new and only_old:
            raise Failure("ERR XX and NX options at the same time are not compatible")
        scores = [number(text, NO_FLOAT) for text in rest[::2]]
        its = self._set(key)
        new = 0
        for score, member in zip(scores, rest[1::2], strict=True):
            if only_new if member in its.scores else only_old:
                continue
            new += its.put(member, score)
        self._keep(key, its)
        return new

    def zrem(self, key: bytes, *members: bytes) -> int:
        its = self._set(key)
        gone = sum([its.drop(member) for member in members])
        if gone:
            self._keep(key, its)
        return gone

    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = self._set(key).scores.get(member)
        return None if score is None else shown(score)

    def zcard(self, key: bytes) -> int:
        return len(self._set(key))

    def zcount(self, key: bytes, low: bytes, high: bytes) -> int:
        within = bounds(low, high)
        ranks = self._set(key).between(*within)
        return int(ranks.stop - ranks.start)

    def zrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        start, end = integer(first), integer(last)
        its = self._set(key)
        start, end = (
            max(0, start + len(its) if start < 0 else start),
            end + len(its) if end < 0 else end,
        )
        return [member for _, member in its.order[start : max(start, end + 1)]]

    def zrangebyscore(self, key: bytes, low: bytes, high: bytes, *words: bytes) -> list[bytes]:
        scores, offset, count = options(words)
        within = bounds(low, high)
        its = self._set(key)
        found = its.order[its.between(*within)]
        found = (
            [] if offset < 0 else found[offset:] if count < 0 else found[offset : offset + count]
        )
        return list(with_scores(found) if scores else (member for _, member in found))

    def zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> int:
        within = bounds(low, high)
        its = self._set(key)
        return self.zrem(key, *[member for _, member in its.order[its.between(*within)]])


MANY = 1_000_000
COMMANDS: dict[bytes, tuple[int, int, Callable[..., Reply]]] = {  # the fewest words, the most
    b"DEL": (1, MANY, Keyspace.delete),
    b"HDEL": (2, MANY, Keyspace.hdel),
    b"HKEYS": (1, 1, Keyspace.hkeys),
    b"HGET": (2, 2, Keyspace.hget),
    b"HMGET": (2, MANY, Keyspace.hmget),
    b"HSET": (3, MANY, Keyspace.hset),
    b"PEXPIRE": (2, 3, Keyspace.pexpire),
    b"PTTL": (1, 1, Keyspace.pttl),
    b"TIME": (0, 0, Keyspace.time),
    b"ZADD": (3, MANY, Keyspace.zadd),
    b"ZCARD": (1, 1, Keyspace.zcard),
    b"ZCOUNT": (3, 3, Keyspace.zcount),
    b"ZRANGE": (3, 3, Keyspace.zrange),
    b"ZRANGEBYSCORE": (3, 7, Keyspace.zrangebyscore),
    b"ZREM": (2, MANY, Keyspace.zrem),
    b"ZREMRANGEBYSCORE": (3, 3, Keyspace.zremrangebyscore),
    b"ZSCORE": (2, 2, Keyspace.zscore),
}


def score_of(entry: tuple[float, bytes]) -> float:
    return entry[0]


def with_scores(entries: list[tuple[float, bytes]]) -> Iterator[bytes]:
    for score, member in entries:
        yield member
        yield shown(score)


def options(words: tuple[bytes, ...]) -> tuple[bool, int, int]:
    """WITHSCORES, and offset and count of LIMIT; a count below 0 is all."""
    rest, scores, offset, count = list(words), False, 0, -1
    while rest:
        word = rest.pop(0).upper()
        if word == b"WITHSCORES":
            scores = True
        elif word == b"LIMIT" and len(rest) >= 2:
            offset, count = integer(rest.pop(0)), integer(rest.pop(0))
        else:
            raise Failure(SYNTAX)
    return scores, offset, count


def shown(score: float) -> bytes:
    """A score as a reply has it."""
    return b"%.17g" % score


def integer(text: bytes) -> int:
    """As strictly as a server reads it: no sign but one, no zero in front, no space."""
    digits = text.removeprefix(b"-")
    plain = digits.isdigit() and not (digits.startswith(b"0") and text != b"0")
    if not plain or not -(2**63) <= int(text) < 2**63:
        raise Failure(NO_INTEGER)
    return int(text)


def bounds(low: bytes, high: bytes) -> tuple[float, float]:
    """Of scores; an empty text is 0, as C has it."""
    return number(low or b"0", NO_RANGE), number(high or b"0", NO_RANGE)


def number(text: bytes, refusal: str) -> float:
    """A score; inf has a sign or none."""
    try:
        found = float(text)
    except ValueError:
        raise Failure(refusal) from None
    if math.isnan(found) or text.strip() != text or b"_" in text:
        raise Failure(refusal)
    return found
