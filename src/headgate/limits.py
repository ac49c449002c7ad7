"""The four limits as plain values, their checks and their canonical text.

`parse_limit` reads `str(limit)` back. All four are frozen, compare by value and can be hashed and
pickled. Times are seconds. The gate decides by them, and a store keeps their state.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, cast

from headgate.validation import (
    TEN_YEARS,
    WHOLE_FROM,
    check_initial,
    check_unit,
    flag,
    instant,
    microseconds,
    plain,
    positive_int,
    seconds,
    tokens,
)
from headgate.values import Value, with_fields

if TYPE_CHECKING:
    from datetime import datetime

DEFAULT_LEASE = 30.0

_FRACTION_HINT = (
    "count whole calls over a longer time, as Window(5, per=2) does for 2.5 a second, or take a "
    "Rate"
)
_PERIODS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


@with_fields
class Concurrency(Value):
    """At most `capacity` permits held at once.

    On Redis a permit has a `lease` in seconds. A living process renews it at each third of that
    time. The permits of a dead process are free when their leases end. In memory permits have no
    lease. With the unit "permits" every acquire takes one permit, whatever it costs in other units.
    Any other unit makes the permits weighted: `Concurrency(64, unit="mb")` and `acquire(mb=16)`. As
    text: "5 concurrent".

    All four limits raise ValueError or TypeError for values that they cannot keep.
    """

    __slots__ = ("capacity", "lease", "unit")
    capacity: int
    lease: float
    unit: str

    def __init__(self, capacity: int, lease: float = DEFAULT_LEASE, unit: str = "permits") -> None:
        self._set(
            capacity=positive_int("Concurrency", "capacity", capacity),
            lease=seconds("Concurrency", "lease", lease),
            unit=check_unit("Concurrency", unit),
        )

    def __str__(self) -> str:
        lease = "" if self.lease == DEFAULT_LEASE else f" lease {_span(self.lease)}"
        return f"{_counted(self.capacity, self.unit, 'permits')} concurrent{lease}"


@with_fields
class Rate(Value):
    """A token bucket: `amount` tokens come back every `per` seconds, and it holds at most
    `capacity`.

    They come back one by one, or with `steps=True` all at the end of every `per` seconds. `amount`
    need not be whole: `Rate(2.5, per=1)` grants exactly five tokens in two seconds. Parts of a
    token count to a millionth. `capacity` is an int; None: the amount rounded up. The bucket starts
    with `initial` tokens; None: full. So up to `capacity + amount` calls pass in its first period:
    for a service that counts a sliding window, take `Window`. `slack` lengthens the period by that
    many seconds, for a service that counts arrivals. As text: "10/second burst 20".
    """

    __slots__ = ("amount", "capacity", "initial", "per", "slack", "steps", "unit")
    amount: float
    per: float
    capacity: int | None
    initial: int | None
    steps: bool
    unit: str
    slack: float

    def __init__(
        self,
        amount: float,
        per: float,
        capacity: int | None = None,
        initial: int | None = None,
        steps: bool = False,
        unit: str = "requests",
        slack: float = 0.0,
    ) -> None:
        amount, per = tokens("Rate", "amount", amount), seconds("Rate", "per", per)
        most = ceil(amount) if capacity is None else positive_int("Rate", "capacity", capacity)
        slack = seconds("Rate", "slack", slack, zero=True)
        _refuse_too_long("Rate", per, slack)
        _refuse_uncountable(amount, per, slack, most)
        self._set(
            amount=amount,
            per=per,
            capacity=most,
            initial=check_initial("Rate", "initial", initial, most),
            steps=flag("Rate", "steps", steps),
            unit=check_unit("Rate", unit),
            slack=slack,
        )

    @property
    def burst(self) -> int:
        """The most tokens that can be granted at one instant."""
        return cast("int", self.capacity)  # `__init__` has replaced None

    def __str__(self) -> str:
        word = "every" if self.steps else "per"
        # Without a burst, a text with "per" would be read as a Window.
        burst = "" if self.steps and self.burst == ceil(self.amount) else f" burst {self.burst}"
        initial = "" if self.initial is None else f" initial {self.initial}"
        options = f"{burst}{initial}{_slack(self.slack)}"
        return f"{_counted(self.amount, self.unit)} {word} {_period(self.per)}{options}"


@with_fields
class Window(Value):
    """A sliding window: never more than `amount` in any interval of `per` seconds.

    A call waits only until enough earlier ones are `per` seconds old. The window remembers 128
    moments at most. With more in a period, neighbours merge into the later one, and a call waits
    for up to `per/120` longer. `slack` lengthens the interval by that many seconds, for a service
    that counts calls when they arrive. As text: "100/minute".
    """

    __slots__ = ("amount", "per", "slack", "unit")
    amount: int
    per: float
    unit: str
    slack: float

    def __init__(self, amount: int, per: float, unit: str = "requests", slack: float = 0.0) -> None:
        self._set(
            amount=positive_int("Window", "amount", amount, _FRACTION_HINT),
            per=seconds("Window", "per", per),
            unit=check_unit("Window", unit),
            slack=seconds("Window", "slack", slack, zero=True),
        )
        _refuse_too_long("Window", self.per, self.slack)

    def __str__(self) -> str:
        return f"{_counted(self.amount, self.unit)} in any {_period(self.per)}{_slack(self.slack)}"


@with_fields
class Quota(Value):
    """Fixed windows: `amount` in each period of `per` seconds, for budgets that reset at a given
    hour.

    `anchor` is a moment at which a window starts: seconds since 1970 or an aware datetime, kept as
    seconds; None is midnight UTC. No call passes in the last `slack` seconds of a window: it could
    arrive in the next. `slack` is shorter than `per`. As text: "1000/day from midnight".
    """

    __slots__ = ("amount", "anchor", "per", "slack", "unit")
    amount: int
    per: float
    anchor: float | None
    unit: str
    slack: float

    def __init__(
        self,
        amount: int,
        per: float,
        anchor: float | datetime | None = None,
        unit: str = "requests",
        slack: float = 0.0,
    ) -> None:
        self._set(
            per=seconds("Quota", "per", per),
            amount=positive_int("Quota", "amount", amount, _FRACTION_HINT),
            anchor=None if anchor is None else instant("Quota", "anchor", anchor),
            unit=check_unit("Quota", unit),
            slack=seconds("Quota", "slack", slack, zero=True),
        )
        if microseconds(self.slack) >= microseconds(self.per):
            raise ValueError(
                f"Quota(slack={plain(self.slack)}): slack must be shorter than the window of "
                f"{plain(self.per)} seconds, or no call could ever pass; write a shorter slack."
            )

    @property
    def origin(self) -> float:
        """`anchor` in seconds since 1970. None is midnight UTC, which is 0."""
        return self.anchor or 0

    def __str__(self) -> str:
        anchor = "midnight" if self.anchor is None else _stamp(self.origin)
        counted, period = _counted(self.amount, self.unit), _period(self.per)
        return f"{counted} per {period} from {anchor}{_slack(self.slack)}"


Limit = Concurrency | Rate | Window | Quota


def _refuse_too_long(call: str, per: float, slack: float) -> None:
    if microseconds(per) + microseconds(slack) >= TEN_YEARS * 1_000_000:
        raise ValueError(
            f"{call}(per={plain(per)}, slack={plain(slack)}): slack lengthens the period, and both "
            f"together must be below {TEN_YEARS} seconds (ten years); write a shorter slack."
        )


def _refuse_uncountable(amount: float, per: float, slack: float, capacity: int) -> None:
    """Refuse a token that takes ten years, or whose parts a script could not count exactly."""
    every = (per + slack) / amount
    if amount < 1 and every >= TEN_YEARS:
        raise ValueError(
            f"Rate(amount={plain(amount)}, per={plain(per)}): a token would come every "
            f"{plain(every)} seconds, and must come within ten years; write a larger amount."
        )
    if not isinstance(amount, int) and capacity >= WHOLE_FROM:
        raise ValueError(
            f"Rate(amount={plain(amount)}, capacity={capacity}): a bucket of {WHOLE_FROM} tokens "
            "or more counts whole ones; write a whole amount, or a smaller capacity."
        )


def _counted(amount: float, unit: str, unsaid: str = "requests") -> str:
    return plain(amount) if unit == unsaid else f"{plain(amount)} {unit}"


def _period(value: float) -> str:
    """In the largest unit that gives a whole number: minute, 15 minutes, 500 ms, 1.25 seconds."""
    for name, length in _PERIODS:
        if value % length == 0:
            many = int(value // length)
            return name if many == 1 else f"{many} {name}s"
    thousandths = _thousandths(value)
    return f"{thousandths} ms" if thousandths else f"{plain(value)} seconds"


def _span(value: float) -> str:
    """60s, 10ms, 1.2345s."""
    thousandths = _thousandths(value)
    return f"{thousandths}ms" if thousandths else f"{plain(value)}s"


def _thousandths(value: float) -> int:
    """A time below a second in milliseconds, if they are whole; otherwise 0."""
    rounded = round(value * 1_000)
    return rounded if value < 1 and rounded / 1_000 == value else 0


def _slack(value: float) -> str:
    return f" slack {_span(value)}" if value else ""


def _stamp(moment: float) -> str:
    from datetime import UTC, datetime, timedelta  # most limits have no anchor

    after = timedelta(microseconds=microseconds(moment))
    return (datetime.fromtimestamp(0, UTC) + after).isoformat().replace("+00:00", "Z")
