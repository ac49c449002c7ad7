"""A status for people: the lines that `print(limiter.status())` shows, and the table of a
notebook.
"""

from __future__ import annotations

import copy
import pickle
from html.parser import HTMLParser
from inspect import cleandoc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import Concurrency, Limiter, LimitStatus, Status
from tests.processes import finished

HOSTILE = "\x1b[2J<b onclick='x'>\r\n\u202e\x00&amp; m\xe9tro"


def limit(kind: str, unit: str, used: int, capacity: int) -> LimitStatus:
    return LimitStatus(kind, unit, capacity, used, capacity - used)


def status(*limits: LimitStatus, name: str = "api", retry_after: float | None = 0.0) -> Status:
    return Status(name, limits, 0, retry_after)


# In a terminal


def test_each_limit_has_a_bar_in_aligned_columns() -> None:
    """A part is used, all, more after a cut and in a debt, nearly nothing, nearly all, nothing."""
    limits = (
        limit("Window", "requests", 40, 100),
        limit("Concurrency", "permits", 5, 5),
        limit("Concurrency", "permits", 7, 2),
        limit("Rate", "tokens", 5_000_120, 5_000_000),
        limit("Quota", "tokens", 1, 5_000_000),
        limit("Quota", "tokens", 4_999_999, 5_000_000),
        limit("Quota", "tokens", 0, 10),
    )

    shown = str(Status("api", limits, 1200, 12.34, 30.0))

    assert shown == cleandoc(
        """
        'api'
          [########............]         40 of       100 requests  Window
          [####################]          5 of         5 permits   Concurrency
          [####################]          7 of         2 permits   Concurrency, 5 over
          [####################]  5,000,120 of 5,000,000 tokens    Rate, 120 over
          [#...................]          1 of 5,000,000 tokens    Quota
          [###################.]  4,999,999 of 5,000,000 tokens    Quota
          [....................]          0 of        10 tokens    Quota
          1,200 waiting; a new caller could go in 12.3 s
          paused for 30 s
        """
    )


@pytest.mark.parametrize(("used", "marks"), [(0, "." * 20), (1, "#" * 20)])
def test_a_capacity_of_one_is_free_or_used(used: int, marks: str) -> None:
    shown = str(status(limit("Concurrency", "permits", used, 1)))
    assert shown.splitlines()[1] == f"  [{marks}]  {used} of 1 permits  Concurrency"


def test_a_status_without_limits_says_so() -> None:
    assert str(status()) == cleandoc(
        """
        'api'
          no limits declared yet
          0 waiting; a new caller could go at once
        """
    )


@pytest.mark.parametrize(
    ("retry_after", "turn"),
    [
        (0.0, "could go at once"),
        (0.000001, "could go in under 0.001 s"),
        (0.001, "could go in 0.001 s"),
        (0.25, "could go in 0.25 s"),
        (119.6, "could go in 120 s"),
        (150, "could go in 2.5 min"),
        (86_000, "could go in 23.9 h"),
        (86_400 * 3650, "could go in 3,650.0 d"),
        (None, "waits for a release"),
    ],
)
def test_a_status_says_when_a_new_caller_could_go(retry_after: float | None, turn: str) -> None:
    assert str(status(retry_after=retry_after)).endswith(f"\n  0 waiting; a new caller {turn}")


def test_a_debt_a_cut_and_a_pause_of_a_limiter_are_shown(name: str) -> None:
    limiter = Limiter(name, "100/hour", Concurrency(5))
    with limiter.acquire(30) as permit, limiter, limiter:
        permit.settle(requests=130)
        limiter.update("100/hour", Concurrency(1))
        limiter.pause(86_400)
        shown = str(limiter.status()).splitlines()

    assert shown[1:3] == [
        "  [####################]  132 of 100 requests  Window, 32 over",
        "  [####################]    3 of   1 permits   Concurrency, 2 over",
    ]
    assert shown[3].startswith("  0 waiting; a new caller could go in ")
    assert shown[4:] == ["  paused for 24.0 h"]
    assert repr(limiter).endswith(", paused for 24.0 h>")


def test_a_hostile_name_stays_on_its_line_and_sends_nothing_to_the_terminal() -> None:
    shown = str(status(name=HOSTILE)).splitlines()
    assert shown[0] == r'''"\x1b[2J<b onclick='x'>\r\n\u202e\x00&amp; m\xe9tro"'''
    assert len(shown) == 3


def test_a_long_name_loses_its_middle() -> None:
    shown = str(status(name=f"begin{'x' * 10_000}end")).splitlines()
    assert shown[0] == f"'begin{'x' * 23}...{'x' * 28}end'"


def test_a_terminal_without_unicode_shows_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    program = r"from headgate import Limiter; print(Limiter('m\xe9tro', '5/hour').status())"
    assert finished(program).startswith("'m\\xe9tro'\n  [....................]  0 of 5 requests")


# In a notebook


def test_a_notebook_shows_a_table_with_the_same_numbers() -> None:
    limits = (limit("Window", "requests", 40, 100), limit("Concurrency", "permits", 7, 5))

    shown = Status("api", limits, 3, None, 30.0)._repr_html_()

    assert shown.replace(' style="text-align: left"', "") == (
        '<div><table><caption style="text-align: left; color: inherit">&#x27;api&#x27;</caption>'
        '<tr><th scope="row">Window</th>'
        '<td aria-hidden="true"><meter max="100" value="40"></meter></td>'
        "<td>40 of 100 requests</td></tr>"
        '<tr><th scope="row">Concurrency</th>'
        '<td aria-hidden="true"><meter max="5" value="7"></meter></td>'
        "<td>7 of 5 permits, 2 over</td></tr></table>"
        "<div>3 waiting; a new caller waits for a release</div>"
        "<div>paused for 30 s</div></div>"
    )


def test_a_notebook_shows_a_hostile_name_as_text() -> None:
    shown = status(name=HOSTILE)._repr_html_()
    assert r"\x1b[2J&lt;b onclick=&#x27;x&#x27;&gt;\r\n\u202e\x00&amp;amp; métro" in shown
    assert "<div>no limits declared yet</div>" in shown


# Any status


class Tags(HTMLParser):
    """The tags of a text in HTML, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[object] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))


KINDS = st.sampled_from(["Concurrency", "Rate", "Window", "Quota"])
UNITS = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)
LIMITS = st.lists(st.builds(limit, KINDS, UNITS, st.integers(), st.integers()))
SECONDS = st.floats()


@given(st.text(), LIMITS, st.integers(), st.none() | SECONDS, SECONDS)
@example(HOSTILE, [limit("Rate", "requests", 3, 0)], -1, float("nan"), float("inf"))
def test_no_name_and_no_number_breaks_the_layout(
    name: str, limits: list[LimitStatus], waiting: int, retry_after: float | None, paused: float
) -> None:
    found = Status(name, tuple(limits), waiting, retry_after, paused)
    head, *lines = str(found).split("\n")

    assert head.isascii()
    assert head.isprintable()
    assert len(head) <= 64
    assert len(lines) == (len(limits) or 1) + (2 if paused else 1)
    assert len({(line.index("]"), line.index(" of ")) for line in lines[: len(limits)]}) <= 1
    shown = found._repr_html_()
    assert shown.isprintable()
    other = Status("other", tuple(limits), waiting, retry_after, paused)._repr_html_()
    assert Tags(shown).found == Tags(other).found


def test_a_status_stays_a_value() -> None:
    found = status(limit("Window", "requests", 40, 100))

    assert repr(found) == (
        "Status(name='api', limits=(LimitStatus(kind='Window', unit='requests', capacity=100, "
        "used=40, left=60, limit=None),), waiting=0, retry_after=0.0, paused=0.0)"
    )
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert len({found, copy.copy(found)}) == 1
    assert not hasattr(found, "__dict__")
