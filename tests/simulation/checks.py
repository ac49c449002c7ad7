"""The invariants, watched while a fleet runs: at the store after each call, and at the clients
whenever one uses a permit.

This module has the rules, and the faults that end a promise (docs/promises.md). After lost state or
a step forward of the server's clock, a client may rely on a forgotten permit until it renews. The
checks change nothing in the world.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.gate.compile import Declaration, parsed
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.gate import Rule
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.gate.token_bucket import TokenBucketRule
from headgate.stores.redis.protocol.replies import Answer, read_answers, read_outbox
from headgate.stores.redis.session.loop_session import LoopSession
from tests.simulation.loop import SECOND, ProcessLoop, World
from tests.twins.kept import units_of

if TYPE_CHECKING:
    from headgate.permit import Permit
    from tests.simulation.commands import SortedSet
    from tests.simulation.server import Call, Server

MOST = 2.0**52
SESSION_LIFE = FORGOTTEN = (
    10 * SECOND
)  # for which a silent session keeps its places, and is known for certain
# For which the store knows that a session is over, since another one of its process has said so.
OVER = 30 * SECOND
HOLDERS = -MOST + 2.0**48  # the first score of holders, as in membership.lua
WORDS = {
    "acquire": 5,
    "amend": 3,
    "cancel": 5,
    "drain": 4,
    "pause": 1,
    "quit": 2,
    "rejoin": 5,
    "release": 4,
    "renew": 3,
    "whole": 1,
}
WORDS |= {"settle": 2, "status": 1, "update": 1, "resume": 0, "reset": 0, "declared": 0}
MOST_CALLS = 5000  # in a run: mostly there are a twentieth of that
# Heartbeats in a second, of each session that waits or holds under the shortest leases.
SIGNS = 4
# The end of the session id of a process's threads: the server knows the calls that they give up
# before these arrive (sessions.lua).
THREADS = ".0"
Who = tuple[str, int]  # session and number of a caller
Request = tuple[str, list[str]]  # a verb and its words


class Broken(NamedTuple):
    """An invariant that did not hold."""

    invariant: str
    story: str
    at: int


class Granted(NamedTuple):
    """A grant as the store made it."""

    t: int
    fence: int
    due: int  # the moment of the world before which no client may act on it
    order: int  # the commit that made it


class Acted(NamedTuple):
    """A grant that a client has acted on, and its costs."""

    name: str
    who: Who
    granted: Granted
    asked: str


class Belief(NamedTuple):
    """The lease of a permit as a client knows it when it gets the permit."""

    permit: weakref.ref[Permit]
    loop: ProcessLoop
    until: float
    since: float  # when the call was sent from whose answer it counts: both on the client's clock


class Members(NamedTuple):
    """The waiters, in order, and the holders with the ends of their leases."""

    waiters: list[str]
    holders: dict[str, int]


NO_MEMBERS = Members([], {})


class Name:
    """The state of one name, since it was lost last."""

    def __init__(self) -> None:
        self.granted: dict[Who, Granted] = {}
        self.asked: dict[Who, str] = {}
        self.replies: dict[Who, bytes] = {}  # by session and number of the call
        self.ended: set[Who] = set()  # released or cancelled: never to be granted again
        self.doubtful: set[Who] = (
            set()
        )  # callers in a copy that a server has started from, with any later outcome
        self.sessions: set[str] = set()  # with numbered calls: the store knows the late ones
        # Sessions that are over by the word of their process, and since when by the store's clock.
        self.over: dict[str, int] = {}
        self.members = NO_MEMBERS
        self.held_back: dict[
            str, int
        ] = {}  # callers granted a moment before the end of a pause, that wait again: by fence
        self.paused_until = 0
        self.last_t = 0
        self.fence = 0  # the last one that this state has given
        self.now = 0  # by the store's clock, at the last call
        self.seen: dict[str, int] = {}  # and the last call of each session

    def copy(self) -> Name:
        other = Name()
        other.granted, other.asked, other.replies = (
            dict(self.granted),
            dict(self.asked),
            dict(self.replies),
        )
        other.sessions, other.ended = set(self.sessions), set(self.ended)
        other.over = dict(self.over)
        other.held_back, other.paused_until = dict(self.held_back), self.paused_until
        other.members, other.last_t, other.now, other.seen = (
            self.members,
            self.last_t,
            self.now,
            dict(self.seen),
        )
        other.fence = self.fence
        return other


class Witness:
    """Sees every call that the server runs, and every permit that a client gets."""

    def __init__(self, world: World, server: Server, longest_lease: float) -> None:
        self.broken: list[Broken] = []
        self.acted: list[Acted] = []
        self.actual: dict[tuple[Who, str], int] = {}  # the settled amounts, by unit
        self.calm_after: Callable[[float], float] = lambda seconds: (
            inf
        )  # microseconds: for how long it would have to be calm
        self.losses: list[int] = []  # the numbers of the commits before which state was lost
        self.commits = 0
        self._talks: set[tuple[bytes, str]] = set()  # a client about a name
        self._world = world
        self._server = server
        self._lease = longest_lease
        self._names: dict[bytes, Name] = defaultdict(Name)
        # By name: the highest fence of the states that were lost.
        self._lost_fences: dict[bytes, int] = defaultdict(int)
        self._programs: dict[bytes, set[str]] = defaultdict(set)
        # When a caller did that the store knew of. A store that has lost or forgotten its session
        # may run its call once more.
        self._gave_up: dict[Who, int] = {}
        self._left: set[Who] = set()  # all that did
        self._replies: set[bytes] = (
            set()
        )  # all of them: a session that gets one again has repeated its call
        self._notifications: list[
            tuple[str, str, int]
        ] = []  # notified by the call that is being run: session, notifications, now
        self._ever: dict[tuple[Who, int], Granted] = {}  # all that was lost since
        self.latest = 0  # the latest time of the server's clock
        self._without_state: set[bytes] = set()  # names whose next call drops the old members
        self._disturbed = -1  # when state was lost last, or the server's clock stepped forward
        self._stood_still = (
            0  # for how long its time stood still at most, because its clock had stepped back
        )
        self._permits: dict[str, Belief] = {}
        self.taken_over = 0  # permits that went from one client to another
        self._limits: dict[bytes, bytes] = {}  # the limits of each name in the store
        self._changed: dict[bytes, int] = defaultdict(int)  # and when they changed

    def blame(self, invariant: str, story: str) -> None:
        self.broken.append(Broken(invariant, story, self._world.now))

    # Excuses --------------------------------------------------------------------------------------

    def copy(self) -> dict[bytes, Name]:
        return {key: name.copy() for key, name in self._names.items()}

    def lost_state(self, copy: dict[bytes, Name] | None) -> None:
        """The server has started again with its state at the copy."""
        self.losses.append(self.commits)
        self._disturbed = self._world.now
        self._gave_up.clear()
        self._without_state.clear()
        for key in list(self._names):
            self._replace(key, (copy or {}).get(key))

    def went_back(self, key: bytes, copy: Name | None) -> None:
        """The state of one name is again as it was at the copy."""
        self.losses.append(self.commits)
        self._disturbed = self._world.now
        for who in self._names[key].asked:
            self._gave_up.pop(who, None)
        self._without_state.discard(key)
        name = self._replace(key, copy)
        name.members = members_of(self._server, key + b":who")  # its keys may end at this look

    def _replace(self, key: bytes, copy: Name | None) -> Name:
        """The state of a name is lost. An older one stands in its place, or none."""
        self._lost_fences[key] = max(self._lost_fences[key], self._names[key].fence)
        self._names[key] = name = copy.copy() if copy else Name()
        name.last_t = name.now = 0
        name.doubtful = {*name.asked, *map(who_of, name.members.waiters)}
        return name

    def unclaimed(self, key: bytes) -> Iterator[tuple[str, int]]:
        """The holders of a name, with the ends of their leases, whose callers hold nothing: they
        have released, or were never granted.
        """
        for holder, end in members_of(self._server, key + b":who").holders.items():
            belief = self._permits.get(holder)
            permit = belief.permit() if belief else None
            if not (permit and permit.held):
                yield holder, end

    def lost_key(self) -> None:
        """An operator has deleted one key: the others are still there."""
        former, there = dict(self._names), self._server.keys.names()
        self.lost_state(None)
        for key, name in former.items():
            self._names[key].members = members_of(self._server, key + b":who")
            if key in there:
                self._names[key].fence = name.fence
            else:
                self._without_state.add(key)

    def stepped(self, forward: int) -> None:
        """The server's clock steps by so much. It forgets sessions that have been silent for half a
        minute by that clock.
        """
        self._disturbed = self._world.now
        if forward > FORGOTTEN:
            self._gave_up.clear()
            for name in self._names.values():
                name.granted, name.replies, name.ended, name.sessions = {}, {}, set(), set()

    def stepped_back(self, span: int) -> None:
        """A grant counts from the time of the store, which may be older by so much than its
        call.
        """
        self._stood_still += span

    # At the store ---------------------------------------------------------------------------------

    def published(self, channel: bytes, message: bytes) -> None:
        _, session, now, _, *notifications = message.decode().split(" ")
        self._notifications.append((session, " ".join(notifications), int(now)))

    def _count(self, call: Call) -> None:
        self.commits += 1
        self._talks.add((call.keys[0], call.args[1].partition(".")[0]))
        most = MOST_CALLS + SIGNS * len(self._talks) * self._world.now // SECOND
        if self.commits > most:
            self.blame("S9", f"there were more than {most} calls: somebody asks without end")

    def ran(self, call: Call) -> None:
        """A call was run: check its grants, and the callers that it has removed."""
        self._count(call)
        notifications, self._notifications = self._notifications, []
        self.latest = max(self.latest, self._server.keys.microseconds())
        key, name = call.keys[0], self._names[call.keys[0]]
        before, after = name.members, members_of(self._server, call.keys[1])
        if key in self._without_state:
            before = NO_MEMBERS
        name.members = after
        self._note_limits(key)
        requests = list(requests_of(call))
        granted = (
            self._read(name, call, requests, notifications) if isinstance(call.reply, bytes) else []
        )
        self._check_fences(key, granted)
        back = [rejoined(words) for verb, words in requests if verb == "rejoin"]
        if granted or back or before is not after:
            self._check_order(name, before, after, granted, back)
            self._check_capacity(call, name, before, after)
            self._check_vanished(before, after)
        self._check_lifetime(call)

    def _read(
        self,
        name: Name,
        call: Call,
        requests: list[Request],
        notifications: list[tuple[str, str, int]],
    ) -> list[tuple[Who, Granted]]:
        """The new grants in the reply to a call."""
        program, session, number = call.args[:3]
        words = call.reply.decode().split(" ")
        if words[:2] != [session, number]:
            self.blame(
                "S3", f"the reply to call {number} of {session} is that to {words[1]} of {words[0]}"
            )
        known = name.replies.get((session, int(number)))
        if words[2] != "ok" or call.reply in self._replies:
            return []
        self._replies.add(call.reply)
        self._without_state.discard(call.keys[0])
        if known is not None:
            self.blame(
                "S3", f"call {number} of {session} was run twice: {known!r}, then {call.reply!r}"
            )
        name.replies[session, int(number)] = call.reply
        self._programs[call.keys[0]].add(program)
        now = int(words[3])
        if now - name.over.get(session, -OVER) < OVER:
            self.blame("S3", f"call {number} of {session} was run after the session was over")
        if now < name.now:
            self.blame("T6", f"the store's time was {name.now}, and is {now}")
        name.now = name.seen[session] = now
        self._note_requests(name, session, requests)
        own, _, mail = " ".join(words[6:]).partition("|")
        found = dict(self._answered(call, requests, own.split(), now))
        for whose, text, at in [(session, mail, now), *notifications]:
            for caller, t, fence, _ in read_outbox(text.split(), at).grants:
                if t >= 0:
                    found.setdefault((whose, caller), (t, fence))
        return sorted(self._new(name, found, now), key=lambda each: each[1].fence)

    def _note_limits(self, key: bytes) -> None:
        limits = self._server.keys.hash_of(key).get(b"limits", b"")
        if limits != self._limits.get(key):
            self._limits[key], self._changed[key] = limits, self._world.now

    def _note_requests(self, name: Name, session: str, requests: list[Request]) -> None:
        name.sessions.add(session)
        for verb, words in requests:
            if verb == "acquire":
                for index in range(int(words[1])):
                    name.asked[session, int(words[0]) + index] = words[4]
            elif verb == "pause":
                name.paused_until = max(name.paused_until, name.now + int(words[0]))
            elif verb == "quit":
                name.over[words[0]] = name.now
            elif verb == "resume":
                name.paused_until = 0
            elif verb == "reset":
                self.losses.append(
                    self.commits - 1
                )  # as if the counts had been lost before this call
            elif verb == "rejoin":
                name.granted.pop((words[0], int(words[1])), None)
                name.held_back[rejoined(words)] = int(words[3])
            elif verb in ("cancel", "release") and (
                words[0] in name.sessions or words[0].endswith(THREADS)
            ):
                name.ended |= {
                    (words[0], int(words[1]) + index) for index in range(int(words[2]))
                } - name.doubtful

    def _answered(
        self, call: Call, requests: list[Request], words: list[str], now: int
    ) -> Iterator[tuple[Who, tuple[int, int]]]:
        """The callers that were granted at once."""
        session = call.args[1]
        asked = [
            ((session, int(words[0]) + index), int(words[3]))
            for verb, words in requests
            if verb == "acquire"
            for index in range(int(words[1]))
        ]
        answers = list(read_answers(iter(words), call.args[0], now))
        for (who, most), answer in zip(asked, answers[len(answers) - len(asked) :], strict=True):
            assert isinstance(answer, Answer), "it is no status"
            if answer.kind == "grant":
                yield who, (answer.number, answer.fence)
            elif answer.kind == "wait" and 0 <= most <= answer.fence:
                self.blame("S9", f"{who} waits behind {answer.fence} others, and allowed {most}")

    def _new(
        self, name: Name, found: dict[Who, tuple[int, int]], now: int
    ) -> Iterator[tuple[Who, Granted]]:
        for who, (t, fence) in found.items():
            known = name.granted.get(who)
            ever = self._ever.get((who, fence))
            if ever is not None and ever.t == t:
                continue  # notifications that were kept
            if known is not None:
                self.blame("S3", f"{who} was granted twice: {known}, then t={t} fence={fence}")
            elif who in name.ended:
                self.blame("S3", f"{who} was granted after it had given up")
            if t < name.paused_until:
                self.blame(
                    "T3",
                    f"{who} was granted {t}, and nobody should pass before {name.paused_until}",
                )
            given_up = self._world.now - self._gave_up.get(who, self._world.now)
            if given_up > self.calm_after(0.0) and who not in name.doubtful:
                self.blame("S7", f"{who} was granted at {now}, and has given up long before that")
            if now - name.seen.get(who[0], now) > SESSION_LIFE:
                self.blame(
                    "L3",
                    f"{who} was granted at {now}, and has been silent since {name.seen[who[0]]}",
                )
            name.granted[who] = new = Granted(t, fence, self._world.now + t - now, self.commits)
            self._ever[who, fence] = new
            yield who, new

    def _check_fences(self, key: bytes, granted: list[tuple[Who, Granted]]) -> None:
        name = self._names[key]
        for who, grant in granted:
            behind = max(name.fence, self._lost_fence(key, name))
            if grant.fence <= behind:
                self.blame("S5", f"{who} got fence {grant.fence} after {behind}")
            if grant.t < name.last_t:
                self.blame("T3", f"{who} was granted {grant.t}, before {name.last_t}")
            name.fence, name.last_t = grant.fence, grant.t

    def _lost_fence(self, key: bytes, name: Name) -> int:
        """The highest fence of lost states that the present state must have passed. If the clock
        has stepped back, the fences of lost states may be given again. That ends when the store's
        time is beyond them (S5, docs/redis.md).
        """
        lost = self._lost_fences[key]
        return 0 if self._stood_still and name.now <= lost else lost

    def _check_order(
        self,
        name: Name,
        before: Members,
        after: Members,
        granted: list[tuple[Who, Granted]],
        back: list[str],
    ) -> None:
        """S6: no live waiter stands before a granted caller, and a new caller is behind all others.
        But a caller that comes `back`, because its moment was in a pause, is before all that were
        granted nothing.
        """
        stay = set(after.waiters)
        places = {who_of(caller): place for place, caller in enumerate(before.waiters)} | {
            who_of(caller): -1 for caller in back
        }
        first = next(
            (place for place, caller in enumerate(before.waiters) if caller in stay),
            len(before.waiters),
        )
        last = -1
        for who, _ in granted:
            place = places.get(who, len(before.waiters))
            if place > first or place < last:
                self.blame(
                    "S6",
                    f"{who} was granted before {before.waiters[first : first + 1]}, of "
                    f"{before.waiters}",
                )
            last = place
        left = [caller for caller in before.waiters if caller in stay and caller not in back]
        if [caller for caller in after.waiters if caller not in back][: len(left)] != left:
            self.blame(
                "S6",
                f"the queue was {before.waiters} and is {after.waiters}, when {back} came back",
            )
        fences = [name.held_back.get(caller, inf) for caller in after.waiters]
        if back and fences != sorted(fences):
            self.blame(
                "S6",
                f"{back} came back, and in the queue those who were granted once have the fences "
                f"{fences}",
            )

    def _check_capacity(self, call: Call, name: Name, before: Members, after: Members) -> None:
        """S1: no new caller holds a permit while more is held than the limits allow."""
        new = after.holders.keys() - before.holders.keys()
        if not new:
            return
        program = self._server.keys.hash_of(call.keys[0]).get(b"limits", b"").decode()
        t = self._server.keys.microseconds()
        live = [asked_of(holder) for holder, end in after.holders.items() if end > t]
        for index, rule in enumerate(rules_of(program)):
            asks = rule.holds and any(costs_of(program, asked_of(holder))[index] for holder in new)
            held = sum(costs_of(program, asked)[index] for asked in live)
            if asks and held > rule.capacity:
                self.blame(
                    "S1", f"{held} of {rule.capacity} are held of {program}: {after.holders}"
                )

    def _check_vanished(self, before: Members, after: Members) -> None:
        """S2: the store removes no holder that still relies on its permit."""
        for holder in before.holders.keys() - after.holders.keys():
            belief = self._permits.get(holder)
            permit = belief.permit() if belief else None
            if (
                belief
                and permit is not None
                and self._believes(permit, belief.loop)
                and not self._excused(permit, belief)
            ):
                self.blame(
                    "S2", f"{holder} believes to hold until {permit.certain_until}, and was let go"
                )

    def _check_lifetime(self, call: Call) -> None:
        """S8: every key ends some time."""
        self._server.keys.expire()
        for key in self._server.keys.endless():
            self.blame("S8", f"{key!r} would be kept for ever after {call.args}")

    def expired(self, key: bytes, value: Any) -> None:
        """S8: a key that ends has no promises in it."""
        its = key.removesuffix(b":who")
        name = self._names.get(its)
        if name is not None:
            t = self._server.keys.microseconds()
            live = [holder for holder, end in name.members.holders.items() if end > t]
            if live:
                self.blame("S8", f"{key!r} was forgotten with {live}")
            if key == its:
                self._expired(key, name)

    def _expired(self, key: bytes, name: Name) -> None:
        """A name whose state has ended begins anew. S5: a clock that steps back now may give its
        fences again.
        """
        self._lost_fences[key] = max(self._lost_fences[key], name.fence)
        name.fence = name.last_t = name.now = 0

    def gives_up(self, key: bytes, who: Who) -> None:
        """A caller gives up.

        The store may receive the refused call of such a caller later, from a network that repeats
        it.
        """
        self._left.add(who)
        if who in self._names[key].asked:
            self._gave_up.setdefault(who, self._world.now)

    # At the clients -------------------------------------------------------------------------------

    def got(self, name: str, key: str, permit: Permit, loop: ProcessLoop) -> None:
        """A client uses its permit now."""
        who = who_of(key)
        grant = self._ever.get((who, permit.fence))
        if grant is None:
            self.blame("S3", f"{key} acts on fence {permit.fence}, which was never granted to it")
            return
        if self._world.now < grant.due:
            self.blame("TL1", f"{key} acts {grant.due - self._world.now} us before its moment")
        self.acted.append(Acted(name, who, grant, asked_of(key)))
        if permit.held:
            home = permit.home  # a thread needs no time for a call
            asked_at = (
                home.machine.numbering.last_reply.asked_at
                if isinstance(home, LoopSession)
                else loop.time()
            )
            self._permits[key] = belief = Belief(
                weakref.ref(permit), loop, permit.certain_until, asked_at
            )
            self._check_belief(name, key, permit, belief)

    def take_over(self, name: str, who: Who, permit: Permit, waited: int) -> None:
        """A client hands its permit over to another one of the same process. The store treats the
        former one later as a caller that has given up.

        S1: no more is held than the limits allow, unless they were changed just now. S6: the next
        waiter has a place, and only callers that have given up stand before it. S2: its permit is
        held.
        """
        self.taken_over += 1
        key = f"headgate:{{{name}}}".encode()
        members = members_of(self._server, key + b":who")
        waiters = [who_of(caller) for caller in members.waiters]
        before = (
            [other for other in waiters[: waiters.index(who)] if other not in self._left]
            if who in waiters
            else []
        )
        placed = who in waiters or who in self._names[key].granted
        if (before or not placed) and self._disturbed < self._world.now - waited:
            self.blame(
                "S6",
                f"{who} took over {permit.key} before {before}, and has {'a' if placed else 'no'} "
                "place",
            )
        if self._world.now - self._changed[key] > self.calm_after(0.0):
            self._check_held(key, members)
        self.gives_up(key, who)
        self._check_belief(name, str(permit.key), permit, self._permits[str(permit.key)])

    def _check_held(self, key: bytes, members: Members) -> None:
        program = self._server.keys.hash_of(key).get(b"limits", b"").decode()
        t = self._server.keys.microseconds()
        for index, rule in enumerate(rules_of(program)):
            held = sum(
                costs_of(program, asked_of(holder))[index]
                for holder, end in members.holders.items()
                if end > t
            )
            if rule.holds and held > rule.capacity:
                self.blame(
                    "S1",
                    f"{held} of {rule.capacity} are held of {program}, and one is handed over: "
                    f"{members.holders}",
                )

    def _check_belief(self, name: str, key: str, permit: Permit, belief: Belief) -> None:
        """S2: a permit that a client relies on is held, for at least as long."""
        if not self._believes(permit, belief.loop) or self._excused(permit, belief):
            return
        members = members_of(self._server, f"headgate:{{{name}}}:who".encode())
        end = members.holders.get(key)
        left = (permit.certain_until - belief.loop.time()) * SECOND
        if end is None or end - self._server.look().microseconds() < left - 2:
            self.blame("S2", f"{key} believes to hold for {left} us; the store has {end}")

    def _believes(self, permit: Permit, loop: ProcessLoop) -> bool:
        return loop.alive and permit.held and loop.time() < permit.certain_until

    def _excused(self, permit: Permit, belief: Belief) -> bool:
        """Whether the store may have forgotten it since the request that it was granted or renewed
        by.
        """
        since = permit.certain_until - self._lease
        if permit.certain_until == belief.until:
            since = min(since, belief.since)
        return (
            self._disturbed
            >= self._world.now - (belief.loop.time() - since) * SECOND - self._stood_still - 2
        )

    # Afterwards -----------------------------------------------------------------------------------

    def check_rates(self) -> None:
        """T1: in no interval more was used than a rate or a window allows. Lost state allows all of
        it once more.
        """
        by_name: dict[str, list[Acted]] = defaultdict(list)
        for acted in self.acted:
            by_name[acted.name].append(acted)
        for name, its in by_name.items():
            its.sort(key=lambda acted: acted.granted.order * 2**60 + acted.granted.fence)
            programs = [
                rules_of(program) for program in self._programs[f"headgate:{{{name}}}".encode()]
            ]
            for index, rule in enumerate(programs[0]):
                self._check_rate(name, index, rule, [program[index] for program in programs], its)

    def _check_rate(
        self, name: str, index: int, rule: Rule, forms: list[Rule], its: list[Acted]
    ) -> None:
        units = [units_of(acted.asked) for acted in its]
        default = 1 if rule.unit == "requests" else 0
        actual = [self.actual.get((acted.who, rule.unit), 2**53) for acted in its]
        costs = [
            min(asked.get(rule.unit, default), most)
            for asked, most in zip(units, actual, strict=True)
        ]
        events = [
            (acted.granted.t, cost, acted.granted.order)
            for acted, cost in zip(its, costs, strict=True)
            if cost
        ]
        if isinstance(rule, TokenBucketRule):
            self._check_bucket(
                name, [form for form in forms if isinstance(form, TokenBucketRule)], events
            )
        elif isinstance(rule, FixedWindowRule):
            self._check_quota(
                name, [form for form in forms if isinstance(form, FixedWindowRule)], events
            )
        elif isinstance(rule, SlidingWindowRule):
            self._check_window(
                name, [form for form in forms if isinstance(form, SlidingWindowRule)], events
            )

    def _check_bucket(
        self, name: str, forms: list[TokenBucketRule], events: list[tuple[int, int, int]]
    ) -> None:
        most = max(form.capacity for form in forms)
        pace = max(form.gain / form.price / form.tick for form in forms)
        tick = max(form.tick for form in forms)
        losses, spent, lowest = list(self.losses), 0.0, 0.0
        start = before = events[0][0] if events else 0
        for t, cost, order in events:
            while losses and losses[0] < order:
                losses.pop(0)
                spent -= most
                # A new state knows no former time. If the clock has stepped back, it begins there.
                start -= max(0, before - t)
                before = min(before, t)
            before = t
            drift = pace * (t - start)
            lowest = min(lowest, spent - drift)
            spent += cost
            over = spent - drift - lowest - most
            if over > pace * tick + 1e-6:
                self.blame(
                    "T1",
                    f"{name}: {over:.3f} more than {most} and {pace * SECOND:g} a second at {t}",
                )
                return

    def _check_window(
        self, name: str, forms: list[SlidingWindowRule], events: list[tuple[int, int, int]]
    ) -> None:
        most, per = max(form.capacity for form in forms), min(form.per for form in forms)
        for last, (t, _, order) in enumerate(events):
            within = [each for each in events[: last + 1] if t - per < each[0] <= t]
            lost = sum(within[0][2] <= loss < order for loss in self.losses)
            if sum(cost for _, cost, _ in within) > most * (1 + lost):
                self.blame("T1", f"{name}: {within} within {per} us, and {most} may pass")
                return

    def _check_quota(
        self, name: str, forms: list[FixedWindowRule], events: list[tuple[int, int, int]]
    ) -> None:
        most, rule = max(form.capacity for form in forms), forms[0]
        by_start: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for event in events:
            by_start[rule.began(event[0])].append(event)
        for start, within in by_start.items():
            lost = sum(within[0][2] <= loss < within[-1][2] for loss in self.losses)
            closed = [t for t, _, _ in within if t >= start + rule.per - rule.slack]
            if closed or sum(cost for _, cost, _ in within) > most * (1 + lost):
                self.blame(
                    "T1",
                    f"{name}: {within} from {start} on for {rule.per} us, and {most} may pass; "
                    f"{closed} are too near its end",
                )
                return


# Keys and words of the store and the script -------------------------------------------------------


def members_of(server: Server, key: bytes) -> Members:
    """The same object until the key changes."""
    its = server.keys.set_of(key)
    if its is None:
        return NO_MEMBERS
    if its.read is None:
        its.read = members_in(its)
    return its.read


def members_in(its: SortedSet) -> Members:
    waiters = [member.decode() for _, member in its.order[its.between(-inf, HOLDERS - 1)]]
    holders = {
        member[1:].decode(): ceil(score - HOLDERS)
        for score, member in its.order[its.between(HOLDERS, -1)]
    }
    return Members(waiters, holders)


def requests_of(call: Call) -> Iterator[Request]:
    """The requests of a call, with their words."""
    words = list(call.args)
    at = 7
    while at < len(words):
        count = WORDS[words[at]]
        yield words[at], words[at + 1 : at + 1 + count]
        at += 1 + count


def rejoined(words: list[str]) -> str:
    """The caller that a rejoin names."""
    return f"{words[0]}:{words[1]}:{words[4]}"


def who_of(caller: str) -> Who:
    session, number, _ = caller.split(":", 2)
    return session, int(number)


def asked_of(caller: str) -> str:
    return caller.split(":", 2)[2]


@lru_cache(maxsize=4096)
def rules_of(program: str) -> tuple[Rule, ...]:
    return tuple(parsed(text) for text in program.split(";")) if program else ()


@lru_cache(maxsize=4096)
def costs_of(program: str, asked: str) -> tuple[int, ...]:
    return tuple(Declaration(rules_of(program)).costs(units_of(asked)))
