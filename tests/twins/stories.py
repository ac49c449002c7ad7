"""How stories are made up: limits of every kind and mixture, and steps that like the edges."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headgate.gate.rules import program, rules_of
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.twins.driver import Story
from tests.twins.model import KEEP, WAITER

PERIODS = [1_000, 7_000, 333_333, 1_000_000, 60_000_000, 3_600_000_000]
UNITS = ["requests", "requests", "tokens"]
amounts = st.integers(1, 20)
seconds = st.sampled_from(PERIODS).map(lambda microseconds: microseconds / 1_000_000)


@st.composite
def rates(draw: st.DrawFn) -> Limit:
    amount, capacity, initial = draw(amounts), draw(st.none() | amounts), None
    if draw(st.booleans()):
        initial = draw(st.integers(0, capacity or amount))
    unit, slack = draw(st.sampled_from(UNITS)), draw(st.sampled_from([0, 0.0005]))
    return Rate(amount, draw(seconds), capacity, initial, draw(st.booleans()), unit, slack)


@st.composite
def windows(draw: st.DrawFn) -> Limit:
    slack = draw(st.sampled_from([0, 0.0005]))
    return Window(draw(amounts), draw(seconds), draw(st.sampled_from(UNITS)), slack)


@st.composite
def quotas(draw: st.DrawFn) -> Limit:
    per = draw(seconds)
    slack = draw(st.sampled_from([0, per / 10, per * 0.9]))
    anchor = draw(st.none() | st.sampled_from([0.25, 1_700_000_000, -5]))
    return Quota(draw(amounts), per, anchor, draw(st.sampled_from(UNITS)), slack)


def slots(units: list[str]) -> st.SearchStrategy[list[Limit]]:
    """One concurrency limit for each of `units`."""
    leases = st.sampled_from([0.02, 1, 30])
    return st.tuples(*(st.builds(Concurrency, st.integers(1, 6), leases, st.just(unit)) for unit in units)).map(list)


@st.composite
def programs(draw: st.DrawFn, most: int = 3) -> list[str]:
    """Declarations that follow one another under one name; what is held stays counted in the same units."""
    units = draw(st.sampled_from([[], [], ["permits"], ["mb"], ["permits", "mb"]]))
    counted = st.lists(rates() | windows() | quotas(), min_size=0 if units else 1, max_size=3)
    several = st.lists(st.tuples(counted, slots(units)), min_size=1, max_size=most)
    return [program(rules_of(draw(st.permutations([*rated, *held])))) for rated, held in draw(several)]


def deltas() -> st.SearchStrategy[int]:
    """Steps of time: tiny, about a period, about what the script remembers, and backwards."""
    edges = [*PERIODS, 50_000, 20_000, WAITER, KEEP, KEEP + WAITER, 30_000_000, 0]
    near = st.builds(lambda edge, by: edge // by[0] + by[1], st.sampled_from(edges), st.sampled_from([(1, 0), (1, 1), (1, -1), (10, 0), (3, 1)]))
    return near | near | st.integers(0, 2_000_000) | st.integers(-2_000_000, 0)


@st.composite
def asked(draw: st.DrawFn, smallest: int = 1) -> str:
    """Mostly what everybody takes, sometimes other costs; `mb=7` is more than most limits ever hold."""
    if smallest == 1 and draw(st.integers(0, 2)):
        return "-"
    units = draw(st.lists(st.sampled_from(["mb", "requests", "tokens"]), min_size=1, max_size=3, unique=True))
    return ",".join(f"{unit}={draw(st.integers(smallest, 7))}" for unit in sorted(units))


picks = st.integers(0, 11)
waits = st.none() | st.none() | st.sampled_from([0, 1, 1_000, 50_000, 1_000_000, 100_000_000])
acquires = st.tuples(st.just("acquire"), st.sampled_from([1, 1, 1, 2, 5]), asked(), waits, st.none() | st.none() | st.integers(0, 4))
errands = st.one_of(
    st.tuples(st.just("cancel"), picks, st.booleans()),
    st.tuples(st.just("cancel"), picks, st.just(True)),
    st.tuples(st.just("release"), picks),
    st.tuples(st.just("release"), picks),
    st.tuples(st.just("renew"), picks),
    st.tuples(st.just("settle"), picks, asked(-7)),
    st.tuples(st.just("status"), asked()),
)
whose = st.integers(0, 2)
calls = st.tuples(
    st.just("call"),
    whose,
    st.sampled_from([0, 50_000, 50_000, 1_000_000]),
    st.builds(lambda first, second: [*first, *second], st.lists(errands, max_size=2), st.lists(acquires, max_size=2)),
)
moves = st.one_of(
    st.tuples(st.just("time"), deltas()),
    st.tuples(st.just("to_head"), st.sampled_from([0, 0, -1, 1, -50_000])),
    st.tuples(st.just("to_grant"), picks, st.sampled_from([0, -1, 1])),
)
surprises = st.one_of(
    st.tuples(st.just("declare"), whose, st.integers(0, 2)),
    st.tuples(st.just("again"), whose, st.integers(0, 2)),
)
steps = st.one_of(calls, calls, calls, moves, moves, surprises)


def plain(value: Any) -> Any:
    """As JSON keeps it."""
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def stories(most: int = 40) -> st.SearchStrategy[Story]:
    return st.fixed_dictionaries({"programs": programs(), "steps": st.lists(steps, min_size=2, max_size=most).map(plain)})
