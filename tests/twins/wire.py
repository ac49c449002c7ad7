"""The script's wire format, spoken by hand: calls as values, replies as values, and a client with a
clock of its own.

This module has the words on the wire and nothing that decides. The real server runs the real Lua.
Only its clock is a key that the test sets, so that time stands still until the test moves it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import redis

from headgate.stores.redis.protocol.script import Library, Script, composed, sources

HOUR_HAND = "twins:clock"  # the key that tells the time
LUA = Library(
    {
        **sources(),
        "clock": f"local function clock() return tonumber(redis.call('GET', '{HOUR_HAND}')) end",
    }
)
DUMP = f"""
{composed(sources(), ("limits", "state"))}
local words, stored = {{}}, redis.call('HMGET', KEYS[1], 'limits', 'state', 'former', 'offer')
gate, HASH = {{ rules = {{}} }}, KEYS[1]
if stored[2] then State.load(stored[1] or stored[4], stored[2]) end
local function tell(from, ...)
  for _, name in ipairs({{ ... }}) do
    words[#words + 1] = name .. '=' .. string.format('%.0f', from[name] or -1)
  end
end
gate.reserved = gate.t and math.max(gate.t, gate.reserved)
tell(gate, 't', 'not_before', 'reserved', 'fence', 'next_expiry', 'queued', 'restarted_at')
for _, rule in ipairs(gate.rules) do
  tell(rule, 'used', 'start', 'level', 'at', 'taken', 'top')
  for _, mark in ipairs(rule.marks or {{}}) do
    words[#words + 1] = string.format('%.0f:%.0f', mark[1], mark[2])
  end
end
return table.concat(words, ' ') .. '\\n' .. (stored[3] or '0') .. (stored[4] and ' offered' or '')
"""
NOON = 1_700_000_043_123_457  # a moment as long as real ones are, and round in no period
GONE = -2  # PTTL of a key that is not there
TIMEOUT = 5.0  # seconds


class Caller(NamedTuple):
    """One acquire by name: its session, its number there, its units."""

    session: str
    number: int
    asked: str

    @property
    def text(self) -> str:
        return f"{self.session}:{self.number}:{self.asked}"


class Acquire(NamedTuple):
    """`count` acquires in a row, numbered from `first`."""

    first: int
    count: int = 1
    asked: str = "-"
    max_sleep: int | None = None
    max_waiters: int | None = None

    @property
    def words(self) -> str:
        limits = (-1 if limit is None else limit for limit in (self.max_sleep, self.max_waiters))
        return " ".join(map(str, ("acquire", self.first, self.count, *limits, self.asked)))


def in_row(first: Caller, count: int) -> list[Caller]:
    return [first._replace(number=first.number + index) for index in range(count)]


class Cancel(NamedTuple):
    """The caller has given up, and so have as many in all, by their numbers; `moment` is that of
    the grant, 0 when unknown.
    """

    caller: Caller
    moment: int = 0
    count: int = 1

    @property
    def callers(self) -> list[Caller]:
        return in_row(self.caller, self.count)

    @property
    def words(self) -> str:
        session, number, asked = self.caller
        return f"cancel {session} {number} {self.count} {self.moment} {asked}"


class Release(NamedTuple):
    """The caller does not hold any more; so do as many in all, by their numbers."""

    caller: Caller
    count: int = 1

    @property
    def callers(self) -> list[Caller]:
        return in_row(self.caller, self.count)

    @property
    def words(self) -> str:
        session, number, asked = self.caller
        return f"release {session} {number} {self.count} {asked}"


class Renew(NamedTuple):
    """The holder still holds, as it does since its grant, for the lease of the limits; for the
    lease of its grant, if they have none.
    """

    caller: Caller
    lease: int = 0
    since: int = 0

    @property
    def words(self) -> str:
        return f"renew {self.caller.text} {self.lease} {self.since}"


class Quit(NamedTuple):
    """A session gives up all its places, and all that it holds but these numbers; "*": it keeps
    all.
    """

    session: str
    kept: str = "*"

    @property
    def words(self) -> str:
        return f"quit {self.session} {self.kept}"


class Settle(NamedTuple):
    """The call granted at `moment` took `extras` beyond its cost."""

    moment: int
    extras: str

    @property
    def words(self) -> str:
        return f"settle {self.moment} {self.extras}"


class Drain(NamedTuple):
    """At `since` (0: now) the service had so much left of a unit; of all limits of that unit, or
    those that hold `limit`.
    """

    unit: str
    limit: int
    left: int
    since: int

    @property
    def words(self) -> str:
        return " ".join(map(str, ("drain", *self)))


class Pause(NamedTuple):
    """No caller passes for so long."""

    time: int

    @property
    def words(self) -> str:
        return f"pause {self.time}"


class PauseWhole(NamedTuple):
    """In this call no caller of the key passes for so long: the whole limiter is paused."""

    time: int

    @property
    def words(self) -> str:
        return f"whole {self.time}"


class Resume(NamedTuple):
    """A pause ends."""

    @property
    def words(self) -> str:
        return "resume"


class Reset(NamedTuple):
    """The counts are forgotten."""

    @property
    def words(self) -> str:
        return "reset"


class Declared(NamedTuple):
    """Whether a process has declared the limits."""

    @property
    def words(self) -> str:
        return "declared"


class Rejoin(NamedTuple):
    """A caller that was granted `moment` waits again, in front of all that were granted nothing, by
    its fence.
    """

    caller: Caller
    moment: int
    fence: int

    @property
    def words(self) -> str:
        session, number, asked = self.caller
        return f"rejoin {session} {number} {self.moment} {self.fence} {asked}"


class Amend(NamedTuple):
    """A waiter of the session that calls asks for something else."""

    number: int
    asked: str
    wanted: str

    @property
    def words(self) -> str:
        return f"amend {self.number} {self.asked} {self.wanted}"

    def callers(self, session: str) -> tuple[Caller, Caller]:
        """The caller before and after."""
        return Caller(session, self.number, self.asked), Caller(session, self.number, self.wanted)


class Status(NamedTuple):
    asked: str = "-"

    @property
    def words(self) -> str:
        return f"status {self.asked}"


class Update(NamedTuple):
    """Goes with an update: the former declaration of its sender."""

    former: str

    @property
    def words(self) -> str:
        return f"update {self.former.replace(' ', ',')}"


Request = (
    Acquire
    | Cancel
    | Release
    | Renew
    | Quit
    | Settle
    | Status
    | Update
    | Drain
    | Pause
    | PauseWhole
    | Resume
    | Reset
    | Declared
    | Rejoin
    | Amend
)


@dataclass(frozen=True)
class Call:
    """The joint requests of one session."""

    program: str
    session: str
    number: int
    requests: tuple[Request, ...] = ()
    received: str = "0"  # how the last reply began that the session received, if it says so
    waits: bool = False  # whether it has waiters
    listens: bool = False  # whether the server notifies it
    declares: int = 1  # 0: the limits are just known; 2: an update; 3: asked for; 4: offered
    reserve_ahead: int = 0
    clustered: bool = False  # the server is one of a Cluster

    def header(self) -> list[str]:
        return [self.program, self.session, str(self.number)]

    def words(self) -> list[str]:
        flags = (
            self.declares,
            self.received,
            int(self.waits) + 2 * self.listens + 4 * self.clustered,
            self.reserve_ahead,
        )
        words = (word for request in self.requests for word in request.words.split(" "))
        return [*self.header(), *map(str, flags), *words]

    @property
    def may_replace(self) -> bool:
        """Whether it may replace the limits of another process. The session of threads may not
        declare them: it is another client than that of its process's loops.
        """
        return self.declares == 2 or (self.declares == 1 and not self.session.endswith(".0"))

    @property
    def is_lone_acquire(self) -> bool:
        """Whether the fast path may carry it out."""
        single = (
            len(self.requests) == 1
            and isinstance(self.requests[0], Acquire)
            and self.requests[0].count == 1
        )
        return single and not (self.waits or self.declares)


Answer = tuple[
    Any, ...
]  # ("grant", count, number, fence), or ("status", waiting, delay, paused, *left)


@dataclass(frozen=True)
class Reply:
    """The reply of the script. `outbox`: number, moment, fence, lease of grants that other calls
    made; `paused`: until when all are, or 0.
    """

    session: str
    number: int
    verdict: str
    program: str = ""
    t: int = 0  # with "held", for how long
    head: int = -1
    mine: bool = False
    answers: tuple[Answer, ...] = ()
    outbox: tuple[tuple[int, int, int, int], ...] = ()
    paused: int = 0

    @property
    def beginning(self) -> str:
        """By which a session that waits says that it has received it."""
        return f"{self.number} {self.verdict} {self.t}"

    def each(self) -> Iterator[Answer]:
        """One answer for each acquire or other request: runs of equal ones are written as one."""
        for kind, *numbers in self.answers:
            if kind == "status":
                yield (kind, *numbers)
                continue
            count, number, fence = numbers
            step = 0 if kind == "full" else 1
            yield from ((kind, number, fence + index * step) for index in range(count))


def parsed(text: str, rules: int) -> Reply:
    """The reply that wrote `text`; `rules` is how many numbers a status has at its end."""
    session, its_number, verdict, *words = text.split(" ")
    number = int(its_number)
    if verdict in ("stale", "offer"):
        return Reply(session, number, verdict, program=" ".join(words))
    if verdict == "held":
        return Reply(session, number, verdict, t=int(words[0]), program=" ".join(words[1:]))
    if verdict != "ok":
        assert not words, text
        return Reply(session, number, verdict)
    bar, t, head = words.index("|"), int(words[0]), int(words[1])
    return Reply(
        session,
        number,
        verdict,
        t=t,
        head=head if head < 0 else t + head,
        mine=words[2] == "1",
        answers=tuple(_answers(iter(words[3:bar]), rules, t)),
        outbox=tuple(outbox_items(words[bar + 1 :], t)),
        paused=paused_until(words, t),
    )


def paused_until(words: list[str], t: int) -> int:
    """The pause at the end of the reply; 0: there is none."""
    return t + int(words[-1][1:]) if words[-1].startswith("!") else 0


def _answers(words: Iterator[str], rules: int, t: int) -> Iterator[Answer]:
    """A grant is written as the time beyond t."""
    for kind in words:
        numbers = [int(word) for word in islice(words, 3 + rules if kind == "status" else 3)]
        if kind == "grant":
            numbers[1:] = [t + number for number in numbers[1:]]
        yield (kind, *numbers)


def outbox_items(words: Iterable[str], t: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, moment, fence and lease of each item: runs of them, beyond t or the "@t" before
    them.
    """
    words = iter(words)
    for word in words:
        if word.startswith("@"):
            t = int(word[1:])
        if word[0] in "@!":
            continue
        first, count, moment, fence, lease = int(word), *map(int, islice(words, 4))
        assert count > 0, "an item names a request"
        if moment < 0:
            yield from ((first + index, -1, 0, lease) for index in range(count))
        else:
            yield from (
                (first + index, t + moment, t + fence + index, lease) for index in range(count)
            )


def spelled_out(notification: str) -> str:
    """Each item by itself, with absolute moments."""
    key, session, t, head, *words = notification.split()
    until = head if head == "-1" else str(int(t) + int(head))
    paused = paused_until([head, *words], int(t))
    return " ".join([key, session, t, until, str(paused), spelled(outbox_items(words, int(t)))])


def spelled(outbox_items: Iterable[tuple[int, int, int, int]]) -> str:
    return " ".join(" ".join(map(str, item)) for item in outbox_items)


def merged(answers: Iterable[tuple[Answer, bool]]) -> tuple[Answer, ...]:
    """Equal neighbours are written as one, if fences or positions follow one another; of waiters
    the first estimate.
    """
    runs: list[Answer] = []
    for answer, together in answers:
        if runs and together and follows(runs[-1], answer):
            kind, count, number, fence = runs[-1]
            runs[-1] = kind, count + 1, number, fence
        else:
            runs.append(answer)
    return tuple(runs)


def follows(run: Answer, answer: Answer) -> bool:
    if run[0] == "status" or run[0] != answer[0]:
        return False
    step = run[1] if run[0] in ("grant", "wait") else 0
    return bool((run[0] == "wait" or run[2] == answer[2]) and run[3] + step == answer[3])


def load(client: redis.Redis) -> None:
    """Give the server headgate's Lua in both of its forms, with a clock that obeys."""
    client.function_load(LUA.text, replace=True)
    for script in (LUA.whole, LUA.fast):
        client.script_load(script.text)


class Wire:
    """One name on a real server, whose time the test sets; asked by functions, or as a server is
    that has none.
    """

    def __init__(self, client: redis.Redis, name: str, functions: bool = True) -> None:
        self.client = client
        self.functions = functions
        self.token = secrets.token_hex(6)  # for the clients of this name's sessions
        self.key = f"headgate:{{{name}}}"
        self.keys = [self.key, f"{self.key}:who"]
        self.subscriptions = client.pubsub(ignore_subscribe_messages=True)
        self.subscriptions.psubscribe(f"headgate:{self.token}-*")
        self.subscriptions.get_message(timeout=TIMEOUT)

    def call(self, call: Call, now: int) -> Reply:
        """The reply of the script to `call` at `now`."""
        form = (
            LUA.whole
            if any(isinstance(request, Acquire) for request in call.requests)
            else LUA.without_acquires
        )
        return parsed(self.send(form, call.words(), now).decode(), call.program.count(";") + 1)

    def call_fast(self, call: Call, now: int) -> Reply | None:
        """The reply of the fast script: the same, or nothing."""
        text = self.send(LUA.fast, call.words(), now)
        return None if text is None else parsed(text.decode(), call.program.count(";") + 1)

    def send(self, script: Script, words: list[str], now: int) -> Any:
        """The raw reply to raw arguments."""
        name = ("FCALL", script.function) if self.functions else ("EVALSHA", script.digest)
        pipeline = self.client.pipeline(transaction=False)
        pipeline.set(HOUR_HAND, now)
        pipeline.execute_command(*name, len(self.keys), *self.keys, *words)
        return pipeline.execute()[1]

    # Other visible effects ------------------------------------------------------------------------

    def notifications(self) -> list[str]:
        """The notifications to this name's sessions that were not read here yet."""
        end = f"headgate:{self.token}-end"
        self.client.publish(end, "")
        received = []
        while True:
            message = self.subscriptions.get_message(timeout=TIMEOUT)
            assert message is not None, "the last announcement did not come"
            if message["channel"].decode() == end:
                return received
            received.append(spelled_out(message["data"].decode()))

    def state(self) -> str:
        """The script's record of the gate."""
        return str(self.client.eval(DUMP, 1, self.key).decode())

    def lives(self) -> dict[str, int]:
        """The keys that are there, and for how many milliseconds more; -1: for ever."""
        pipeline = self.client.pipeline(transaction=False)
        for key in self.keys:
            pipeline.pttl(key)
        lives = zip(self.keys, pipeline.execute(), strict=True)
        return {key: left for key, left in lives if left != GONE}

    def lose(self, part: str) -> None:
        """One key is deleted, by an operator or by eviction."""
        self.client.unlink(f"{self.key}:{part}" if part else self.key)

    def forget(self) -> None:
        self.subscriptions.close()
        self.client.unlink(*self.keys)
