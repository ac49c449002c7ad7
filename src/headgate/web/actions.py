"""The actions of the page: pause, resume and set limits, as a limiter's own methods do them.

An action declares nothing: an unknown name is an error.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.errors import StoreError, UnknownLimiterError
from headgate.limiter import Limiter
from headgate.stores.registry import StoreLike
from headgate.web.asgi import Response


async def act(where: StoreLike, body: bytes) -> Response:
    """Carry out a request of the page, which is a JSON object."""
    try:
        return Response(200, await carry_out(where, asked_in(body)))
    except UnknownLimiterError as error:
        return Response(404, str(error))
    except (RecursionError, TypeError, ValueError) as error:
        return Response(400, str(error))
    except StoreError as error:
        return Response(503, str(error))


def asked_in(body: bytes) -> dict[str, Any]:
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("The request must be a JSON object.")
    return asked


async def carry_out(where: StoreLike, asked: dict[str, Any]) -> str:
    limiter = named(where, asked.get("name"), asked.get("key"))
    match asked.get("action"):
        case "pause":
            await limiter.apause(asked.get("seconds"))  # type: ignore[arg-type]  # it checks
            return "The limiter is paused."
        case "resume":
            await limiter.aresume()
            return "The limiter is not paused."
        case "set":
            await limiter.aupdate(*texts_in(asked.get("limits")))
            return "The limiter has the new limits."
    raise ValueError("The action must be pause, resume or set.")


def named(where: StoreLike, name: Any, key: Any) -> Limiter:
    whole = Limiter.attach(name, store=where)
    return whole if key is None else whole[key]


def texts_in(limits: object) -> list[str]:
    if isinstance(limits, list) and all(isinstance(each, str) for each in limits):
        return limits
    raise ValueError("The limits must be a list of texts, such as 100/minute.")
