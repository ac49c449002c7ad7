"""Values in a JSON body, read strictly: a value of another kind counts as missing. Nothing raises.

Pure. header_values.py does the same for headers.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.http.header_values import LONGEST, keep_plausible


def parse_object(body: bytes | bytearray | str) -> dict[str, Any]:
    """Return the JSON object in `body`; an empty one if there is none."""
    try:
        value = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
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


def find_text(value: Any, *path: str) -> str:
    text = find(value, *path)
    return text if isinstance(text, str) else ""
