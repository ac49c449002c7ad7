"""Estimates of the tokens that calls to a language model take, learned from the calls before.

Nothing is locked: the estimates of a model are one value, replaced as a whole, so any thread and
any finalizer may learn. Of two threads that learn at once, one observation may be lost. With a
store, processes share these values in the background. Otherwise there is no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from headgate.http.json_values import find_number, parse_object
from headgate.stores.registry import StoreLike, store_of

T = TypeVar("T")

KIND = "estimates"  # of the texts in a store
EVERY = 60.0  # seconds between two readings of a model, and between two writings
BEYOND = 2**53  # numbers from here on are not read

CHARACTERS_PER_TOKEN = 4  # of English text, by the providers' own rule of thumb
FIRST_OUTPUT = 512  # the estimate for a response before the first one of its model
SHARE = 0.9  # nine of ten responses should take at most their estimate
RECENT = 64  # calls from which a model's output is estimated; older ones are forgotten
FORGET = 1 / 8  # the share of a model's learned input that a call replaces
# The ratio of a model begins with so many assumed characters, so a short first call changes it
# little. A call of fewer than 50 characters replaces less than FORGET, in proportion to its length.
FIRST_CHARACTERS = 400
# No text has more tokens: a character has at most four bytes, and a token at least one. More tokens
# come from context that the request does not show.
MOST_PER_CHARACTER = 4
# The estimate for one attachment before the first one of its kind. "context" is text that the
# service adds: earlier responses, stored prompts, the results of its own tools.
FIRST_ATTACHED = MappingProxyType({"picture": 1000, "file": 3000, "sound": 500, "context": 1000})

Pair: TypeAlias = tuple[int, int]  # estimated, used
Attached: TypeAlias = Mapping[str, int]  # how many of each kind in FIRST_ATTACHED
NO_ATTACHMENTS: Attached = MappingProxyType({})


class Known(NamedTuple):
    """The latest calls of one model, and sums in which each older call weighs less."""

    calls: int = 0
    characters: float = FIRST_CHARACTERS
    tokens: float = FIRST_CHARACTERS / CHARACTERS_PER_TOKEN
    inputs: tuple[Pair, ...] = ()
    outputs: tuple[Pair, ...] = ()
    # The tokens of one attachment in each of the latest calls, by kind.
    attached: Mapping[str, tuple[float, ...]] = MappingProxyType({})

    @property
    def per_character(self) -> float:
        return self.tokens / self.characters

    def next_output(self) -> int:
        """Return the smallest number that a `SHARE` of the latest responses do not exceed."""
        return ceil(quantile((used for _, used in self.outputs), FIRST_OUTPUT))

    def next_attached(self, kind: str) -> float:
        """Return the same number for an attachment of this kind."""
        return quantile(self.attached.get(kind, ()), FIRST_ATTACHED[kind])

    def all_attached(self, attached: Attached) -> float:
        return sum(count * self.next_attached(kind) for kind, count in attached.items())


@dataclass(frozen=True, slots=True)
class Learned:
    """The estimates of one model, and how far off those of its latest 64 calls were.

    `calls`: how many calls they were learned from. `tokens_per_character`: of the input. `output`:
    the estimate for the next response. `input_error`, `output_error`: the errors, as a share of the
    tokens used (0.1: a tenth). `exceeded`: the share of responses that took more than estimated; a
    tenth is intended. None: no call has stated its usage yet. `attachments`: the estimate for one
    attachment, by kind: "picture", "file", "sound", or "context" that the service adds.
    """

    model: str
    calls: int
    tokens_per_character: float
    output: int
    input_error: float | None
    output_error: float | None
    exceeded: float | None
    attachments: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        wrong, over = format_share(self.output_error), format_share(self.exceeded)
        attached = "".join(f", a {kind} {size}" for kind, size in self.attachments.items())
        return (
            f"{self.model}: {calls}, input {self.tokens_per_character:.2f} tokens a character"
            f"{attached} ({format_share(self.input_error)} off), "
            f"output {self.output} tokens ({wrong} off, {over} took more)"
        )


class Estimates:
    """Estimates of the tokens that calls will take, by model. They improve with each call.

        estimates = Estimates()
        client = limit(AsyncOpenAI(), llm, estimates=estimates)
        print(estimates)                           # what was learned, and how far off it was

    Input: the characters times a ratio of tokens to characters, at first one to four. Tokens and
    characters are moving averages (exponential smoothing: Roberts, 1959). Each call weighs an
    eighth, as in Jacobson, Congestion avoidance and control, 1988. A text below 50 characters
    weighs less, in proportion to its length. Only calls with nothing but text teach the ratio. A
    call of more than four tokens a character teaches nothing. Pictures, files, sounds, and context
    that the service adds have an estimate for each kind. It is the smallest number of tokens that
    nine of ten of the latest 64 calls with this kind stayed within.
    Output: the smallest number that nine of ten of the latest 64 responses stayed within (a sample
    quantile: Hyndman and Fan, 1996, definition 1). It is 512 tokens before the first response, and
    at most the call's `max_tokens`.

    Several clients may share one object, in any thread. It holds no text of a call.
    `store`: on Redis, as in `Limiter`, processes share their knowledge of each model. A process
    reads it at its first call of a model, and writes its own at most once a minute. Both happen in
    the background, over a connection that is open for a moment. A model has a key of at most 8 kB,
    which lives for a day.
    """

    __slots__ = ("__weakref__", "_asked_at", "_known", "_texts", "_written_at")

    def __init__(self, store: StoreLike = None) -> None:
        self._known: dict[str, Known] = {}
        self._texts = store_of(store).texts
        self._asked_at: dict[str, float] = {}  # by model
        self._written_at: dict[str, float] = {}
        ALL.add(self)

    def _of(self, model: str) -> Known:
        """Return the knowledge of a model. If there is none, ask the store."""
        known = self._known.get(model)
        if known is None and self._texts is not None and begin_if_due(self._asked_at, model):
            self._texts.read_later(KIND, model, lambda text: self._adopt(model, text))
        return known or Known()

    def _adopt(self, model: str, text: str) -> None:
        """Begin with the knowledge of another process, if there is no own yet."""
        found = parse(text)
        if found is not None and model not in self._known:
            self._known[model] = found

    def _learn(self, model: str, known: Known) -> None:
        self._known[model] = known
        if self._texts is not None and begin_if_due(self._written_at, model):
            self._texts.write_later(KIND, model, write(known))

    def input(self, model: str, characters: int, attached: Attached = NO_ATTACHMENTS) -> int:
        """Estimate the tokens of so many characters and attachments, at least one."""
        known = self._of(model)
        return max(1, round(characters * known.per_character + known.all_attached(attached)))

    def output(self, model: str, most: int | None = None) -> int:
        """Estimate the tokens of a response that may have `most`."""
        expected = self._of(model).next_output()
        return expected if most is None else min(expected, most)

    def learn_input(
        self,
        model: str,
        characters: int,
        estimated: int,
        used: int,
        attached: Attached = NO_ATTACHMENTS,
    ) -> None:
        """Learn that an input estimated at `estimated` tokens took `used`."""
        known = self._of(model)
        known = known._replace(
            calls=known.calls + 1, inputs=append_recent(known.inputs, (estimated, used))
        )
        known = (
            learn_attached(known, characters, used, attached)
            if attached
            else learn_text(known, characters, used)
        )
        self._learn(model, known)

    def learn_output(self, model: str, estimated: int, used: int) -> None:
        """`learn_input` for a response."""
        known = self._of(model)
        outputs = append_recent(known.outputs, (estimated, used))
        self._learn(model, known._replace(outputs=outputs))

    def status(self) -> tuple[Learned, ...]:
        """Return the knowledge of each model, in the order of their first calls."""
        return tuple(summarize(model, known) for model, known in self._known.copy().items())

    def __repr__(self) -> str:
        return f"<Estimates of {'; '.join(map(str, self.status())) or 'no model yet'}>"


ALL: WeakSet[Estimates] = WeakSet()  # of this process, for headgate.telemetry


def begin_if_due(moments: dict[str, float], model: str) -> bool:
    """Return whether the last time is EVERY seconds ago. If so, note this one."""
    now = monotonic()
    due = now - moments.get(model, -inf) >= EVERY
    if due:
        moments[model] = now
    return due


def learn_text(known: Known, characters: int, used: int) -> Known:
    if used > MOST_PER_CHARACTER * characters:
        return known
    keep = 1 - min(FORGET, characters / FIRST_CHARACTERS)
    return known._replace(
        characters=known.characters * keep + characters, tokens=known.tokens * keep + used
    )


def learn_attached(known: Known, characters: int, used: int, attached: Attached) -> Known:
    """The tokens beyond the text are those of the attachments, in proportion to the estimates."""
    beyond = max(0.0, used - characters * known.per_character)
    sizes = {kind: max(1.0, known.next_attached(kind)) for kind in attached}
    share = beyond / sum(count * sizes[kind] for kind, count in attached.items())
    latest = {
        kind: append_recent(known.attached.get(kind, ()), share * size)
        for kind, size in sizes.items()
    }
    return known._replace(attached={**known.attached, **latest})


# In a store -------------------------------------------------------------------------------------


def write(known: Known) -> str:
    attached = {kind: [round(size) for size in sizes] for kind, sizes in known.attached.items()}
    return json.dumps({**known._asdict(), "attached": attached})


def parse(text: str) -> Known | None:
    """Read what `write` wrote. None: it is something else, such as that of another version."""
    found = parse_object(text)
    stated = (find_number(found, word) for word in ("calls", "characters", "tokens"))
    numbers = [number for number in stated if number is not None]
    inputs, outputs = (pairs_of(found.get(word)) for word in ("inputs", "outputs"))
    sizes = sizes_of(found.get("attached"))
    if len(numbers) < 3 or inputs is None or outputs is None or sizes is None:
        return None
    calls, characters, tokens = numbers
    if characters < 1:
        return None
    return Known(int(calls), characters, tokens, inputs, outputs, sizes)


def pairs_of(found: Any) -> tuple[Pair, ...] | None:
    if not (isinstance(found, list) and all(is_counts(each, 2) for each in found)):
        return None
    return tuple((estimated, used) for estimated, used in found[-RECENT:])


def sizes_of(found: Any) -> dict[str, tuple[int, ...]] | None:
    if not isinstance(found, dict):
        return None
    sizes = {kind: found[kind] for kind in FIRST_ATTACHED if found.get(kind)}
    if not all(is_counts(each) for each in sizes.values()):
        return None
    return {kind: tuple(each[-RECENT:]) for kind, each in sizes.items()}


def is_counts(found: Any, length: int | None = None) -> bool:
    return (
        isinstance(found, list)
        and length in (None, len(found))
        and all(type(number) is int and 0 <= number < BEYOND for number in found)
    )


# Summaries and quantiles -------------------------------------------------------------------------


def summarize(model: str, known: Known) -> Learned:
    more = [used > estimated for estimated, used in known.outputs]
    return Learned(
        model,
        known.calls,
        tokens_per_character=known.per_character,
        output=known.next_output(),
        input_error=relative_error(known.inputs),
        output_error=relative_error(known.outputs),
        exceeded=sum(more) / len(more) if more else None,
        attachments={kind: ceil(known.next_attached(kind)) for kind in known.attached},
    )


def append_recent(recent: tuple[T, ...], each: T) -> tuple[T, ...]:
    return (*recent, each)[-RECENT:]


def quantile(numbers: Iterable[float], otherwise: float) -> float:
    """Return the smallest of `numbers` that a `SHARE` of them do not exceed."""
    ordered = sorted(numbers)
    return ordered[ceil(SHARE * len(ordered)) - 1] if ordered else otherwise


def relative_error(pairs: tuple[Pair, ...]) -> float | None:
    used = sum(used for _, used in pairs)
    return sum(abs(estimated - used) for estimated, used in pairs) / used if used else None


def format_share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
