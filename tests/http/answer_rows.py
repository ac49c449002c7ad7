"""A row of the table in answers.py: an answer of a provider, and how headgate reads it.

A source is a page of the provider, unless the row says otherwise. All answers come at NOW.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headgate.http.rate_limit_headers import Answer, Budget, read

NOW = datetime(2026, 11, 21, 18, 30, tzinfo=UTC).timestamp()
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def at(seconds: float) -> str:
    """A moment as an epoch."""
    return f"{NOW + seconds:.0f}"


@dataclass(frozen=True)
class Row:
    provider: str
    form: str  # in a few words
    source: str
    status: int
    reading: Answer
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = ""
    host: str = ""

    @property
    def id(self) -> str:
        return f"{self.provider}: {self.form}"

    @property
    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)

    def read(self) -> Answer:
        return read(self.status, self.headers, self.text, now=NOW, host=self.host)


def throttled(wait: float | None = None, *budgets: Budget, **more: Any) -> Answer:
    return Answer("throttled", wait, budgets, **more)


def passed(*budgets: Budget, cost: int | None = None) -> Answer:
    return Answer("passed", None, budgets, cost=cost)
