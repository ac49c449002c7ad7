"""A limiter's fallback without its store: a bad one is refused in the constructor, by a sentence,
with nothing sent.
"""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Concurrency, Limiter, Quota, Rate, Window
from tests.bad_input.values import NO_COUNT, NO_INT, Hostile, assert_sentence, shown

NO_WAY = [None, True, 0, 5.0, b"open", ["open"], Hostile()]


def refused(
    error: type[Exception],
    store: str | None,
    *words: str,
    limit: Any = "100/second",
    **options: Any,
) -> None:
    with pytest.raises(error) as caught:
        Limiter("x", limit, store=store, **options)
    assert type(caught.value) is error
    assert_sentence(caught.value, *words)


@pytest.mark.parametrize("way", NO_WAY, ids=shown)
def test_an_on_store_error_that_is_no_text_is_refused(way: object, nowhere: str) -> None:
    refused(TypeError, nowhere, f"Limiter(on_store_error={shown(way)})", on_store_error=way)


@pytest.mark.parametrize("way", ["", "Open", "close", "local ", "x" * 10**6], ids=shown)
def test_on_store_error_takes_three_words_only(way: str, nowhere: str) -> None:
    refused(
        ValueError,
        nowhere,
        f"Limiter(on_store_error={shown(way)})",
        "'raise' or 'open' or 'local'",
        on_store_error=way,
    )


@pytest.mark.parametrize("value", NO_INT, ids=shown)
def test_processes_must_be_an_int(value: object, nowhere: str) -> None:
    refused(
        TypeError,
        nowhere,
        f"Limiter(processes={shown(value)})",
        on_store_error="local",
        processes=value,
    )


@pytest.mark.parametrize("value", NO_COUNT, ids=shown)
def test_processes_must_be_at_least_1(value: int, nowhere: str) -> None:
    refused(
        ValueError,
        nowhere,
        f"Limiter(processes={shown(value)})",
        on_store_error="local",
        processes=value,
    )


def test_local_shares_need_the_number_of_processes(nowhere: str) -> None:
    refused(
        TypeError, nowhere, "Limiter(on_store_error='local')", "processes=", on_store_error="local"
    )


@pytest.mark.parametrize(
    "options", [{}, {"on_store_error": "raise"}, {"on_store_error": "open"}], ids=str
)
def test_processes_without_local_shares_is_refused(options: dict[str, Any], nowhere: str) -> None:
    refused(
        TypeError, nowhere, "Limiter(processes=4)", "on_store_error='local'", processes=4, **options
    )


@pytest.mark.parametrize(
    "limit",
    [
        Concurrency(3),
        Rate(100, per=1, capacity=3),
        Window(3, per=1),
        Quota(3, per=1),
        "3 tokens/min",
        Concurrency(3, unit="mb"),
    ],
    ids=str,
)
def test_a_limit_below_one_unit_for_each_process_is_refused(limit: Any, nowhere: str) -> None:
    refused(
        ValueError,
        nowhere,
        "Limiter('x', processes=4)",
        "no more than 3",
        limit=limit,
        on_store_error="local",
        processes=4,
    )
    Limiter("x", limit, store=nowhere, on_store_error="local", processes=3)


def test_a_memory_store_refuses_the_same_fallback_arguments() -> None:
    """Though it has no effect there: a call that works in one process is to work on Redis."""
    refused(ValueError, None, "on_store_error='close'", on_store_error="close")
    refused(TypeError, None, "Limiter(processes=4)", processes=4)
    refused(TypeError, None, "processes=", on_store_error="local")
