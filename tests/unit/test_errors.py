"""The errors: their family, their attributes, and that they survive the way to another process."""

from __future__ import annotations

import copy
import pickle

import pytest

from headgate import errors
from headgate.errors import (
    CostExceedsCapacityError,
    HeadgateError,
    LeaseLostError,
    LimiterClosedError,
    MaxSleepExceededError,
    QueueFullError,
    RedisError,
    StoreError,
    UnknownLimiterError,
)

WITH_A_MOMENT = [MaxSleepExceededError, QueueFullError]
WITHOUT = [
    HeadgateError,
    CostExceedsCapacityError,
    UnknownLimiterError,
    LeaseLostError,
    LimiterClosedError,
    StoreError,
]
COPIES = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("kind", [*WITH_A_MOMENT, *WITHOUT])
def test_headgate_error_is_the_base_of_all_errors(kind: type[HeadgateError]) -> None:
    assert issubclass(kind, HeadgateError)
    assert issubclass(kind, Exception)


def test_errors_for_not_now_never_too_late_and_unknown_are_distinct_types() -> None:
    """No handler for one of them catches another: each asks for something else from the caller."""
    apart = [MaxSleepExceededError, CostExceedsCapacityError, LeaseLostError, StoreError]
    for kind in apart:
        assert [other for other in apart if issubclass(kind, other)] == [kind]


def test_a_full_queue_is_caught_by_code_that_knows_only_a_long_wait() -> None:
    with pytest.raises(MaxSleepExceededError) as caught:
        raise QueueFullError("Limiter('api'): 5 wait already, and max_waiters is 5.", 0.25)
    assert caught.value.retry_after == 0.25


def test_a_cost_that_can_never_pass_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="never"):
        raise CostExceedsCapacityError(
            "acquire(11): more than the capacity of 10, so it can never pass."
        )


def test_redis_error_is_an_alias_of_store_error() -> None:
    assert RedisError is StoreError


@pytest.mark.parametrize("kind", WITH_A_MOMENT)
def test_the_message_is_the_text_and_the_moment_an_attribute(
    kind: type[MaxSleepExceededError],
) -> None:
    error = kind("acquire: the wait would be 3.5 s.", 3.5)
    assert str(error) == "acquire: the wait would be 3.5 s."
    assert error.retry_after == 3.5
    assert repr(error) == f"{kind.__name__}('acquire: the wait would be 3.5 s.', 3.5)"


def test_a_refusal_needs_a_retry_after() -> None:
    with pytest.raises(TypeError, match="retry_after"):
        MaxSleepExceededError("too long")  # type: ignore[call-arg]  # that is the mistake


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", WITH_A_MOMENT)
def test_a_copied_or_pickled_refusal_keeps_its_text_and_retry_after(
    kind: type[MaxSleepExceededError], way: str
) -> None:
    error = kind("too long", 1.5)
    error.add_note("in the nightly job")

    arrived = COPIES[way](error)

    assert type(arrived) is kind
    assert (str(arrived), arrived.retry_after) == ("too long", 1.5)
    assert arrived.__notes__ == ["in the nightly job"]


@pytest.mark.parametrize("way", COPIES)
def test_a_copied_or_pickled_queue_full_error_keeps_its_position(way: str) -> None:
    arrived = COPIES[way](QueueFullError("five wait already", 1.5, 5))

    assert (str(arrived), arrived.retry_after, arrived.position) == ("five wait already", 1.5, 5)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", WITHOUT)
def test_the_other_errors_keep_their_text_when_copied_or_pickled(
    kind: type[HeadgateError], way: str
) -> None:
    arrived = COPIES[way](kind("what went wrong"))
    assert type(arrived) is kind
    assert str(arrived) == "what went wrong"


def test_the_docstring_of_every_error_has_a_way_out() -> None:
    kinds = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, HeadgateError)
    }
    assert kinds == {*WITH_A_MOMENT, *WITHOUT}
    for kind in kinds - {HeadgateError}:
        assert "Way out:" in " ".join((kind.__doc__ or "").split()), kind
