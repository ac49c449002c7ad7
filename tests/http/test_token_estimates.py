"""Estimates of calls: learned from calls, forgotten in time, with their errors in the open."""

from __future__ import annotations

import gc
import random

import pytest

from headgate.http.token_estimates import FIRST_OUTPUT, Estimates


def test_the_first_estimate_is_a_rule_of_thumb() -> None:
    estimates = Estimates()

    assert estimates.input("m", 4000) == 1000
    assert estimates.input("m", 0) == 1
    assert estimates.output("m") == FIRST_OUTPUT
    assert repr(estimates) == "<Estimates of no model yet>"


def test_an_output_estimate_is_at_most_the_limit_of_the_call() -> None:
    estimates = Estimates()
    assert estimates.output("m", 100) == 100
    for _ in range(10):
        estimates.learn_output("m", 100, 30)

    assert estimates.output("m", 4096) == 30
    assert estimates.output("m", 20) == 20


def test_the_ratio_of_input_is_learned_within_a_few_calls() -> None:
    """With three characters to a token, the estimate is right to a tenth after 16 calls."""
    estimates = Estimates()
    for _ in range(16):
        estimates.learn_input("m", 3000, estimates.input("m", 3000), 1000)

    assert estimates.input("m", 3000) == pytest.approx(1000, rel=0.1)
    assert estimates.input("another", 3000) == 750


def test_nine_of_ten_answers_take_no_more_than_their_estimate() -> None:
    """The lengths are random and differ a hundredfold; about a tenth takes more."""
    estimates, chance = Estimates(), random.Random(1)
    more = 0
    for _ in range(2000):
        used, estimated = round(chance.lognormvariate(5, 1)), estimates.output("m")
        estimates.learn_output("m", estimated, used)
        more += used > estimated

    assert 0.06 < more / 2000 < 0.14


def test_old_calls_are_forgotten() -> None:
    estimates = Estimates()
    for used in [5000] * 100 + [10] * 64:
        estimates.learn_output("m", 0, used)

    assert estimates.output("m") == 10


def test_errors_are_reported_as_shares_of_the_used_tokens() -> None:
    """Estimates of 100 for 80 and for 120 are a fifth off, and one of two was exceeded."""
    estimates = Estimates()
    for used in (80, 120):
        estimates.learn_input("m", 400, 100, used)
        estimates.learn_output("m", 100, used)

    (learned,) = estimates.status()
    assert (learned.model, learned.calls, learned.output) == ("m", 2, 120)
    assert (learned.input_error, learned.output_error, learned.exceeded) == (0.2, 0.2, 0.5)
    assert (
        str(learned) == "m: 2 calls, input 0.25 tokens a character (20% off), "
        "output 120 tokens (20% off, 50% took more)"
    )


def test_a_model_without_outputs_has_no_output_error() -> None:
    estimates = Estimates()
    estimates.learn_input("m", 400, 100, 100)

    assert repr(estimates).endswith(
        "m: 1 call, input 0.25 tokens a character (0% off), output 512 tokens (- off, - took more)>"
    )
    assert estimates.status()[0].exceeded is None


def test_a_finalizer_may_learn() -> None:
    """The collector runs it in the middle of an estimate, and nothing is locked."""
    estimates = Estimates()

    class Late:
        def __del__(self) -> None:
            estimates.learn_output("m", 1, 1)

    for _ in range(100):
        late = Late()
        late.itself = late  # type: ignore[attr-defined]
        del late
        estimates.learn_output("m", 1, 1)
        assert estimates.output("m") == 1
    gc.collect()


def test_attachments_are_learned_by_kind() -> None:
    """A call of two kinds divides its tokens between them, in proportion to their estimates."""
    estimates = Estimates()
    for used in (700, 700, 700):
        estimates.learn_input("m", 0, 0, 2 * used, {"picture": 2})

    estimates.learn_input("m", 0, 0, 7400, {"picture": 1, "file": 1})

    (learned,) = estimates.status()
    assert learned.attachments == {"picture": 1400, "file": 6000}
    assert estimates.input("m", 0, {"sound": 1}) == 500
    assert "0.25 tokens a character, a picture 1400, a file 6000 (" in str(learned)


def test_a_call_with_hidden_context_teaches_two_tokens_a_character_at_most() -> None:
    """Without a bound, these calls would say a hundred. The rule of thumb keeps its weight."""
    estimates = Estimates()
    for _ in range(100):
        estimates.learn_input("m", 10, 3, 1000)

    assert estimates.input("m", 4000) < 2500


def test_attachments_of_no_tokens_are_learned() -> None:
    estimates = Estimates()
    for _ in range(3):
        estimates.learn_input("m", 4000, 1000, 100, {"picture": 3, "file": 1})

    assert estimates.status()[0].attachments == {"picture": 0, "file": 0}
    estimates.learn_input("m", 0, 0, 400, {"picture": 3, "file": 1})
    assert estimates.status()[0].attachments == {"picture": 100, "file": 100}
