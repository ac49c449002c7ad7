"""The four limits: what is allowed, as plain values.

Here live the rules themselves, their checks and their canonical text (`str(limit)`, which `parse_limit` reads
back); no clock, no I/O, no state. How a limit decides is the gate's, where its state lives the store's.

All four are frozen, compare by value and can be hashed and pickled. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from headgate.checks import (
    EPOCH,
    TEN_YEARS,
    WHOLE_FROM,
    check_unit,
    filling,
    flag,
    instant,
    microseconds,
    plain,
    positive_int,
    seconds,
    tokens,
)

DEFAULT_LEASE = 30.0

_WAY_TO_WHOLE = "count whole calls over a longer time, as Window(5, per=2) does for 2.5 a second, or take a Rate"
_PERIODS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `capacity` permits held at once.

    A holder that dies gives its permits back when `lease` seconds have gone by without renewal; one that
    lives renews at a third of that. In the unit "permits" every acquire takes one permit, whatever it costs
    elsewhere; any other unit makes the permits weighted: `Concurrency(64, unit="mb")` and `acquire(mb=16)`.
    """

    capacity: int
    lease: float = DEFAULT_LEASE
    unit: str = "permits"

    def __post_init__(self) -> None:
        _store(
            self,
            capacity=positive_int("Concurrency", "capacity", self.capacity),
            lease=seconds("Concurrency", "lease", self.lease),
            unit=check_unit("Concurrency", self.unit),
        )

    def __str__(self) -> str:
        lease = "" if self.lease == DEFAULT_LEASE else f" lease {_span(self.lease)}"
        return f"{_counted(self.capacity, self.unit, 'permits')} concurrent{lease}"


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `amount` tokens come back every `per` seconds, and up to `capacity` are saved up.

    They come back one by one, or with `steps=True` all `amount` of them at the end of every `per` seconds.
    `amount` need not be whole: `Rate(2.5, per=1)` grants exactly five tokens in two seconds. Parts of a
    token are counted to a millionth. `capacity` is an int: the amount rounded up when unsaid.
    The bucket starts with `initial` tokens, full when unsaid. Its first period can see `capacity + amount`
    calls; where the service counts a sliding window, take `Window`. `slack` lengthens the period, for a
    service that counts arrivals. As text: "10/second burst 20".
    """

    amount: float
    per: float
    capacity: int | None = None
    initial: int | None = None
    steps: bool = False
    unit: str = "requests"
    slack: float = 0.0

    def __post_init__(self) -> None:
        amount, per = tokens("Rate", "amount", self.amount), seconds("Rate", "per", self.per)
        capacity = ceil(amount) if self.capacity is None else positive_int("Rate", "capacity", self.capacity)
        _refuse_uncountable(amount, per, capacity)
        _store(
            self,
            amount=amount,
            per=per,
            capacity=capacity,
            initial=filling("Rate", "initial", self.initial, capacity),
            steps=flag("Rate", "steps", self.steps),
            unit=check_unit("Rate", self.unit),
            slack=seconds("Rate", "slack", self.slack, zero=True),
        )

    @property
    def burst(self) -> int:
        """The most tokens that can be granted at one instant: `capacity`, filled in."""
        return ceil(self.amount) if self.capacity is None else self.capacity

    def __str__(self) -> str:
        word = "every" if self.steps else "per"
        burst = "" if self.steps and self.burst == ceil(self.amount) else f" burst {self.burst}"
        initial = "" if self.initial is None else f" initial {self.initial}"
        options = f"{burst}{initial}{_slack(self.slack)}"
        return f"{_counted(self.amount, self.unit)} {word} {_period(self.per)}{options}"


@dataclass(frozen=True, slots=True)
class Window:
    """An exact sliding window: never more than `amount` in any interval of `per` seconds.

    And no slower than that: a call waits only until enough earlier ones are `per` seconds old. `slack`
    lengthens the interval, for a service that counts when calls arrive rather than when they leave.
    As text: "100/minute".
    """

    amount: int
    per: float
    unit: str = "requests"
    slack: float = 0.0

    def __post_init__(self) -> None:
        _store(
            self,
            amount=positive_int("Window", "amount", self.amount, _WAY_TO_WHOLE),
            per=seconds("Window", "per", self.per),
            unit=check_unit("Window", self.unit),
            slack=seconds("Window", "slack", self.slack, zero=True),
        )

    def __str__(self) -> str:
        return f"{_counted(self.amount, self.unit)} in any {_period(self.per)}{_slack(self.slack)}"


@dataclass(frozen=True, slots=True)
class Quota:
    """Fixed windows: `amount` in each stretch of `per` seconds, for what resets at a given hour.

    `anchor` is a moment at which a window starts: seconds since the epoch or an aware datetime, kept as
    seconds; None is midnight UTC. `slack` is kept clear at a window's end: what leaves in its last moment
    could arrive in the next.
    """

    amount: int
    per: float
    anchor: float | datetime | None = None
    unit: str = "requests"
    slack: float = 0.0

    def __post_init__(self) -> None:
        per = seconds("Quota", "per", self.per)
        _store(
            self,
            amount=positive_int("Quota", "amount", self.amount, _WAY_TO_WHOLE),
            per=per,
            anchor=None if self.anchor is None else instant("Quota", "anchor", self.anchor),
            unit=check_unit("Quota", self.unit),
            slack=_shorter(seconds("Quota", "slack", self.slack, zero=True), per),
        )

    @property
    def origin(self) -> float:
        """`anchor` in seconds since the epoch, filled in: midnight UTC is 0."""
        return self.anchor if isinstance(self.anchor, int | float) else 0

    def __str__(self) -> str:
        anchor = "midnight" if self.anchor is None else _stamp(self.origin)
        return f"{_counted(self.amount, self.unit)} per {_period(self.per)} from {anchor}{_slack(self.slack)}"


Limit = Concurrency | Rate | Window | Quota


def _store(limit: Limit, **values: object) -> None:
    """Put the checked values in place: the one moment at which a frozen limit may still change."""
    for name, value in values.items():
        object.__setattr__(limit, name, value)


def _shorter(slack: float, per: float) -> float:
    if microseconds(slack) >= microseconds(per):
        raise ValueError(
            f"Quota(slack={plain(slack)}): slack must be shorter than the window of {plain(per)} seconds, "
            f"or no call could ever leave; write a shorter slack."
        )
    return slack


def _refuse_uncountable(amount: float, per: float, capacity: int) -> None:
    """Parts of a token that come too seldom, or are too many, for numbers that a script on Redis counts exactly."""
    if amount < 1 and per / amount >= TEN_YEARS:
        raise ValueError(
            f"Rate(amount={plain(amount)}, per={plain(per)}): a token would come every {plain(per / amount)} seconds, "
            f"and must come within ten years; write a larger amount."
        )
    if not isinstance(amount, int) and capacity >= WHOLE_FROM:
        raise ValueError(
            f"Rate(amount={plain(amount)}, capacity={capacity}): a bucket of {WHOLE_FROM} tokens or more counts whole ones; "
            f"write a whole amount, or a smaller capacity."
        )


def _counted(amount: float, unit: str, unsaid: str = "requests") -> str:
    return plain(amount) if unit == unsaid else f"{plain(amount)} {unit}"


def _period(value: float) -> str:
    """In the largest unit that gives a whole number: minute, 15 minutes, 500 ms; else 1.25 seconds."""
    for name, length in _PERIODS:
        if value % length == 0:
            many = int(value // length)
            return name if many == 1 else f"{many} {name}s"
    thousandths = _thousandths(value)
    return f"{thousandths} ms" if thousandths else f"{plain(value)} seconds"


def _span(value: float) -> str:
    """For what is not spoken of as a period: 60s, 10ms, 1.2345s."""
    thousandths = _thousandths(value)
    return f"{thousandths}ms" if thousandths else f"{plain(value)}s"


def _thousandths(value: float) -> int:
    """Less than a second in milliseconds, if they say it exactly; otherwise 0."""
    rounded = round(value * 1_000)
    return rounded if value < 1 and rounded / 1_000 == value else 0


def _slack(value: float) -> str:
    return f" slack {_span(value)}" if value else ""


def _stamp(moment: float) -> str:
    return (EPOCH + timedelta(microseconds=microseconds(moment))).isoformat().replace("+00:00", "Z")
