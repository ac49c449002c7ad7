"""The gate decides which request may pass, and when. Twin: gate.lua.

The functions of both have the same names. Lua alone has `pass`, for many equal requests. Python
alone has `admit` and `at_once` for its fast path, `entry_at`, `idle_at` and some readers of the
state.

Several limits decide together, all or nothing, in the order of arrival. Time is an argument, in
integer microseconds. The memory store, the Redis script and the tests' oracle use this logic.
S1, T4 and so on: see docs/promises.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from headgate.gate.concurrency import NEVER, ConcurrencyRule

Units = Mapping[str, int]  # of an acquire by name: {"tokens": 900}
Costs = tuple[int, ...]  # a number for each rule, in order; 0 leaves it untouched
# Attempts to find a moment that suits all rules (S9). Most rules stay ready until the next take. A
# quota with slack does not: it closes before its window ends.
ROUNDS = 100
ONE_EACH = {"requests": 1, "permits": 1}  # the units of an acquire that names none


class Rule(Protocol):
    """The arithmetic of every limit. The gate knows no kinds.

    `t` is the moment of a take, which may be in the future; `now` is the present.
    """

    unit: str
    capacity: int
    holds: ClassVar[bool]  # whether a permit holds it until released

    @property
    def text(self) -> str: ...
    # Begin at `t`, as a new rule.
    def open(self, t: int) -> None: ...
    # The first moment at or after `t` at which `cost` is there (T4). Changes nothing.
    def ready(self, cost: int, t: int) -> int: ...
    def take(self, cost: int, t: int) -> None: ...
    # Take one if it is there now.
    def admit(self, now: int) -> bool: ...
    # Undo a take (T5).
    def give(self, cost: int, t: int) -> None: ...
    # Charge `extra` more for a take. Less than zero gives back.
    def settle(self, extra: int, t: int, now: int) -> None: ...
    # The service says that no more than `left` tokens were left at `since`.
    def drain(self, left: int, since: int, now: int) -> None: ...
    # The estimate for a queue that needs `total` tokens: when the last of them is there, if its
    # callers take all tokens from `t` on.
    def ahead(self, total: int, t: int, now: int) -> int: ...
    # From this moment on the rule is as good as new (T12).
    def idle_at(self) -> int: ...
    def left(self, t: int) -> int: ...
    # Go on from the state of `old`, under other numbers (T9).
    def adopt(self, old: Any, t: int) -> None: ...


class Grant(NamedTuple):
    """A yes: pass at `t`, not before; `fence` grows with every grant of the name (S5)."""

    t: int
    fence: int


class Wait(NamedTuple):
    """Not now: queued behind `position` others, to go at about `t`."""

    t: int
    position: int


class Refuse(NamedTuple):
    """No, and nothing is charged (T8): the same acquire could pass at `t`."""

    t: int
    full: bool  # the queue was too long


class Rules:
    """The rules of a name, in order, and the facts about them. New limits replace it whole."""

    __slots__ = ("all", "holding", "plain", "rated", "single", "slots", "usual")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.all = tuple(rules)
        # The cost of an acquire that names no unit, and the entry of such an acquire in the queue.
        self.usual: Costs = tuple(ONE_EACH.get(rule.unit, 0) for rule in self.all)
        self.plain: tuple[Units, Costs] = {}, self.usual
        single = [(rule, cost) for rule, cost in zip(self.all, self.usual, strict=True) if cost]
        # The rules that such an acquire touches, each with its cost, which is 1. Those of permits
        # come last, so most interrupts find no permit taken. A second interrupt could keep a permit
        # from being given back.
        self.single = sorted(single, key=lambda each: each[0].holds)
        # The rules that count over time, and those of permits, each with its index in `all`.
        self.rated = [(index, rule) for index, rule in enumerate(self.all) if not rule.holds]
        self.slots = [(index, rule) for index, rule in enumerate(self.all) if rule.holds]
        # The rules of `slots`, alone.
        self.holding = [cast(ConcurrencyRule, rule) for _, rule in self.slots]

    def costs(self, units: Units) -> Costs:
        if not units:
            return self.usual
        return tuple([units.get(rule.unit, ONE_EACH.get(rule.unit, 0)) for rule in self.all])

    def never(self, costs: Costs) -> bool:
        return any(cost > rule.capacity for cost, rule in zip(costs, self.all, strict=True))

    def admit(self, now: int) -> bool:
        """Take one of each unit if every rule has it now. Only for an empty queue."""
        for rule, cost in self.single:
            if rule.ready(cost, now) != now:
                return False
        taken = 0
        try:
            for rule, cost in self.single:
                rule.take(cost, now)
                taken += 1
        except BaseException:  # of a signal handler
            for rule, cost in self.single[:taken]:
                rule.give(cost, now)
            raise
        return True

    def adopt(self, before: Rules, t: int) -> None:
        """Begin at `t`. Each rule takes over from the old rule of its kind and unit (T9).

        A rule without such a predecessor starts with the usage of the removed rules of its unit. A
        limit on held permits takes over from no other kind.
        """
        former, others = list(before.all), []
        for rule in self.all:
            rule.open(t)
            old = next(
                (old for old in former if isinstance(old, type(rule)) and old.unit == rule.unit),
                None,
            )
            if old is None:
                others.append(rule)
            else:
                former.remove(old)
                rule.adopt(old, t)
        for rule, old in product(others, former):
            if rule.unit == old.unit and not (rule.holds or old.holds):
                carry_over(rule, old, t)


def carry_over(rule: Rule, old: Rule, t: int) -> None:
    """Charge `rule` the usage of `old`, which is of another kind.

    Then `rule` has no more left than its capacity minus that usage. It comes into debt only if
    `old` is in debt, and no deeper than `old`. `take` charges the tokens that are there, and
    `settle` the rest.
    """
    left, old_left = rule.left(t), old.left(t)
    used = old.capacity - old_left
    charge = left - max(rule.capacity - used, min(0, old_left))
    taken = min(charge, max(0, left))
    if taken > 0:
        rule.take(taken, t)
    if charge > taken:
        rule.settle(charge - taken, t, t)


class Gate:
    """The state of one name."""

    __slots__ = (
        "fence",
        "not_before",
        "own_pause",
        "queue",
        "reserved",
        "rules",
        "t",
        "waiting",
        "whole_pause",
    )

    def __init__(self, rules: Iterable[Rule], t: int) -> None:
        self.rules = Rules(rules)
        self.t = t  # the latest time seen; a clock that steps back moves nothing (T6)
        # No caller passes before it: the latest granted moment (T3), or the end of a pause.
        self.not_before = 0
        # The latest moment that `take` granted. It may be in the future, unlike those of `at_once`.
        self.reserved = 0
        # The end of the last pause, and of the whole limiter's, if this is a key.
        self.own_pause = self.whole_pause = 0
        self.fence = t
        self.queue: OrderedDict[Hashable, tuple[Units, Costs]] = OrderedDict()
        # The cost of the whole queue, for each rule that counts over time.
        self.waiting = [0] * len(self.rules.all)
        for rule in self.rules.all:
            rule.open(t)

    def clamp(self, now: int) -> int:
        self.t = max(now, self.t)
        return self.t

    def ready(self, costs: Costs) -> int:
        """The first moment at which all rules allow `costs`. NEVER: only a release can help."""
        t = max(self.t, self.not_before)
        for _ in range(ROUNDS):
            moment = t
            for rule, cost in zip(self.rules.all, costs, strict=True):
                if cost:
                    moment = rule.ready(cost, moment)
            if moment == t:
                return t
            if moment >= NEVER:
                return NEVER
            t = moment
        return NEVER  # the slacks of these quotas leave them no open moment in common

    def take(self, costs: Costs, t: int) -> Grant:
        for rule, cost in zip(self.rules.all, costs, strict=True):
            if cost:
                rule.take(cost, t)
        self.not_before = self.reserved = t
        # The clock is the lower bound, so fences also grow after the state was lost (S5).
        self.fence = max(self.fence + 1, self.t)
        return Grant(t, self.fence)

    def at_once(self, now: int) -> Grant | None:
        """`acquire` of one of each unit, if no caller waits and all rules have it now."""
        if self.queue or now < self.t or now < self.not_before or not self.rules.admit(now):
            return None
        self.t = self.not_before = now
        self.fence = max(self.fence + 1, now)
        return Grant(now, self.fence)

    def acquire(
        self,
        now: int,
        caller: Hashable,
        units: Units,
        reserve_ahead: int = 0,
        max_sleep: int | None = None,
        max_waiters: int | None = None,
    ) -> Grant | Wait | Refuse:
        """Pass, wait or be refused: all rules decide together, behind all earlier callers (S6).

        A moment within `reserve_ahead` is reserved now. `max_sleep` (0 refuses every wait) is
        compared with the estimate for the whole queue.
        """
        now = self.clamp(now)
        costs = self.rules.costs(units)
        # Behind waiters no caller passes now, so only the estimate below is needed.
        t = NEVER if self.queue else self.ready(costs)
        if t <= now + (reserve_ahead if max_sleep is None else min(reserve_ahead, max_sleep)):
            return self.take(costs, t)
        if t >= NEVER:
            t = self.estimate(costs)
        if max_sleep is not None and (max_sleep == 0 or t > now + max_sleep):
            return Refuse(t, False)
        if max_waiters is not None and len(self.queue) >= max_waiters:
            return Refuse(t, True)
        self.join(caller, units, costs)
        return Wait(t, len(self.queue) - 1)

    def estimate(self, costs: Costs) -> int:
        """When a new caller could pass, if no waiter gives up and permits are free."""
        first = t = max(self.t, self.not_before)
        for index, rule in self.rules.rated:
            if costs[index]:
                t = max(t, rule.ahead(self.waiting[index] + costs[index], first, self.t))
        return t

    def join(self, caller: Hashable, units: Units, costs: Costs) -> None:
        self.queue[caller] = (units, costs) if units else self.rules.plain
        for index, _ in self.rules.rated:
            self.waiting[index] += costs[index]

    def amend(self, caller: Hashable, units: Units, costs: Costs) -> None:
        """Change the cost of a waiter, which keeps its place."""
        _, before = self.queue[caller]
        for index, _ in self.rules.rated:
            self.waiting[index] -= before[index]
        self.join(caller, units, costs)

    def leave(self, caller: Hashable) -> bool:
        """Take a waiter out of the queue. Those behind it move forward (T5)."""
        asked = self.queue.pop(caller, None)
        if asked is None:
            return False
        for index, _ in self.rules.rated:
            self.waiting[index] -= asked[1][index]
        return True

    def advance(self, now: int, reserve_ahead: int = 0) -> list[tuple[Hashable, Grant]]:
        """Grant, in order, the requests that may pass within `reserve_ahead`."""
        now = self.clamp(now)
        granted = []
        while self.queue:
            caller, (_, costs) = next(iter(self.queue.items()))
            t = self.ready(costs)
            if t > now + reserve_ahead:
                break
            self.leave(caller)
            granted.append((caller, self.take(costs, t)))
        return granted

    def entry_at(self) -> int:
        """When a new caller with the usual costs could pass. NEVER: only a release can say."""
        estimate = self.estimate(self.rules.usual)
        t = max(estimate, self.next_at()) if self.queue else self.ready(self.rules.usual)
        # NEVER: held permits are in the way. Then the time that the rates need is a lower bound.
        return estimate if t >= NEVER and estimate > self.t else t

    def next_at(self) -> int:
        """When the head could pass. NEVER: no caller waits, or only a release can help."""
        return self.ready(next(iter(self.queue.values()))[1]) if self.queue else NEVER

    def release(self, units: Units) -> None:
        """The counts of rates stay."""
        costs = self.rules.costs(units)
        for index, rule in self.rules.slots:
            rule.give(costs[index], self.t)

    def cancel(self, now: int, units: Units, t: int) -> None:
        """Undo a grant for `t` that no caller has acted on: everything comes back (T5)."""
        self.clamp(now)
        for rule, cost in zip(self.rules.all, self.rules.costs(units), strict=True):
            if cost:
                rule.give(cost, t)

    def settle(self, now: int, extras: Units, t: int) -> None:
        """Charge `extras` beyond the costs of the grant at `t`. Less than zero gives back."""
        self.clamp(now)
        for rule in self.rules.all:
            if rule.unit in extras:
                rule.settle(extras[rule.unit], t, self.t)

    def drain(self, now: int, unit: str, limit: int, left: int, since: int) -> None:
        """Lower what is left of the limits of `unit`: the service had `left` at `since` (0: now).

        If `limit` is not 0, only those with that capacity change.
        """
        self.clamp(now)
        for rule in self.rules.all:
            if rule.unit == unit and limit in (0, rule.capacity):
                rule.drain(left, min(since or self.t, self.t), self.t)

    def pause(self, now: int, time: int) -> None:
        """Let no caller pass for `time` microseconds. One pause never ends another.

        A pause ends after every moment that is reserved already. So a session knows which
        reservations are older than the pause: it gives them back, and their callers wait again.
        """
        self.own_pause = max(self.own_pause, self.clamp(now) + time, self.reserved + 1)
        self.not_before = max(self.not_before, self.own_pause)

    def pause_whole(self, now: int, time: int) -> None:
        """For a key: the whole limiter is paused for `time` microseconds from now on. 0: it is not.

        A pause of the key itself stays as it is.
        """
        self.whole_pause = self.clamp(now) + time
        self.not_before = max(self.reserved, self.own_pause, self.whole_pause)

    def pause_left(self) -> int:
        """0: there is no pause. `not_before` may also be the moment of the last reservation."""
        return self.not_before - self.t if self.not_before > max(self.t, self.reserved) else 0

    def resume(self, now: int) -> None:
        """End a pause. No caller passes before the last moment that is reserved (T3)."""
        self.clamp(now)
        if self.pause_left():
            self.own_pause = 0
            self.not_before = max(self.reserved, self.whole_pause)

    def reset(self, now: int) -> None:
        """Each rate, window and quota begins anew, after the reserved moments (T9)."""
        start = max(self.clamp(now), self.reserved)
        for _, rule in self.rules.rated:
            rule.open(start)

    def follow(self, now: int, rules: Iterable[Rule]) -> list[Hashable]:
        """Go on under other rules: see `Rules.adopt`.

        Returns the waiters that can never pass now. The caller of this method removes them.
        """
        new = Rules(rules)
        # The new limits count from now on, even during a pause. So `not_before` is left out.
        new.adopt(self.rules, max(self.clamp(now), self.reserved))
        self.rules = new
        return self.requeue()

    def requeue(self) -> list[Hashable]:
        """Queue all waiters again, at their costs under the present rules."""
        asked, never = self.queue.copy(), []
        self.waiting = [0] * len(self.rules.all)
        # `join` replaces each entry in its place, so an interrupt here removes no waiter.
        for caller, (units, _) in asked.items():
            costs = self.rules.costs(units)
            if self.rules.never(costs):
                never.append(caller)
            self.join(caller, units, costs)
        return never

    def idle_at(self) -> int:
        """From this moment on the gate is as good as new, and may be forgotten (S8, T12)."""
        if self.queue:
            return NEVER
        return max((self.not_before, *(rule.idle_at() for rule in self.rules.all)))
