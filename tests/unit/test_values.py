"""Values work as frozen dataclasses with slots, to which users may turn for them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pydantic
import pytest

from headgate import (
    Concurrency,
    LimitStatus,
    QueueLength,
    Quota,
    Rate,
    Refusal,
    Status,
    Waiting,
    Window,
)

LIMIT = LimitStatus("Window", "requests", 5, 1, 4, Window(5, per=1))
VALUES = [
    *(
        Concurrency(5),
        Rate(5, per=1),
        Window(5, per=1),
        Quota(5, per=1),
        LIMIT,
        QueueLength("api", None, 2),
        Refusal(1.5),
    ),
    *(Status("api", (LIMIT,), 0, 0.0), Waiting(0, None)),
]


class Named(Window):
    """A user's class."""

    def __init__(self, name: str) -> None:
        super().__init__(5, per=1)
        self.name = name


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_the_sum_of_its_fields(value: Any) -> None:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    made = type(value)(**fields)
    assert made == value
    assert hash(made) == hash(value)
    assert type(value).__match_args__ == tuple(fields)
    assert dataclasses.replace(value) == value
    assert copy.deepcopy(value) == value
    assert all(pickle.loads(pickle.dumps(value, each)) == value for each in (0, 2, 5))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_fields_of_a_value_have_the_defaults_of_its_arguments(value: Any) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    arguments = inspect.signature(type(value)).parameters.values()
    assert defaults == {
        each.name: dataclasses.MISSING if each.default is each.empty else each.default
        for each in arguments
    }


def test_a_frozen_dataclass_may_be_a_subclass_of_a_limit() -> None:
    @dataclasses.dataclass(frozen=True)
    class Labelled(Rate):
        label: str = ""

    make: Any = Labelled  # mypy does not see the defaults of the inherited fields
    labelled = make(2.5, per=1, label="api")
    assert (labelled.capacity, labelled.label) == (3, "api")
    assert labelled != make(2.5, per=1)
    with pytest.raises(ValueError, match="amount must be at least 1"):
        make(-5, per=1)


def test_pydantic_builds_a_checked_limit() -> None:
    limit = pydantic.TypeAdapter(Rate)
    assert limit.validate_python({"amount": 5, "per": 1}) == Rate(5, per=1)
    with pytest.raises(pydantic.ValidationError, match="amount must be at least 1"):
        limit.validate_python({"amount": -5, "per": 1})


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_does_not_change(value: Any) -> None:
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(value, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(value, name)
    with pytest.raises(AttributeError):
        value.other = 1


def test_values_of_two_classes_differ() -> None:
    assert Refusal(None) != Waiting(0, None)
    assert Window(5, per=1) != Named("api")
    assert Window(5, per=1) != (5, 1, "requests", 0.0)


def test_a_value_shows_its_fields() -> None:
    assert repr(Concurrency(5)) == "Concurrency(capacity=5, lease=30.0, unit='permits')"
    assert repr(Named("api")) == "Named(amount=5, per=1, unit='requests', slack=0.0)"


def test_a_users_class_may_have_attributes_of_its_own() -> None:
    named = Named("api")
    named.name = "other"
    assert named.name == "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        named.amount = 6  # type: ignore[misc]


def test_the_limit_in_a_status_is_not_compared() -> None:
    assert LimitStatus("Window", "requests", 5, 1, 4) == LIMIT
    assert LimitStatus("Window", "requests", 5, 2, 3) != LIMIT
