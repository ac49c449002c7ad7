"""httpx2, sync and async: transports that pass limiters first, and `limit`.

The work is done in httpx_transports.py. Here the classes get the types of httpx2.
"""

from __future__ import annotations

from typing import TypeVar

from headgate.extras import extra

with extra("httpx2"):
    import httpx2

    from headgate.http import httpx_transports
    from headgate.http.feedback import choose_feedback
    from headgate.http.limiter_chain import Exempt, Key, LimiterChain

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["AsyncTransport", "Transport", "limit"]

Client = TypeVar("Client", httpx2.Client, httpx2.AsyncClient)


class Body(httpx_transports.Body, httpx2.SyncByteStream):
    """A body in the type that the client checks for."""


class AsyncBody(httpx_transports.AsyncBody, httpx2.AsyncByteStream):
    """A body in the type that the async client checks for."""


class Transport(
    httpx_transports.Transport[httpx2.Request, httpx2.Response, httpx2.BaseTransport],
    httpx2.BaseTransport,
):
    """Limits each request that it sends: `httpx2.Client(transport=Transport(limiter))`.

    `inner`: the transport that sends; unsaid, an `httpx2.HTTPTransport()`. A client with a
    transport of its own ignores proxies from the environment, its `verify` and its `limits`;
    `limit` keeps them. The other arguments are those of `limit`.
    """

    _body = Body
    _default = httpx2.HTTPTransport


class AsyncTransport(
    httpx_transports.AsyncTransport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport],
    httpx2.AsyncBaseTransport,
):
    """`Transport` for an `httpx2.AsyncClient`."""

    _body = AsyncBody
    _default = httpx2.AsyncHTTPTransport


def limit(
    client: Client,
    *limiters: Limiter,
    key: Key[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    feedback: bool = True,
    adopt: bool = False,
) -> Client:
    """Limit a client in place, and return it. It keeps its proxies, TLS, mounts and pools.

        client = limit(httpx2.AsyncClient(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `headgate.http.httpx.limit`. Called again, it adds limiters.

    Raises ValueError or TypeError for arguments that can never work. A request raises the errors of
    `Limiter.acquire`, before it is sent.
    """
    place, apply = httpx_transports.find_place, choose_feedback("limit", feedback, adopt)
    if not limit_with(client, LimiterChain("limit", limiters, key, exempt, place, apply)):
        raise TypeError(
            f"limit({show(client)}): a client is an httpx2.Client or an httpx2.AsyncClient."
        )
    return client


def limit_with(client: object, chain: LimiterChain[httpx2.Request]) -> bool:
    """Put `chain` before all transports of `client`. Returns False for any other object."""
    if isinstance(client, httpx2.AsyncClient):
        httpx_transports.wrap_transports(client, AsyncTransport, chain)
    elif isinstance(client, httpx2.Client):
        httpx_transports.wrap_transports(client, Transport, chain)
    else:
        return False
    return True
