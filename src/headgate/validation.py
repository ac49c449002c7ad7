"""The checks that all public calls share: a value from outside goes in, a plain number or str comes
out.

No I/O, no clock, no state, and no limiter. A message names the call, the value, the rule and the
way out. A wrong type is a TypeError, a wrong value a ValueError.
"""

from __future__ import annotations

import keyword
import math
import re
import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

BEYOND = 2**53  # Lua counts in doubles: from here on neighbouring integers are one number
MICROSECOND = 1e-6  # the clock's step
# In seconds. The present moment plus ten years, in microseconds, is below BEYOND.
TEN_YEARS = 10 * 365 * 86_400
# In seconds from 1970, both ways. Up to there, a float of seconds distinguishes microseconds.
FAR = 2**32

LONGEST_NAME = 256  # bytes in UTF-8
LONGEST_UNIT = 64
# Arguments of `acquire`.
RESERVED_UNITS = frozenset({"cost", "max_sleep", "on_wait", "self"})
PARTS = 1_000_000  # the most parts of a token, in which a fractional amount is counted
# A bucket of this size or more counts whole tokens alone. In a smaller one, Lua counts all parts of
# tokens exactly. There, `smooth` in compile.py always finds a tick shorter than the period.
WHOLE_FROM = 2**21
# No limit counts these units.
SINGULARS = {"request": "requests", "permit": "permits"}

_UNIT = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST_SHOWN_INT = 128  # bits; Python refuses to print very long ones


def positive_int(call: str, field: str, value: object, way: str = "") -> int:
    """`value` as an int of at least 1. `way`: the way out for a fraction."""
    return _int(call, field, value, least=1, way=way)


def tokens(call: str, field: str, value: object) -> float:
    """`value` as an int if it is whole, otherwise as a float of at least a millionth."""
    number = _real(call, field, value, "write a number such as 10 or 2.5")
    if number == number // 1:
        return positive_int(call, field, int(number))
    if number * PARTS < 1:
        rule, way = "at least a millionth of a token", "write a larger amount, over a longer period"
        raise _bad_value(call, field, value, f"{field} must be {rule}", way)
    if number > WHOLE_FROM:
        rule = f"{field} must be whole from {WHOLE_FROM} on"
        raise _bad_value(call, field, value, rule, "round it")
    return number


def rational(value: float) -> Fraction:
    """The fraction that the user meant by `value`: 2.5 is 5/2, and the float of 1/3 is a third.

    Its denominator is at most `PARTS`. If the nearest such fraction is larger, and its float is not
    `value`, the result is `value` in millionths, rounded down. So no rate is faster than written.
    """
    from fractions import Fraction  # its import takes long, and most limits need none

    written = Fraction(str(value))
    near = written.limit_denominator(PARTS)
    return (
        near if near <= written or float(near) == value else Fraction(int(written * PARTS), PARTS)
    )


def check_count(value: object, call: str = "Limiter", field: str = "max_waiters") -> int | None:
    """None, or an int of at least 0."""
    return None if value is None else _int(call, field, value, least=0)


def check_initial(call: str, field: str, value: object, capacity: int) -> int | None:
    """The first tokens of a bucket: None (full), or an int from 0 to its `capacity`."""
    initial = check_count(value, call, field)
    if initial is not None and initial > capacity:
        rule = f"a bucket cannot start with more than its capacity of {capacity}"
        way = f"write at most {capacity}, or a larger capacity"
        raise _bad_value(call, field, value, rule, way)
    return initial


def seconds(
    call: str,
    field: str,
    value: object,
    *,
    zero: bool = False,
    least: float = MICROSECOND,
    way: str = "",
) -> float:
    """`value` as finite seconds from `least` to below ten years, or 0 where `zero` allows it.

    `way`: a better way out than to write another number.
    """
    number = _real(call, field, value, way or "write a finite number of seconds")
    if zero and number == 0:
        return abs(number)  # -0.0 is 0
    if number < least:
        lowest = f"at least {plain(least)} seconds" if least else "more"
        rule = f"{field} must be {'0 or ' if zero else ''}{lowest}"
        change = "write a longer time"
    elif microseconds(number) >= TEN_YEARS * 1_000_000:
        rule = f"{field} is in seconds and must be below {TEN_YEARS} (ten years)"
        change = "write a shorter time"
    else:
        return number
    raise _bad_value(call, field, value, rule, way or change)


def check_pause(call: str, value: object) -> float:
    """The seconds of a pause that a person asks for. A pause of 0 s would change nothing."""
    return seconds(call, "seconds", value, way="write a time above 0; `resume` ends a pause")


def check_max_sleep(value: object, call: str = "acquire") -> float | None:
    if value is None:
        return None
    # Every acquire with a `max_sleep` comes by here, so the usual case is first.
    if type(value) is float and 0 < value < TEN_YEARS:
        return value
    way = "pass None to wait as long as it takes, 0 not to wait at all, or call try_acquire"
    return seconds(call, "max_sleep", value, zero=True, least=0.0, way=way)


def instant(call: str, field: str, value: object) -> float:
    """A number or an aware datetime as seconds since the epoch, in whole microseconds."""
    from datetime import UTC, datetime, timedelta  # most limits have no anchor

    if not isinstance(value, datetime):
        way = "write seconds since 1970, or a datetime with a time zone"
        moment = microseconds(_real(call, field, value, way))
    elif value.utcoffset() is None:
        rule = "is a datetime without a time zone, which is another moment on every machine"
        way = "give it one: tzinfo=datetime.timezone.utc"
        raise _bad_value(call, field, value, f"{field} {rule}", way)
    else:
        moment = (value - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
    if abs(moment) >= FAR * 1_000_000:
        rule = "an anchor is in seconds, not milliseconds, and must lie between 1834 and 2105"
        way = "any moment at which one of the windows starts will do"
        raise _bad_value(call, field, value, rule, way)
    return moment / 1_000_000 if moment % 1_000_000 else moment // 1_000_000


def flag(call: str, field: str, value: object) -> bool:
    """True or False, and nothing like them: no stray positional number may switch anything."""
    if not isinstance(value, bool):
        raise _bad_type(call, field, value, "a bool", "write True or False")
    return value


def choice(call: str, field: str, value: object, choices: tuple[str, ...]) -> str:
    way = f"write {' or '.join(map(repr, choices))}"
    if not isinstance(value, str):
        raise _bad_type(call, field, value, "a str", way)
    if value not in choices:
        raise _bad_value(call, field, value, f"{field} has no such value", way)
    return value


def check_unit(call: str, value: object) -> str:
    """The name of a budget: something that can stand as a keyword in `acquire(tokens=900)`."""
    way = "write a short lower-case word such as 'tokens'"
    if not isinstance(value, str):
        raise _bad_type(call, "unit", value, "a str", way)
    value = exact(value)
    if value in SINGULARS:
        rule = f"acquire counts {SINGULARS[value]!r} by itself, and would never count {value!r}"
        raise _bad_value(call, "unit", value, rule, f"write {SINGULARS[value]!r}")
    if rule := unit_fault(value):
        raise _bad_value(call, "unit", value, rule, way)
    return value


def unit_fault(unit: str) -> str:
    if len(unit) > LONGEST_UNIT:
        return f"a unit may have at most {LONGEST_UNIT} characters, and this one has {len(unit)}"
    if not _UNIT.fullmatch(unit):
        return (
            "a unit is written in acquire(tokens=900), so it must be a letter a-z and then a-z, "
            "0-9 and _"
        )
    if unit in RESERVED_UNITS:
        return f"acquire has an argument {unit!r} already"
    if keyword.iskeyword(unit):
        return f"{unit!r} is a word of Python's own, so acquire({unit}=...) could not be written"
    return ""


def check_name(name: object, call: str = "Limiter", field: str = "name") -> str:
    """Text of 1 to 256 bytes in UTF-8.

    Names are data: spaces, colons, braces, NUL and emoji are fine.
    """
    if not isinstance(name, str):
        way = "write it in quotes or convert it with str(...)"
        raise _bad_type(call, field, name, "a str", way, a="a ")
    name = exact(name)
    if not name:
        rule = f"a {field} must have at least one character"
        raise _bad_value(call, field, name, rule, "name what the limit belongs to")
    size = len(name)  # a character takes at least a byte
    if size <= LONGEST_NAME and not name.isascii():
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            rule = (
                f"the character at index {error.start} is half of a surrogate pair, which UTF-8 "
                "cannot carry"
            )
            way = "decode the bytes it came from with the right encoding, or with errors='replace'"
            raise _bad_value(call, field, name, rule, way) from None
    if size > LONGEST_NAME:
        rule = (
            f"a {field} may have at most {LONGEST_NAME} bytes in UTF-8, and this one has {size} "
            "or more"
        )
        way = "shorten it, or use a digest of it (hashlib)"
        raise _bad_value(call, field, name, rule, way)
    return name


def exact(text: str) -> str:
    """`text` itself, of the class str. A member of `class Unit(str, Enum)` prints another text."""
    return str.__str__(text)


def microseconds(value: float) -> int:
    """Finite seconds as whole microseconds, halves upwards; any time above zero stays at least 1.

    Whole seconds are counted apart, so the rest is exact: an instant keeps its last digit.
    """
    whole = math.floor(value)
    result = whole * 1_000_000 + math.floor((value - whole) * 1_000_000 + 0.5)
    return 1 if result == 0 and value > 0 else result


def plain(value: float) -> str:
    """The shortest decimal digits of `value`, never with an exponent."""
    text = repr(value)
    if "e" in text:
        from decimal import Decimal  # few numbers need it, and its import takes long

        text = f"{Decimal(text):f}"
    return text.removesuffix(".0")


# From the longest. A time is shown in the first unit of which it has two or more.
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """Seconds have three digits, and longer units one after the point."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.001 else "under 0.001 s"


def show(value: object) -> str:
    """`value` for a message: its repr without addresses, kept short, and safe for any object."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_SHOWN_INT:
        return f"an int of {value.bit_length()} bits"
    # `check_cost` shows good costs, too. The `try` below could swallow the exception of a signal
    # handler, so an int does not get there.
    if type(value) is int:
        return str(value)
    try:
        text = _ADDRESS.sub("", _SHORT.repr(value))
    except Exception:  # of a repr: it must not hide the error that is about to be raised
        return f"a {type(value).__name__}"
    if may_hold_url(text):
        return f"a {type(value).__name__} with a URL"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def may_hold_url(text: str) -> bool:
    """Whether `text` may hold a URL, and so a password."""
    return _URL.search(text) is not None


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# A Path writes the "//" of a URL as "/". A SplitResult has its "user:password@host" alone.
_URL = re.compile(r"://|[A-Za-z]{2}:/|:[^\s:@][^:@]*@")
_LONGEST_SHOWN = 100
# A Repr leaves out the last items of a container. By default it also cuts out the middle of a long
# text, where a URL may stand. So it keeps each text whole, and `show` shortens the result.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = BEYOND


def _int(call: str, field: str, value: object, *, least: int, way: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        if not isinstance(value, float):
            way = "pass an int such as 10"
        elif value.is_integer():
            way = f"pass an int: {show(int(value))}"
        raise _bad_type(call, field, value, "an int", way or "pass a whole number as an int")
    if value < least:
        rule = f"{field} must be at least {least}"
        raise _bad_value(call, field, value, rule, "write a larger number")
    if value >= BEYOND:
        rule = f"{field} must be below 2**53, up to which a script on Redis counts exactly"
        raise _bad_value(call, field, value, rule, "count in a larger unit")
    return int(value)


def _real(call: str, field: str, value: object, way: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad_type(call, field, value, "an int or a float", way)
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise _bad_value(call, field, value, f"{field} must be finite", way)
    return float(value)


def _bad_type(
    call: str, field: str, value: object, wanted: str, way: str, *, a: str = ""
) -> TypeError:
    """`a`: the article that the message has before `field`."""
    kind = "None" if value is None else f"a {type(value).__name__}"
    rule = f"{a}{field} must be {wanted}, not {kind}"
    return TypeError(_sentence(call, field, value, rule, way))


def _bad_value(call: str, field: str, value: object, rule: str, way: str) -> ValueError:
    return ValueError(_sentence(call, field, value, rule, way))


def _sentence(call: str, field: str, value: object, rule: str, way: str) -> str:
    return f"{call}({field}={show(value)}): {rule}; {way}."
