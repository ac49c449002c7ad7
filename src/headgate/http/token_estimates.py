"""Estimates of the tokens that calls to a language model take, learned from the calls before.

Pure, and nothing is locked: the estimates of a model are one value, replaced as a whole, so any
thread and any finalizer may learn. Of two threads that learn at once, one observation may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

CHARACTERS_PER_TOKEN = 4  # of English text, by the providers' own rule of thumb
FIRST_OUTPUT = 512  # the estimate for a response before the first one of its model
SHARE = 0.9  # nine of ten responses should take at most their estimate
RECENT = 64  # calls from which a model's output is estimated; older ones are forgotten
FORGET = 1 / 8  # of the learned input of a model, with each call
PRIOR = 400  # characters: the weight of the rule of thumb at the start

Pair: TypeAlias = tuple[int, int]  # estimated, used


class Known(NamedTuple):
    """The latest calls of one model, and sums in which each older call weighs less."""

    calls: int = 0
    characters: float = PRIOR
    tokens: float = PRIOR / CHARACTERS_PER_TOKEN
    inputs: tuple[Pair, ...] = ()
    outputs: tuple[Pair, ...] = ()

    def next_output(self) -> int:
        """Return the smallest number that a `SHARE` of the latest responses do not exceed."""
        ordered = sorted(used for _, used in self.outputs)
        return ordered[ceil(SHARE * len(ordered)) - 1] if ordered else FIRST_OUTPUT


@dataclass(frozen=True, slots=True)
class Learned:
    """The estimates of one model, and how far off those of its latest 64 calls were.

    `calls`: how many calls they were learned from. `tokens_per_character`: of the input. `output`:
    the estimate for the next response. `input_error`, `output_error`: the errors, as a share of the
    tokens used (0.1: a tenth). `exceeded`: the share of responses that took more than estimated; a
    tenth is intended. None: no call has stated its usage yet.
    """

    model: str
    calls: int
    tokens_per_character: float
    output: int
    input_error: float | None
    output_error: float | None
    exceeded: float | None

    def __str__(self) -> str:
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        wrong, over = format_share(self.output_error), format_share(self.exceeded)
        return (
            f"{self.model}: {calls}, input {self.tokens_per_character:.2f} tokens a character "
            f"({format_share(self.input_error)} off), "
            f"output {self.output} tokens ({wrong} off, {over} took more)"
        )


class Estimates:
    """Estimates of the tokens that calls will take, by model. They improve with each call.

        estimates = Estimates()
        client = limit(AsyncOpenAI(), llm, estimates=estimates)
        print(estimates)                           # what was learned, and how far off it was

    Input: the characters times a ratio of tokens to characters, at first one to four. Both are
    moving averages in which each call weighs an eighth (exponential smoothing: Roberts, 1959; an
    eighth as in Jacobson, Congestion avoidance and control, 1988).
    Output: the smallest number that nine of ten of the latest 64 responses stayed within (a sample
    quantile: Hyndman and Fan, 1996, definition 1). It is 512 tokens before the first response, and
    at most the call's `max_tokens`.

    Several clients may share one object, in any thread. It lives in this process and holds no text.
    """

    __slots__ = ("__weakref__", "_known")

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        ALL.add(self)

    def input(self, model: str, characters: int) -> int:
        """Estimate the tokens of so many characters, at least one."""
        known = self._known.get(model, Known())
        return max(1, round(characters * known.tokens / known.characters))

    def output(self, model: str, most: int | None = None) -> int:
        """Estimate the tokens of a response that may have `most`."""
        expected = self._known.get(model, Known()).next_output()
        return expected if most is None else min(expected, most)

    def learn_input(self, model: str, characters: int, estimated: int, used: int) -> None:
        """Learn that an input estimated at `estimated` tokens took `used`."""
        known = self._known.get(model, Known())
        self._known[model] = known._replace(
            calls=known.calls + 1,
            characters=known.characters * (1 - FORGET) + characters,
            tokens=known.tokens * (1 - FORGET) + used,
            inputs=append_recent(known.inputs, (estimated, used)),
        )

    def learn_output(self, model: str, estimated: int, used: int) -> None:
        """`learn_input` for a response."""
        known = self._known.get(model, Known())
        self._known[model] = known._replace(outputs=append_recent(known.outputs, (estimated, used)))

    def status(self) -> tuple[Learned, ...]:
        """Return the knowledge of each model, in the order of their first calls."""
        return tuple(summarize(model, known) for model, known in self._known.copy().items())

    def __repr__(self) -> str:
        return f"<Estimates of {'; '.join(map(str, self.status())) or 'no model yet'}>"


ALL: WeakSet[Estimates] = WeakSet()  # of this process, for headgate.telemetry


def summarize(model: str, known: Known) -> Learned:
    more = [used > estimated for estimated, used in known.outputs]
    return Learned(
        model,
        known.calls,
        tokens_per_character=known.tokens / known.characters,
        output=known.next_output(),
        input_error=relative_error(known.inputs),
        output_error=relative_error(known.outputs),
        exceeded=sum(more) / len(more) if more else None,
    )


def append_recent(pairs: tuple[Pair, ...], pair: Pair) -> tuple[Pair, ...]:
    return (*pairs, pair)[-RECENT:]


def relative_error(pairs: tuple[Pair, ...]) -> float | None:
    used = sum(used for _, used in pairs)
    return sum(abs(estimated - used) for estimated, used in pairs) / used if used else None


def format_share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
