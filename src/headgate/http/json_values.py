"""Values in a JSON body, read strictly: a value of another kind counts as missing. Nothing raises.

Pure. header_values.py does the same for headers.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.http.header_values import LONGEST, keep_plausible

MOST_ITEMS = 20  # of a list; an error has a few


def parse_json(body: bytes | bytearray | str) -> Any:
    """Return the value in `body`; None if there is none."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return None


def parse_object(body: bytes | bytearray | str) -> dict[str, Any]:
    """Return the JSON object in `body`; an empty one if there is none."""
    value = parse_json(body)
    return value if isinstance(value, dict) else {}


def parse_first_object(body: bytes | bytearray | str) -> dict[str, Any]:
    """`parse_object`, or the first object of a list, as Google writes some errors."""
    value = parse_json(body)
    if isinstance(value, list):
        value = value[0] if value else {}
    return value if isinstance(value, dict) else {}


def find(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def find_number(value: Any, *path: str) -> float | None:
    """Return the number at `path`, if it could be a time in seconds or a size."""
    number = find(value, *path)
    # `float` raises for a huge int.
    if not isinstance(number, int | float) or isinstance(number, bool) or abs(number) >= LONGEST:
        return None
    return keep_plausible(float(number))


def find_list(value: Any, *path: str) -> list[Any]:
    """Return the first items of the list at `path`."""
    found = find(value, *path)
    return found[:MOST_ITEMS] if isinstance(found, list) else []


def find_text(value: Any, *path: str) -> str:
    text = find(value, *path)
    return text if isinstance(text, str) else ""
