"""The text form of a limit: `parse_limit("10 per second burst 20")`.

limits.py defines the limits, checks their numbers and writes the canonical text:
`parse_limit(str(limit)) == limit`, unless the limit's unit is a word of the grammar.

    limit     = tokens [unit] shape {option}
    shape     = ("/" | "per") period      Window: at most so many in any interval of that length
                                          (a Rate or Quota with one of their options)
              | "in" "any" period         Window, whatever the options
              | "every" period            Rate in steps: the whole amount at the end of every period
              | "concurrent"              Concurrency
    option    = "burst" amount            makes it a Rate: a token bucket of that capacity
              | "initial" amount          Rate: its tokens at the start; needs a burst or "every"
              | "sliding"                 Window, which it is anyway
              | "fixed" | "quota"         makes it a Quota
              | "from" anchor             makes it a Quota, with windows that start at the anchor
              | "slack" duration          all but Concurrency
              | "lease" duration          Concurrency
    tokens    = amount, or with a fraction where the limit is a Rate: 2.5/second burst 3
    amount    = digits, _ between them, a suffix joined on: 1_000, 10k, 10kilo (thousand),
                2m (million)
    unit      = a word such as tokens or mb, joined on or not; "requests" or "permits" when unsaid
    period    = [number] time
    duration  = number time
    time      = ms millisecond | s sec second | m min minute | h hr hour | d day | week
                (all but ms, s, m, h and d also as plurals: secs, hours)
    anchor    = "midnight" (UTC) | an ISO 8601 moment with its offset: 1970-01-01T00:00:00Z

Each option stands once at most, in any order. Case does not matter, and spaces between words are
free.

    100/minute                          10 per second burst 20        5 every 10s
    10k tokens/min                      100 in any minute             100/minute slack 10ms
    1_000 requests per 2 hours          1000/day from midnight        64 mb concurrent lease 60s
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from headgate.limits import DEFAULT_LEASE, Concurrency, Limit, Quota, Rate, Window
from headgate.validation import (
    BEYOND,
    SINGULARS,
    TEN_YEARS,
    instant,
    may_hold_url,
    show,
    unit_fault,
)

if TYPE_CHECKING:
    from fractions import Fraction

LONGEST_TEXT = 256

TIMES = {  # in microseconds
    name: length
    for length, names in (
        (1_000, "ms millisecond milliseconds"),
        (1_000_000, "s sec secs second seconds"),
        (60_000_000, "m min mins minute minutes"),
        (3_600_000_000, "h hr hrs hour hours"),
        (86_400_000_000, "d day days"),
        (604_800_000_000, "week weeks"),
    )
    for name in names.split()
}
UNEVEN = frozenset({"month", "months", "year", "years"})
SUFFIXES = {"k": 1_000, "kilo": 1_000, "m": 1_000_000}
# After "per" the options decide on the kind; without options it is a window.
SHAPES = {"/": "", "per": "", "every": "steps", "in": "window", "concurrent": "concurrency"}
KIND_OF_OPTION = {
    "burst": "rate",
    "sliding": "window",
    "fixed": "quota",
    "quota": "quota",
    "from": "quota",
}
FITTING = {
    "rate": ("burst", "initial", "slack"),
    "steps": ("burst", "initial", "slack"),
    "window": ("sliding", "slack"),
    "quota": ("fixed", "quota", "from", "slack"),
    "concurrency": ("lease",),
}
NOUNS = {
    "rate": "a rate",
    "steps": "a rate in steps",
    "window": "a sliding window",
    "quota": "a quota",
    "concurrency": "a limit of concurrency",
}
WHOLE_HINT = {
    "window": "write a longer period, or a burst",
    "quota": "write a longer period",
    "concurrency": "write a whole number",
}
OPTIONS = frozenset(word for words in FITTING.values() for word in words)
# No unit is one of these words.
WORDS = OPTIONS | SHAPES.keys() | SUFFIXES.keys() | {"any", "midnight"}

# A stamp begins like a number: 1970-01-01T00:00:00Z.
_TOKEN = re.compile(
    r"(?P<stamp>(?=[0-9][0-9_.]*-)[0-9a-zA-Z:.+-]+)|(?P<number>[0-9][0-9_.]*)"
    r"|(?P<word>[a-zA-Z][a-zA-Z0-9_]*)|(?P<sign>\S)"
)
_NUMERAL = re.compile(r"[0-9]+(_[0-9]+)*(\.[0-9]+(_[0-9]+)*)?")

_EXAMPLES = {
    "": "'100/minute', '10 per second burst 20' or '5 concurrent'",
    "rate": "'10 per second burst 20', '10/second burst 1' or '10k tokens/min burst 10k'",
    "steps": "'5 every 10s' or '5 every 10s burst 20'",
    "window": "'100/minute', '10k tokens/min' or '10 in any second slack 10ms'",
    "quota": "'1000/day from midnight', '1000 per day fixed' or "
    "'50/hour from 1970-01-01T00:00:00Z'",
    "concurrency": "'5 concurrent', '64 mb concurrent' or '5 concurrent lease 60s'",
}


def parse_limit(text: str) -> Limit:
    """The limit that `text` describes, such as "100/minute" or "5 concurrent".

    Raises ValueError, which points at the fault, for any other text; TypeError for a value that is
    no str.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"parse_limit({show(text)}): a limit is written as a str, such as {_EXAMPLES['']}."
        )
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"parse_limit({show(text)}): a limit has at most {LONGEST_TEXT} characters, and this "
            f"text has {len(text)}; write it like {_EXAMPLES['']}."
        )
    if may_hold_url(text):
        raise ValueError(
            f"parse_limit({show(text)}): a URL is no limit; write it like {_EXAMPLES['']}."
        )
    return _Parser(text).limit()


class _Token(NamedTuple):
    """`kind`: number, word, stamp, sign or end. `tight`: joined to the piece before it."""

    kind: str
    text: str
    at: int
    tight: bool = False


class _Draft:
    """The numbers and units of a text, as far as it is read."""

    def __init__(self, amount: float, unit: str | None) -> None:
        self.amount = amount
        self.unit = unit
        self.period = 0.0
        self.burst: int | None = None
        self.initial: int | None = None
        self.anchor: float | None = None
        self.slack = 0.0
        self.lease = DEFAULT_LEASE

    def limit(self, kind: str) -> Limit:
        unit = self.unit or "requests"
        match kind:
            case "concurrency":
                return Concurrency(int(self.amount), self.lease, self.unit or "permits")
            case "window":
                return Window(int(self.amount), self.period, unit, self.slack)
            case "quota":
                return Quota(int(self.amount), self.period, self.anchor, unit, self.slack)
        return Rate(
            self.amount, self.period, self.burst, self.initial, kind == "steps", unit, self.slack
        )


class _Parser:
    """Recursive descent: each rule of the grammar has a method, which reads its part."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind = ""  # the kind of limit, once the text has shown it
        self.tokens = self.tokenized()
        self.index = 0

    def limit(self) -> Limit:
        first = self.here
        draft = _Draft(self.count(), self.unit())
        self.shape(draft)
        self.options(draft)
        if not isinstance(draft.amount, int) and self.kind in WHOLE_HINT:
            rule = f"{NOUNS[self.kind]} counts whole ones; {WHOLE_HINT[self.kind]}"
            self.fail(first, f"{first.text!r} is not whole, and {rule}")
        try:
            return draft.limit(self.kind)
        except ValueError as error:  # two numbers, each good, that do not go together
            message = f"parse_limit({show(self.text)}): {error}\n{self.examples()}"
            raise ValueError(message) from error

    def shape(self, draft: _Draft) -> None:
        word = self.expect(SHAPES, "'/', 'per', 'every', 'in any' or 'concurrent'").text
        self.kind = SHAPES[word]
        if word == "in":
            self.expect({"any"}, "'any' (as in 'in any minute')")
        if word != "concurrent":
            draft.period = self.duration(bare=True)

    def options(self, draft: _Draft) -> None:
        seen: dict[str, _Token] = {}
        while self.here.kind != "end":
            fitting = " or ".join(map(repr, FITTING.get(self.kind, ("burst", "slack"))))
            option = self.expect(OPTIONS, f"the end or an option ({fitting})")
            if option.text in seen:
                self.fail(option, f"{option.text!r} is there twice; write it once")
            seen[option.text] = option
            self.kind = self.kind or KIND_OF_OPTION.get(option.text, "")
            self.value(option.text, draft)
        if not self.kind and "initial" in seen:
            self.fail(
                seen["initial"],
                "'initial' goes with a burst; write both, as in 'burst 20 initial 0'",
            )
        self.kind = self.kind or "window"
        for option in seen.values():  # only now, because any of them may decide the kind
            if option.text not in FITTING[self.kind]:
                self.fail(
                    option, f"{option.text!r} does not go with {NOUNS[self.kind]}; leave it out"
                )

    def value(self, option: str, draft: _Draft) -> None:
        match option:
            case "burst":
                draft.burst = self.amount()
            case "initial":
                draft.initial = self.amount(least=0)
            case "from":
                draft.anchor = self.anchor()
            case "slack":
                draft.slack = self.duration(zero=True)
            case "lease":
                draft.lease = self.duration()

    def count(self) -> float:
        """An int if it is whole. Only a Rate takes a fraction."""
        number = self.here
        total = self.quantity()
        if not 0 < total < BEYOND:
            self.fail(
                number, f"{number.text!r} is out of range; write a number above 0 and below 2**53"
            )
        return int(total) if total.denominator == 1 else float(total)

    def amount(self, *, least: int = 1) -> int:
        number = self.here
        total = self.quantity()
        if total.denominator != 1:
            self.fail(number, f"{number.text!r} is not whole; write a whole number")
        if not least <= total < BEYOND:
            self.fail(
                number,
                f"{number.text!r} is out of range; write a number from {least} to below 2**53",
            )
        return int(total)

    def quantity(self) -> int | Fraction:
        number = exact_number(self.number("a number, such as 100").text)
        if self.here.tight and self.here.text in SUFFIXES:
            number *= SUFFIXES[self.advance().text]
        return number

    def unit(self) -> str | None:
        word = self.here
        # A suffix that stands alone, as in "10 k/minute", has a message of its own below.
        if word.kind != "word" or word.text in WORDS - SUFFIXES.keys():
            return None
        self.advance()
        unit = SINGULARS.get(word.text, word.text)
        fault = self.mistaken(word.text) or unit_fault(unit)
        if fault:
            self.fail(word, fault)
        return unit

    def mistaken(self, word: str) -> str:
        """The fault, if `word` stands where a unit may stand, but was not meant as one."""
        if word in SUFFIXES:
            return f"{word!r} stands alone; join it to its number, as in '10{word}'"
        # "5 evry 10s": no shape follows, so the word is a misspelt one.
        near = closest(word, SHAPES)
        if near and self.here.text not in SHAPES:
            return f"{word!r} is not a word of the grammar; did you mean {near[0]!r}?"
        return ""

    def duration(self, *, bare: bool = False, zero: bool = False) -> float:
        """Seconds. With `bare` the number may be missing, as in "per minute"; with `zero` it may be
        0.
        """
        start = self.here
        many: int | Fraction = 1
        if start.kind == "number" or not bare:
            many = exact_number(self.number("a length of time, such as 10s or 500 ms").text)
        if self.here.text in UNEVEN:
            self.fail(
                self.here,
                f"a {self.here.text.removesuffix('s')} has no fixed length; write it in days",
            )
        unit = self.expect(TIMES, "a unit of time, such as 's', 'minute' or 'hours'").text
        length = many * TIMES[unit]
        if not (1 <= length < TEN_YEARS * 1_000_000 or (zero and not length)):
            self.fail(
                start, "out of range; write a time of a microsecond or more and below ten years"
            )
        return float(length / 1_000_000) if length % 1_000_000 else int(length // 1_000_000)

    def anchor(self) -> float | None:
        token = self.advance()
        if token.text == "midnight":
            return None
        if token.kind != "stamp":
            self.fail_missing(token, "'midnight' or a moment such as 1970-01-01T00:00:00Z")
        from datetime import datetime  # most texts have no moment

        try:
            moment = datetime.fromisoformat(token.text.upper())
        except ValueError:
            self.fail(token, f"{token.text!r} is not a moment; write it like 1970-01-01T00:00:00Z")
        if moment.tzinfo is None:
            self.fail(token, f"{token.text!r} has no offset; write it like {moment.isoformat()}Z")
        try:
            return instant("Quota", "anchor", moment)
        except ValueError:
            self.fail(
                token, f"{token.text!r} is too far away; write a moment between 1834 and 2105"
            )

    @property
    def here(self) -> _Token:
        return self.tokens[self.index]

    def advance(self) -> _Token:
        token = self.here
        self.index = min(self.index + 1, len(self.tokens) - 1)  # the end stays the end
        return token

    def number(self, wanted: str) -> _Token:
        if self.here.kind != "number":
            self.fail_missing(self.here, wanted)
        return self.advance()

    def expect(self, words: Collection[str], wanted: str) -> _Token:
        token = self.here
        if token.text not in words:
            near = closest(token.text, words) if token.kind == "word" else []
            self.fail_missing(token, wanted, f"; did you mean {near[0]!r}?" if near else "")
        return self.advance()

    def examples(self) -> str:
        return f"Write it like {_EXAMPLES[self.kind]}."

    def fail_missing(self, token: _Token, wanted: str, hint: str = "") -> NoReturn:
        found = f"found {show(token.text)}" if token.text else "the text ends"
        self.fail(token, f"expected {wanted}, but {found}{hint}")

    def fail(self, token: _Token, fault: str) -> NoReturn:
        line = "".join(char if char.isprintable() else "?" for char in self.text)
        raise ValueError(
            f"parse_limit({show(self.text)}): at character {token.at + 1}, {fault}\n"
            f"    {line}\n    {' ' * token.at}{'^' * max(1, len(token.text))}\n{self.examples()}"
        )

    def tokenized(self) -> list[_Token]:
        tokens: list[_Token] = []
        end = -1
        for found in _TOKEN.finditer(self.text):
            kind, text, at = str(found.lastgroup), found[0], found.start()
            token = _Token(kind, text.lower() if kind == "word" else text, at, at == end)
            self.check(token)
            tokens.append(token)
            end = found.end()
        return [*tokens, _Token("end", "", len(self.text))]

    def check(self, token: _Token) -> None:
        """Refuse a piece that no rule of the grammar takes."""
        text, at = token.text, token.at
        if token.kind == "number" and not _NUMERAL.fullmatch(text):
            self.fail(token, f"{text!r} is not a number; write it like 1000, 1_000 or 0.5")
        if token.kind == "sign" and text != "/":
            fault = f"{show(text)} has no meaning here"
            if text in ",;|&":
                fault += (
                    "; a text holds one limit (give each a text of its own), and thousands are "
                    "written 1_000"
                )
            self.fail(token, fault)
        # "10k5": the word "k5" is joined to a digit, and has digits itself.
        joined = token.kind == "word" and token.tight and self.text[at - 1].isdigit()
        if joined and re.search("[0-9]", text):
            self.fail(
                token,
                "a word with digits is joined to a number; write the number in full, or a space "
                "after it",
            )


def exact_number(text: str) -> int | Fraction:
    if "." not in text:
        return int(text)
    from fractions import Fraction  # its import takes long, as that of difflib

    return Fraction(text)


def closest(word: str, words: Collection[str]) -> list[str]:
    """At most one of `words`."""
    from difflib import get_close_matches

    return get_close_matches(word, words, 1)
