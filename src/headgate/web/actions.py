"""The actions of the page: pause, resume and set limits, as a limiter's own methods do them.

An action declares nothing: an unknown name is an error.
"""

from __future__ import annotations

import json
from typing import Any

from headgate.errors import StoreError, UnknownLimiterError
from headgate.limiter import Limiter
from headgate.stores.registry import StoreLike
from headgate.validation import check_pause
from headgate.web.asgi import Response


async def act(where: StoreLike, body: bytes) -> Response:
    """Carry out a request of the page, which is a JSON object."""
    try:
        return Response(200, await carry_out(where, request_in(body)))
    except UnknownLimiterError as error:
        return Response(404, str(error))
    except (RecursionError, TypeError, ValueError) as error:
        return Response(400, str(error))
    except StoreError as error:
        return Response(503, str(error))


def request_in(body: bytes) -> dict[str, Any]:
    request = json.loads(body)
    if not isinstance(request, dict):
        raise ValueError("The request must be a JSON object.")
    return request


async def carry_out(where: StoreLike, request: dict[str, Any]) -> str:
    limiter = limiter_of(where, request.get("name"), request.get("key"))
    match request.get("action"):
        case "pause":
            await limiter.apause(check_pause("pause", request.get("seconds")))
            return "The limiter is paused."
        case "resume":
            await limiter.aresume()
            return "The limiter is not paused."
        case "set":
            await limiter.aupdate(*texts_in(request.get("limits")))
            return "The limiter has the new limits."
    raise ValueError("The action must be pause, resume or set.")


def limiter_of(where: StoreLike, name: Any, key: Any) -> Limiter:
    whole = Limiter.attach(name, store=where)
    return whole if key is None else whole[key]


def texts_in(limits: object) -> list[str]:
    if isinstance(limits, list) and all(isinstance(each, str) for each in limits):
        return limits
    raise ValueError("The limits must be a list of texts, such as 100/minute.")
