"""The documented answers of each provider, and how headgate reads them: one table.

test_answers.py runs each row, and docs/answers.md shows them. After a change, write the page anew:
`python -m tests.http.answers`.
"""

from __future__ import annotations

from pathlib import Path

from headgate.http.rate_limit_headers import Answer, Budget
from tests.http.answer_rows import Row
from tests.http.answers_of_models import CLOUDS, LANGUAGE_MODELS
from tests.http.answers_of_servers import FORMS
from tests.http.answers_of_services import SERVICES

PAGE = Path(__file__).parents[2] / "docs/answers.md"
BEGIN, END = "<!-- answers -->\n", "<!-- end of answers -->\n"
ROWS = [*LANGUAGE_MODELS, *CLOUDS, *SERVICES, *FORMS]
PROVIDERS = sorted({row.provider for row in ROWS})

# The page ----------------------------------------------------------------------------------------


def table() -> str:
    lines = ["| provider | answer | headgate reads | source |", "|---|---|---|---|"]
    lines += [
        f"| {row.provider} | {cell(row)} | {describe(row.reading)} | {row.source} |" for row in ROWS
    ]
    return "\n".join(lines) + "\n"


def cell(row: Row) -> str:
    parts = [
        f"{row.form}: `{row.status}`",
        *(f"`{name}: {value}`" for name, value in row.headers.items()),
    ]
    if row.host:
        parts.append(f"from `{row.host}`")
    if row.text:
        parts.append(f"`{row.text}`")
    return "<br>".join(parts)


def describe(answer: Answer) -> str:
    parts = [f"**{answer.verdict}**"]
    if answer.retry_after is not None:
        parts[0] += f", {number(answer.retry_after)} s"
    if answer.scope != "key":
        parts.append(f"scope: {answer.scope}")
    if answer.cost is not None:
        parts.append(f"cost: {answer.cost}")
    return "<br>".join([*parts, *map(describe_budget, answer.budgets)])


def describe_budget(budget: Budget) -> str:
    left = "?" if budget.remaining is None else number(budget.remaining)
    text = f"{budget.name}: " if budget.name else ""
    text += f"{left} of {'?' if budget.limit is None else number(budget.limit)} {budget.unit}"
    if budget.per is not None:
        text += f" per {number(budget.per)} s"
    if budget.reset is not None:
        text += f", {'full' if budget.gradual else 'reset'} in {number(budget.reset)} s"
    return f"`{text}`"


def number(value: float) -> str:
    return f"{value:,.15g}"


def with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
