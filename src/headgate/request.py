"""The request of an acquire, and the rules for costs and settlements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headgate.closing import UNCLOSED, Closing
from headgate.counts import counts_of, note_refusal
from headgate.errors import CostExceedsCapacityError
from headgate.gate.compile import Declaration
from headgate.gate.gate import ONE_EACH, Units
from headgate.keys import title
from headgate.validation import BEYOND, check_max_sleep, exact, microseconds, show

if TYPE_CHECKING:
    from headgate.waiting import OnWait

# Any keyword of a call is a unit. So `acquire(timeout=1)`, as for a lock of threading, names a unit
# "timeout", and `try_acquire(max_sleep=1)` names a unit "max_sleep". Each mistake has its advice.
MISTAKES = {
    "timeout": "the longest wait is max_sleep: write acquire(max_sleep=...), or try_acquire()",
    "blocking": "acquire waits its turn: call try_acquire() or atry_acquire(), which never wait",
} | {
    unit: f"a try never waits and takes no {unit}; leave it out, or call acquire"
    for unit in ("max_sleep", "on_wait")
}
NOTHING = "-"  # no cost was named


class Request:
    """An acquire: `units` by name, `max_sleep` in microseconds (None: as long as it takes; 0: not
    at all).

    `retry_for`: in seconds, see `Limiter`; None: the store's default.
    `raises`: whether the caller gets the StoreError when the store cannot be asked.
    `closing`: the list of the limiter's waiting acquires, for its `close()`.
    `estimate`: returns the present cost, if `units` is an estimate that may change during the wait.
    """

    __slots__ = (
        "closing",
        "estimate",
        "max_sleep",
        "max_waiters",
        "on_wait",
        "plain",
        "raises",
        "retry_for",
        "text",
        "units",
    )

    def __init__(
        self,
        units: Units,
        max_sleep: int | None = None,
        max_waiters: int | None = None,
        on_wait: OnWait | None = None,
        retry_for: float | None = None,
        raises: bool = True,
        closing: Closing = UNCLOSED,
        estimate: Callable[[], Units] | None = None,
    ) -> None:
        self.closing = closing
        self.estimate = estimate
        self.retry_for = retry_for
        self.raises = raises
        self.units = units
        self.max_sleep = max_sleep
        self.max_waiters = max_waiters
        self.on_wait = on_wait
        self.text = cost_text(units) if units else NOTHING
        # One request and one permit, with no bound and no callback.
        self.plain = not units and max_sleep is None and max_waiters is None and on_wait is None

    def replaced(self, units: Units, on_wait: OnWait | None) -> Request:
        rest = self.retry_for, self.raises, self.closing, self.estimate
        return Request(units, self.max_sleep, self.max_waiters, on_wait, *rest)

    def renewed(self) -> Request:
        """The same request at its present cost: itself, if that has hardly changed."""
        units = self.units if self.estimate is None else self.estimate()
        return self.replaced(units, self.on_wait) if differ(units, self.units) else self


class Try(Request):
    """The acquire of a `try_acquire`."""

    __slots__ = ()


def differ(units: Units, others: Units) -> bool:
    """Whether one of the units differs by more than an eighth."""
    return units.keys() != others.keys() or any(
        8 * abs(number - others[unit]) > others[unit] for unit, number in units.items()
    )


def cost_text(units: Units) -> str:
    return ",".join(f"{unit}={units[unit]}" for unit in sorted(units)) or NOTHING


def sleep_of(max_sleep: float | None, call: str) -> int | None:
    seconds = check_max_sleep(max_sleep, call)
    return None if seconds is None else microseconds(seconds)


def check_units(declared: Declaration, name: str, cost: int, others: Mapping[str, int]) -> Units:
    """The units of `acquire(cost, **others)`. Raises an error if they can never pass."""
    units = {
        (unit := exact(each)): check_cost(declared, name, unit, number)
        for each, number in others.items()
    }
    # `acquire()` has a cost of 1 that the caller did not write.
    if type(cost) is not int or cost != 1:
        if "requests" in units:
            raise TypeError(
                f"acquire({show(cost)}, requests={units['requests']}) of {title(name)} gives two "
                "numbers of requests; write one of them."
            )
        units["requests"] = check_cost(declared, name, "requests", cost)
    for unit, capacity in declared.capacity.items():
        if units.get(unit, ONE_EACH.get(unit, 0)) > capacity:
            note_refusal(counts_of(name), name, "never")
            raise CostExceedsCapacityError(
                f"acquire of {title(name)} asks for {units.get(unit, 1)} {unit}, and its limit "
                f"never holds more than {capacity}, so it can never succeed; ask for less at a "
                "time, or raise the capacity."
            )
    return units


def check_cost(declared: Declaration, name: str, unit: str, number: object) -> int:
    argument = show(number) if unit == "requests" else f"{unit[:64]}={show(number)}"
    call = f"acquire({argument})"
    if unit in MISTAKES and unit not in declared.capacity:
        raise TypeError(f"{call} of {title(name)}: {MISTAKES[unit]}.")
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(
            f"{call} of {title(name)}: a cost is an int, not a {type(number).__name__}; pass an "
            "int such as 3."
        )
    if not 0 < number < BEYOND:
        raise ValueError(
            f"{call} of {title(name)}: a cost is at least 1 and below 2**53; leave a unit out to "
            "take none of it."
        )
    check_is_counted(declared, name, call, unit)
    return int(number)


def check_is_counted(declared: Declaration, name: str, call: str, unit: str) -> None:
    if declared.program and unit not in declared.capacity:
        raise ValueError(
            f"{call} of {title(name)}: none of its limits counts {show(unit)}; they count "
            f"{', '.join(sorted(declared.capacity))}. Name one of these, or add a limit with that "
            "unit."
        )


def check_settlement(
    declared: Declaration, name: str, actual: Mapping[str, object], verb: str = "settle"
) -> Units:
    """The numbers of `settle(tokens=1234)` or `drain(tokens=1234)`, as plain ints."""
    units: dict[str, int] = {}
    was = "was used" if verb == "settle" else "is left"
    for each, number in actual.items():
        unit = exact(each)
        call = f"{verb}({unit[:64]}={show(number)})"
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(
                f"{call} of {title(name)}: what {was} is an int; pass the total of {unit}."
            )
        if not 0 <= number < BEYOND:
            raise ValueError(
                f"{call} of {title(name)}: what {was} is from 0 to below 2**53; pass the total of "
                f"{unit}."
            )
        check_is_counted(declared, name, call, unit)
        if declared.program and unit not in declared.rated:
            raise ValueError(
                f"{call} of {title(name)}: {unit} are held until the release; {verb} a unit that a "
                "Rate, Window or Quota counts."
            )
        units[unit] = int(number)
    return units
