"""The output of the command: JSON for programs, ASCII for people.

Names may hold anything. JSON and `ascii` leave no character that can act on a terminal.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from headgate.errors import HeadgateError, MaxSleepExceededError
from headgate.stores.status import Status
from headgate.stores.status_text import shortened


def emit(
    args: Namespace, schema: str, facts: Mapping[str, Any], text: str, end: str = "\n"
) -> None:
    """Print `facts` with --json, otherwise `text` and `end`."""
    if args.json:
        print(as_json(schema, facts), flush=True)
    else:
        print(text, end=end, flush=True)


def as_json(schema: str, facts: Mapping[str, Any]) -> str:
    """`facts`, as schemas.json describes them."""
    return json.dumps({"schema": f"headgate.{schema}/1", **facts})


def complain(message: object) -> None:
    print(f"headgate: {message}", file=sys.stderr, flush=True)


def address_of(host: str, port: int) -> str:
    """The URL of a server, without a path. It has an IPv6 address in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def words_of(error: HeadgateError) -> str:
    """The text of an error. A refusal also says when to try again, if that is known."""
    if isinstance(error, MaxSleepExceededError) and error.retry_after is not None:
        return f"{error} Retry after {error.retry_after:.3f} s."
    return str(error)


def shown(text: str) -> str:
    """A name or another text of a user, harmless and short."""
    return shortened(ascii(text))


def facts_of(status: Status) -> dict[str, Any]:
    limits = [
        {
            "kind": limit.kind,
            "unit": limit.unit,
            "capacity": limit.capacity,
            "used": limit.used,
            "left": limit.left,
            "text": str(limit.limit),
        }
        for limit in status.limits
    ]
    return {
        "name": status.name,
        "limits": limits,
        "waiting": status.waiting,
        "retry_after": status.retry_after,
        "paused": status.paused,
    }
