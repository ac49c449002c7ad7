"""The texts of the index, and of the members of a name: written and read again."""

from __future__ import annotations

import sys

import pytest

from headgate import Concurrency, Rate
from headgate.gate.compile import declaration
from headgate.stores.process_label import program
from headgate.stores.redis.protocol.index import (
    LABELS,
    MOST,
    NAMES,
    Label,
    living,
    parse_label,
    write_label,
    write_names,
)
from headgate.stores.redis.protocol.members import session_of, units_of

CLIENT = "5f" * 16
LONGEST_IN_A_LIST = 64  # characters: zset-max-listpack-value of Redis, if unsaid


def read_back(label: Label) -> Label:
    [member] = write_label(f"{CLIENT}.3s", label).members
    assert len(member) <= LONGEST_IN_A_LIST
    beginning, found = parse_label(member)
    assert beginning == CLIENT[:12]
    return found


@pytest.mark.parametrize(
    "label",
    [Label("web-1", 1, "celery"), Label("a b\n", 4_194_304, "☃.py"), Label("%", 7, "a%:{")],
    ids=str,
)
def test_a_label_is_read_as_it_was_written(label: Label) -> None:
    assert read_back(label) == label


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("payments-api-production-7d9f8b6c5d-x2k4q", "production-7d9f8b6c5d-x2k4q"),
        ("ip-10-0-1-23.eu-west-1.compute.internal", "ip-10-0-1-23"),
        ("web-1.eu.example.com", "web-1.eu.example.com"),
        ("é" * 40, "é" * 4),
        ("\udc80", "?"),
    ],
    ids=ascii,
)
def test_a_long_host_keeps_the_part_that_tells_it_apart(host: str, shown: str) -> None:
    assert read_back(Label(host, 4_194_304, "a-very-long-program-name.py")).host.endswith(shown)


def test_a_label_goes_to_one_of_several_keys_and_then_to_that_one() -> None:
    assert write_label(CLIENT, Label("h", 1, "p")).keys == LABELS
    assert write_label(CLIENT, Label("h", 1, "p"), (LABELS[5],)).words[:2] == ("1", LABELS[5])


def test_names_travel_in_calls_of_bounded_size() -> None:
    names = [f"n{number}" for number in range(2 * MOST + 1)]
    calls = write_names(names)
    assert [len(call.members) for call in calls] == [MOST, MOST, 1]
    assert [name for call in calls for name in call.members] == names
    assert {call.words[:2] for call in calls} == {("1", NAMES)}


def test_a_member_lives_until_its_score() -> None:
    assert living([b"a", b"99", b"b", b"100", b"c", b"101"], 100) == ["c"]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/srv/app/worker.py", "-v"], "worker.py"),
        (["/usr/bin/celery"], "celery"),
        (["/srv/app/fleet/__main__.py"], "fleet"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
    ids=str,
)
def test_a_program_is_named_as_its_user_started_it(
    argv: list[str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert program() == shown


@pytest.mark.parametrize(
    ("asked", "units"),
    [
        ("-", {"permits": 1}),
        ("tokens=900", {"permits": 1, "tokens": 900}),
        ("permits=2,tokens=0", {"permits": 2}),
    ],
)
def test_a_member_has_the_cost_of_its_acquire(asked: str, units: dict[str, int]) -> None:
    declared = declaration([Concurrency(5), Rate(1000, per=1, unit="tokens")])
    for member in (f"{CLIENT}.1:7:{asked}", f"+{CLIENT}.1:7:{asked}"):
        assert units_of(member, declared) == units
        assert session_of(member) == f"{CLIENT}.1"
