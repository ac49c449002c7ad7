"""The witness checks both twins: promises that are kept or broken independently of the gate.

This module has the checks that need no model of the decisions: the holders, the callers that
believe to hold, and the order. They look at grants and returns, call by call, once both twins have
been found to say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from headgate.gate.compile import Declaration
from headgate.gate.compile import parsed as rule_of
from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.gate import Grant
from headgate.gate.token_bucket import TokenBucketRule
from tests.twins.kept import units_of
from tests.twins.model import KEEP, Model, PatientGate
from tests.twins.wire import (
    Acquire,
    Amend,
    Answer,
    Call,
    Caller,
    Cancel,
    Pause,
    PauseWhole,
    Rejoin,
    Release,
    Renew,
    Reply,
    Request,
    Resume,
)

DAY = 86_400_000_000  # microseconds


@lru_cache(maxsize=64)
def lease_of(program: str) -> int:
    """The lease that a client expects which knows this declaration."""
    return Declaration([rule_of(text) for text in program.split(";")]).lease


class Witness:
    """`saw` gets every call."""

    def __init__(self) -> None:
        self.lost = False  # part of the state was: nothing is promised any more
        self.clock = 0  # a client's: it moves on with the server's, and never back
        self.fence = 0
        self.act = 0
        self.paused_until = 0
        self.whole_until = 0  # by a call that named the pause of the whole limiter, for that call
        # the callers that may still be granted, and in which place
        self.arrivals: dict[Caller, int] = {}
        self.place: dict[Caller, int] = {}  # of all callers
        self.held_back: set[Caller] = (
            set()
        )  # once granted, by a pause: later callers may have passed
        self.places = 0
        self.latest = 0  # the place of the last granted caller
        self.lease_valid_until: dict[Caller, int] = {}  # until when a client believes in its permit
        self.given_up: set[Caller] = (
            set()
        )  # released or cancelled, perhaps before its caller received the grant

    # Events ---------------------------------------------------------------------------------------

    def time(self, delta: int) -> None:
        self.clock += max(0, delta)

    def died(self, client_name: str) -> None:
        """A killed process believes in nothing."""
        self.lease_valid_until = {
            caller: until
            for caller, until in self.lease_valid_until.items()
            if not caller.session.startswith(f"{client_name}.")
        }

    def holds_only(self, session: str, kept: set[int]) -> None:
        """A session says which of its permits it holds: it has given up the others."""
        given_up = {
            caller
            for caller in self.lease_valid_until
            if caller.session == session and caller.number not in kept
        }
        self.lease_valid_until = {
            caller: until
            for caller, until in self.lease_valid_until.items()
            if caller not in given_up
        }
        self.given_up |= given_up

    def believes(self, caller: Caller, t: int, lease: int, reply: Reply) -> None:
        """A client received its grant for `t` by this reply."""
        if lease and caller not in self.given_up:
            self.lease_valid_until[caller] = self.clock + t + lease - reply.t

    def renewed(self, call: Call, reply: Reply) -> None:
        """A client counts from the sending of the renewal, with the lease of the limits that it
        knew then, or else its own.
        """
        for request, answer in answered(call, reply):
            if (
                isinstance(request, Renew)
                and answer[1] == 1
                and request.caller in self.lease_valid_until
            ):
                self.lease_valid_until[request.caller] = self.clock + (
                    lease_of(call.program) or request.lease
                )

    def saw(self, model: Model, call: Call, reply: Reply) -> None:
        """Both twins have given this reply."""
        for request in call.requests:
            if isinstance(request, Rejoin):
                self.lease_valid_until.pop(request.caller, None)
            if isinstance(request, Release | Cancel):
                for caller in request.callers:
                    self.lease_valid_until.pop(caller, None)
                self.given_up.update(request.callers)
        if self.lost or not model.acted or model.gate is None:
            return
        self.arrive(call, reply)
        if call.requests and isinstance(call.requests[0], Pause):
            self.paused_until = max(self.paused_until, model.gate.t + call.requests[0].time)
        if any(isinstance(request, Resume) for request in call.requests):
            self.paused_until = 0
        named = [each.time for each in call.requests if isinstance(each, PauseWhole)]
        leads = bool(call.requests) and isinstance(call.requests[0], PauseWhole)
        self.whole_until = model.gate.t + min(named) if leads else 0  # the last of several counts
        for caller, grant in model.granted:
            self.pass_by(caller, grant, model.gate.t)
        self.depart(call)
        self.look_at_holders(model, model.gate)

    # Checks ---------------------------------------------------------------------------------------

    def arrive(self, call: Call, reply: Reply) -> None:
        asked: Counter[Request] = Counter()
        for request, answer in answered(call, reply):
            if isinstance(request, Acquire):
                caller = Caller(call.session, request.first + asked[request], request.asked)
                asked[request] += 1
                if answer[0] in ("grant", "wait"):
                    self.places += 1
                    self.arrivals[caller] = self.place[caller] = self.places
            if isinstance(request, Amend) and answer[1]:
                caller, amended = request.callers(call.session)
                self.arrivals[amended] = self.place[amended] = self.arrivals.pop(caller)
                if caller in self.held_back:
                    self.held_back.add(amended)
            if isinstance(request, Rejoin) and answer[1]:
                self.arrivals[request.caller] = self.place[request.caller]
                self.held_back.add(request.caller)

    def pass_by(self, caller: Caller, grant: Grant, now: int) -> None:
        assert caller in self.arrivals, f"S3: {caller} is granted twice, or after it was given up"
        assert grant.fence > self.fence, f"S5: {grant} after fence {self.fence}"
        least = max(self.act, self.paused_until, self.whole_until, now)
        assert grant.t >= least, (
            f"T3, T6: {grant} after {self.act}, at {now}, paused until {self.paused_until}"
        )
        place = self.arrivals.pop(caller)
        assert place > self.latest or caller in self.held_back, (
            f"S6: {caller} came before somebody who has passed"
        )
        self.fence, self.act, self.latest = grant.fence, grant.t, max(self.latest, place)

    def depart(self, call: Call) -> None:
        for request in call.requests:
            if isinstance(request, Cancel):
                for caller in request.callers:
                    self.arrivals.pop(caller, None)

    def look_at_holders(self, model: Model, gate: PatientGate) -> None:
        costs = [gate.rules.costs(units_of(caller.asked)) for caller in model.holders]
        granted = [gate.rules.costs(units_of(caller.asked)) for caller, _ in model.granted]
        for index, rule in enumerate(gate.rules.all):
            if isinstance(rule, ConcurrencyRule):
                held = sum(cost[index] for cost in costs)
                assert held == rule.used, f"S7: {held} are held, {rule.used} are counted"
                assert held <= rule.capacity or not any(cost[index] for cost in granted), (
                    f"S1: {held} are held of {rule.capacity}"
                )
        for caller, until in self.lease_valid_until.items():
            ends = model.holders.get(caller, 0)
            assert until <= self.clock or ends > gate.t, (
                f"S2: {caller} believes in its permit, which ended at {ends}"
            )


MANY = Acquire | Release | Cancel


def answered(call: Call, reply: Reply) -> Iterator[tuple[Request, Answer]]:
    """Each answer with the request that it answers: an acquire of many has as many, and so has a
    return of many.
    """
    asked = [
        request
        for request in call.requests
        for _ in range(request.count if isinstance(request, MANY) else 1)
    ]
    return zip(asked, reply.each(), strict=True)


def promised_members(model: Model) -> int:
    """Until when the members must live, if there are any: leases, and sessions (S8)."""
    ends = [*model.holders.values(), *(until + KEEP for until in model.alive.values())]
    return max(ends, default=0)


def promised(model: Model) -> int:
    """Until when the state must live: as the members, and the counts of rates, and the replies that
    are kept (S8, T12).

    A bucket that begins with less than it can hold would begin with less again: for a day after
    each call it does not.
    """
    assert model.gate is not None
    rates = [rule.idle_at() for rule in model.gate.rules.all if not rule.holds]
    rates += [
        model.gate.t + DAY
        for rule in model.gate.rules.all
        if isinstance(rule, TokenBucketRule) and rule.start < rule.size
    ]
    return max(model.until, promised_members(model), *rates)
