"""Each documented answer of each provider is read as its row in answers.py says.

Altered answers raise nothing, take no longer, and give no absurd values.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headgate import Limiter
from headgate.http import budget_headers, header_values
from headgate.http.rate_limit_headers import Answer, read
from tests.http.answer_rows import NOW, Row
from tests.http.answers import PAGE, PROVIDERS, ROWS, with_table
from tests.http.clients import CLIENTS
from tests.http.service import Service
from tests.world import soon, until, used

LONGEST_READING = 0.25  # seconds of the processor, for one answer of any size


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_a_documented_answer_is_read_as_the_table_says(row: Row) -> None:
    assert row.read() == row.reading


def test_the_ids_of_the_rows_are_unique() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_the_page_has_the_table() -> None:
    """If it does not: `python -m tests.http.answers` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page)


# Altered answers ---------------------------------------------------------------------------------

NAMES = sorted({name for row in ROWS for name in row.headers})
TEXTS = [
    *("", " ", "-1", "0", "1e400", "nan", "inf", "1_0", "٣", "\udc80", "\x00", "9" * 30, "1, 2"),
    *("30, 30", "1h" * 40, "0.000000001", "999999999", "1000000000000000", "1;w=1;w=2", "a" * 300),
    *("Mon, 31 Feb 2026 00:00:00 GMT", "9999-12-31T23:59:59Z", "Sat, 21 Nov 2026 18:31:00 -2400"),
    *('"a";r=0;t=999999999999999', '"a";q=1;w=300000000', "limit=1, limit=2", "?1", ":YWJj:"),
    *("12ms" * 1000, "9," * 4000, '"a";q=1,' * 1000, "," * 9000),
]
VALUES = [
    *("null", "true", "[]", "{}", '""', "-1", "1e999", "9" * 400, "9" * 5000, '"34s"', '"-34s"'),
    *("[" * 5000, '{"a":' * 5000, "[" + "{}," * 5000 + "{}]", '"' + "9h" * 5000 + '"'),
]
STATUSES = [200, 201, 302, 400, 401, 402, 403, 404, 408, 420, 429, 430, 500, 503, 504, 529]


class Lines:
    """Header lines, of which several may have one name."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        self._lines = lines

    def items(self) -> list[tuple[str, str]]:
        return self._lines


def altered(provider: str, count: int) -> Iterator[tuple[int, Lines, str, str]]:
    """Each a documented answer with some changes: status, headers, body and host."""
    chance = random.Random(provider)
    rows = [row for row in ROWS if row.provider == provider]
    for _ in range(count):
        row = chance.choice(rows)
        lines, body, status = list(row.headers.items()), row.text, row.status
        for _ in range(chance.randint(1, 4)):
            lines = alter_lines(lines, chance)
            body = alter_body(body, chance) if chance.random() < 0.5 else body
            status = chance.choice(STATUSES) if chance.random() < 0.2 else status
        yield status, Lines(lines), body, row.host


def alter_lines(lines: list[tuple[str, str]], chance: random.Random) -> list[tuple[str, str]]:
    lines = list(lines)
    name, value = chance.choice(lines) if lines else (chance.choice(NAMES), "1")
    kind = chance.randrange(5)
    if kind == 0:
        lines.append((name, chance.choice(TEXTS)))
    elif kind == 1:
        lines.append((chance.choice(NAMES), value))
    elif kind == 2 and lines:
        lines.remove((name, value))
    else:
        lines = [(each, spliced(text, chance) if each == name else text) for each, text in lines]
    return lines


def spliced(text: str, chance: random.Random) -> str:
    """The text with a part cut out, doubled, or replaced."""
    start, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
    middle = chance.choice(
        ["", text[start:end] * 2, chance.choice(TEXTS), chr(chance.randrange(256))]
    )
    return text[:start] + middle + text[end:]


def alter_body(body: str, chance: random.Random) -> str:
    if not body:
        return chance.choice(VALUES)
    numbers = [index for index, letter in enumerate(body) if letter in '0123456789"[{']
    if chance.random() < 0.5 and numbers:
        index = chance.choice(numbers)
        return body[:index] + chance.choice(VALUES) + body[index + 1 :]
    return spliced(body, chance)


def assert_plausible(answer: Answer) -> None:
    spans = [answer.retry_after, *(each for budget in answer.budgets for each in spans_of(budget))]
    for span in spans:
        assert span is None or (math.isfinite(span) and 0 <= span < header_values.LONGEST)
    counts = [answer.cost, *(each for budget in answer.budgets for each in counts_of(budget))]
    assert all(count is None or (type(count) is int and 0 <= count < 2**53) for count in counts)
    assert answer.retry_after is None or answer.verdict in ("throttled", "overloaded")
    assert len(answer.budgets) <= budget_headers.MOST_BUDGETS
    hash(answer)


def spans_of(budget: Any) -> list[float | None]:
    return [budget.reset, budget.per, budget.next]


def counts_of(budget: Any) -> list[int | None]:
    return [budget.limit, budget.remaining]


def assert_read_safely(status: int, headers: Lines, body: str, host: str = "") -> None:
    """A collection of garbage looks through all objects of the process, so none comes meanwhile."""
    gc.disable()
    try:
        began = time.process_time()
        answer = read(status, headers, body, now=NOW, host=host)
        took = time.process_time() - began
    finally:
        gc.enable()
    assert took < LONGEST_READING, (status, headers.items()[:3], body[:1000])
    assert_plausible(answer)


def read_altered(provider: str, count: int) -> None:
    for answer in altered(provider, count):
        assert_read_safely(*answer)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_altered_answers_are_read_safely(provider: str) -> None:
    read_altered(provider, 20)


@pytest.mark.proof("alters answers a thousand times")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_thousand_altered_answers_are_read_safely(provider: str) -> None:
    read_altered(provider, 1000)


# Long answers ------------------------------------------------------------------------------------

LONG = 10_000_000
MANY_QUOTAS = ",".join(str(number) for number in range(1600))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([("retry-after", "1h" * (LONG // 2))], ""),
        ([("retry-after", "9" * LONG)], ""),
        ([("retry-after", "A" * LONG)], ""),
        ([("retry-after", "," * LONG)], ""),
        ([("date", "Sat, " * (LONG // 5))], ""),
        ([("x-ratelimit-reset-requests", "1h" * (LONG // 2))], ""),
        ([("x-ratelimit-limit", "9;w=1," * (LONG // 6))], ""),
        ([("x-ratelimit-limit-" + "a-" * (LONG // 2), "9")], ""),
        ([("anthropic-" + "a-" * (LONG // 2) + "limit", "9")], ""),
        ([("ratelimit-policy", '"a";q=1,' * (LONG // 8))], ""),
        ([("ratelimit-policy", '"a";q=1,' * 1000)], ""),
        ([("ratelimit-policy", MANY_QUOTAS), ("beta-ratelimit-policy", MANY_QUOTAS)], ""),
        ([("ratelimit", '"' + "\\" * 8000)], ""),
        ([("ratelimit", "(" * 8000)], ""),
        ([("ratelimit-policy", "a;" + "b;" * 4000)], ""),
        ([("retry-after", str(number)) for number in range(100_000)], ""),
        ([(f"x-ratelimit-limit-{number}", "9") for number in range(100_000)], ""),
        ([], "[" * LONG),
        ([], "[" * 1_000_000),
        ([], '{"a":' * 200_000),
        ([], "9" * 1_000_000),
        ([], '{"retry_after": ' + "9" * 900_000 + "}"),
        ([], '{"errors": [' + "{}," * 300_000 + "{}]}"),
        ([], '{"error": {"details": [{"retryDelay": "' + "1h" * 400_000 + '"}]}}'),
        ([], '{"error": {"message": "' + "İ" * 400_000 + '"}}'),
        ([], "<Code>" * 160_000),
        ([], "<Code>" + "a" * 900_000),
    ],
)
@pytest.mark.parametrize("status", [200, 400, 429])
def test_a_long_answer_takes_no_longer(
    status: int, headers: list[tuple[str, str]], body: str
) -> None:
    assert_read_safely(status, Lines(headers), body)


# Real clients ------------------------------------------------------------------------------------

THROTTLED = '{"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}'
RETRY_INFO = '[{"error": {"details": [{"retryDelay": "34s"}]}}]'


@pytest.mark.parametrize(
    ("status", "headers", "body", "wait"),
    [
        (429, {}, '{"parameters": {"retry_after": 35}}', 35),
        (429, {}, RETRY_INFO, 34),
        (400, {"x-amz-retry-after": "20000"}, THROTTLED, 20),
        (400, {"Retry-After": "20"}, '{"__type": "ValidationException"}', 0),
        (429, {"Retry-After": "60"}, '{"policyName": "DAILY"}', 0),
    ],
)
@pytest.mark.parametrize("kind", sorted(CLIENTS.keys() - {"aiohttp"}))
async def test_a_client_applies_the_body_of_a_refusal(
    clients: Callable[..., Any],
    service: Service,
    name: str,
    store: Any,
    status: int,
    headers: dict[str, str],
    body: str,
    wait: int,
) -> None:
    """Not aiohttp, which leaves the reading of bodies to its caller."""
    limiter = Limiter(name, "1000/hour", store=store)
    service.answers = [(status, headers, body)]

    assert await soon(clients(limiter).get(f"{service.url}/says")) == status

    await limiter.aflush()
    assert (await limiter.astatus()).retry_after == pytest.approx(wait, abs=1)


async def test_points_are_settled_by_the_cost_in_the_answer(
    service: Service, name: str, store: Any
) -> None:
    """As docs/http.md shows it, with a real answer of status 200."""
    limiter = Limiter(name, "5000 points/hour", store=store)
    body = '{"data": {"rateLimit": {"cost": 6, "limit": 5000, "remaining": 4994}}}'
    service.answers = [(200, {}, body)]

    client = httpx.AsyncClient(base_url=service.url)
    async with client, limiter.acquire(points=10) as permit:
        response = await client.post("/says")
        answer = read(response.status_code, response.headers, response.content)
        assert answer.cost is not None
        permit.settle(points=answer.cost)

    assert used(await until(lambda status: used(status) == [6], limiter)) == [6]
