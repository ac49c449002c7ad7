"""Subclasses of a limiter: they are made, copied and pickled like the limiter, with any arguments
of their `__init__`.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Semaphore, TokenBucket

URL = "redis://localhost:6379"
STORES = pytest.mark.parametrize("store", [None, URL])


class Service(Limiter):
    """Takes its limits from a plan, and keeps it."""

    __slots__ = ("__secret", "plan")

    def __init__(self, plan: str, store: str | None) -> None:
        super().__init__(f"service-{plan}", Concurrency(3), store=store)
        self.plan = plan
        self.__secret = plan.upper()

    def secret(self) -> str:
        return self.__secret


class Tagged(Limiter):
    """Has a `__dict__`."""

    def __init__(self, *, tag: str, store: str | None) -> None:
        super().__init__(tag, "5/second", store=store)
        self.tags = [tag]


class Gate(Semaphore):
    def __init__(self, *, store: str | None) -> None:
        super().__init__("gate", 2, store=store)
        self.opened = 7


class Tokens(TokenBucket):
    def __init__(self, *, store: str | None) -> None:
        super().__init__("tokens", 2, 1.0, 1, store=store)
        self.opened = 7


made: list[type[Any]] = []


class Listed(Limiter):
    """Its `__init_subclass__` takes an argument."""

    def __init_subclass__(cls, *, team: str) -> None:
        super().__init_subclass__()
        made.append(cls)


class Team(Listed, team="blue"):
    pass


@STORES
def test_a_subclass_whose_init_takes_other_arguments_is_pickled_with_its_attributes(
    store: str | None,
) -> None:
    service, tagged = Service("gold", store), Tagged(tag="x", store=store)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        other, its = (pickle.loads(pickle.dumps(each, protocol)) for each in (service, tagged))

        assert (other.name, other.limits, other.plan, other.secret()) == (
            service.name,
            service.limits,
            "gold",
            "GOLD",
        )
        assert (its.name, its.limits, its.tags) == ("x", tagged.limits, ["x"])
        assert [type(other), type(its)] == [type(service), type(tagged)]


@STORES
def test_an_attached_subclass_and_a_key_of_one_are_pickled(store: str | None) -> None:
    attached, key = Service.attach("service-gold", store=store), Service("gold", store)["k"]

    assert (pickle.loads(pickle.dumps(attached)).name, pickle.loads(pickle.dumps(key)).key) == (
        "service-gold",
        "k",
    )
    assert type(pickle.loads(pickle.dumps(attached))) is type(attached)


@pytest.mark.parametrize("kind", [Gate, Tokens])
@STORES
def test_a_subclass_of_a_classic_is_pickled_as_itself(kind: type[Any], store: str | None) -> None:
    limiter = kind(store=store)

    other = pickle.loads(pickle.dumps(limiter))

    assert (type(other), other.name, other.opened) == (type(limiter), limiter.name, 7)
    assert other._terms == limiter._terms
    assert copy.copy(limiter) is limiter


def test_an_attribute_that_cannot_be_pickled_is_an_error_at_the_dump() -> None:
    tagged = Tagged(tag="x", store=None)
    tagged.tags = lambda: None  # type: ignore[assignment]

    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(tagged)


@STORES
def test_a_subclass_may_take_arguments_of_a_class(store: str | None) -> None:
    """And its own `__init_subclass__` runs for the user's classes alone."""
    limiter = Team("team", "5/second", store=store)

    assert made == [Team]
    assert isinstance(limiter, Team)
    assert type(pickle.loads(pickle.dumps(limiter))) is type(limiter)


class Empty(Limiter):
    def __len__(self) -> int:
        return 0


def test_a_limiter_that_is_false_can_be_entered(name: str, redis_url: str) -> None:
    limiter = Empty(name, Concurrency(1), store=redis_url)
    with limiter:
        assert limiter.status().limits[0].used == 1
