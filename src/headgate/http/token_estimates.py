"""What a call to a language model will cost, learned from what calls have cost: by model, in this process.

Pure: numbers come in and go out; no client, no clock, no store. Nothing here is locked: what is known of a model is one value,
replaced as a whole, so that it may be learned in any thread, in a finalizer too. Who loses a race loses one observation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, TypeAlias

CHARACTERS_PER_TOKEN = 4  # of English text, by the providers' own rule of thumb
FIRST_OUTPUT = 512  # tokens that an answer is taken for while none of its model has been seen
SHARE = 0.9  # of the answers that are to take no more than their estimate
RECENT = 64  # calls by which a model is judged; older ones are forgotten
FORGET = 1 / 8  # of what is known of a model's input, with each call
PRIOR = 400  # characters by which the rule of thumb weighs in before there is anything else

Pair: TypeAlias = tuple[int, int]  # estimated, used


class Known(NamedTuple):
    """Of one model: sums that fade, and the latest calls."""

    calls: int = 0
    characters: float = PRIOR
    tokens: float = PRIOR / CHARACTERS_PER_TOKEN
    inputs: tuple[Pair, ...] = ()
    outputs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of one model, and how wrong the estimates of its latest 64 calls were.

    `calls`: of how many it was learned. `tokens_per_character`: of input. `output`: tokens that the next answer is taken for.
    `input_error`, `output_error`: how far the estimates were off, as a share of the tokens used (0.1: a tenth). `exceeded`: the
    share of answers that took more than estimated; about a tenth is meant. None where no call has said.
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
        ratio = f"input {self.tokens_per_character:.2f} tokens a character ({percent(self.input_error)} off)"
        output = f"output {self.output} tokens ({percent(self.output_error)} off, {percent(self.exceeded)} took more)"
        return f"{self.model}: {calls}, {ratio}, {output}"


class Estimates:
    """Estimates of what calls will cost, by model, which get better with each call that says what it did cost.

        estimates = Estimates()
        client = limit(AsyncOpenAI(), llm, estimates=estimates)
        print(estimates)                                     # what was learned, and how far off it was

    Input: characters by a ratio, four to a token at first; then tokens over characters, both as moving averages in which each call
    weighs an eighth (exponential smoothing: S. W. Roberts, Control chart tests based on geometric moving averages, 1959; an eighth
    as in V. Jacobson, Congestion avoidance and control, 1988).
    Output: what nine of ten of the latest 64 answers stayed within, the smallest such number that was seen (a sample quantile:
    R. J. Hyndman and Y. Fan, Sample quantiles in statistical packages, 1996, definition 1); 512 tokens before the first answer,
    and never more than the call allows by its `max_tokens`.

    Several clients may share one; it may be used from any thread. It lives in this process and holds no text.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def input(self, model: str, characters: int) -> int:
        """Tokens of so many characters, at least one."""
        known = self._known.get(model, Known())
        return max(1, round(characters * known.tokens / known.characters))

    def output(self, model: str, most: int | None = None) -> int:
        """Tokens of an answer that may have `most`."""
        expected = quantile([used for _, used in self._known.get(model, Known()).outputs])
        return expected if most is None else min(expected, most)

    def learn_input(self, model: str, characters: int, estimated: int, used: int) -> None:
        """Say what became of an estimate."""
        known = self._known.get(model, Known())
        self._known[model] = known._replace(
            calls=known.calls + 1,
            characters=known.characters * (1 - FORGET) + characters,
            tokens=known.tokens * (1 - FORGET) + used,
            inputs=latest(known.inputs, (estimated, used)),
        )

    def learn_output(self, model: str, estimated: int, used: int) -> None:
        """The same for an answer."""
        known = self._known.get(model, Known())
        self._known[model] = known._replace(outputs=latest(known.outputs, (estimated, used)))

    def status(self) -> tuple[Learned, ...]:
        """What is known, by model in the order in which they were met."""
        return tuple(learned(model, known) for model, known in self._known.copy().items())

    def __repr__(self) -> str:
        return f"<Estimates of {'; '.join(map(str, self.status())) or 'no model yet'}>"


def learned(model: str, known: Known) -> Learned:
    output = quantile([used for _, used in known.outputs])
    more = [used > estimated for estimated, used in known.outputs]
    exceeded = sum(more) / len(more) if more else None
    ratio = known.tokens / known.characters
    return Learned(
        model, known.calls, ratio, output, error(known.inputs), error(known.outputs), exceeded
    )


def latest(pairs: tuple[Pair, ...], pair: Pair) -> tuple[Pair, ...]:
    return (*pairs, pair)[-RECENT:]


def quantile(numbers: Iterable[int]) -> int:
    """The smallest of these numbers that so many of them do not exceed."""
    ordered = sorted(numbers)
    return ordered[ceil(SHARE * len(ordered)) - 1] if ordered else FIRST_OUTPUT


def error(pairs: tuple[Pair, ...]) -> float | None:
    """All differences, over all that was used."""
    used = sum(used for _, used in pairs)
    return sum(abs(estimated - used) for estimated, used in pairs) / used if used else None


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
