"""httpx, sync and async: transports that pass limiters first, and `limit`, which puts them into a client that is there.

What they do stands in httpx_transports.py; here they get the types of httpx.
"""

from __future__ import annotations

from typing import TypeVar

from headgate.extras import extra

with extra("httpx"):
    import httpx

    from headgate.http import httpx_transports
    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Calls, Exempt, Key

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["AsyncTransport", "Transport", "limit"]

Client = TypeVar("Client", httpx.Client, httpx.AsyncClient)


class Transport(httpx_transports.Transport[httpx.Request, httpx.Response], httpx.BaseTransport):
    """Limits whatever goes through it: `httpx.Client(transport=Transport(Limiter("api", "100/minute")))`.

    One acquire of each limiter, in the order named, for each request that goes out: for redirects and for retries of those around
    the client too. What is held is held until the body has been read or closed, and comes back on errors. The wait is no part of
    the client's time-outs; it is part of `response.elapsed`.
    `inner`: the transport that sends; unsaid, an `httpx.HTTPTransport()`. A transport of its own switches off a client's
    proxies from the environment, its `verify` and its `limits`: `limit` keeps them.
    `key`: "host", or a function of the request that returns a text: a state for each host, or for each such text.
    `exempt`: what is not limited: hosts ("localhost", "*.host"), paths with all below them ("/health"), both ("host/health"),
    or functions of the request.
    `heed`: what the server answers holds all who use these limiters: a refusal for a time (429 or 503 with Retry-After, and its
    like) pauses them, less left than they reckon with drains them, see docs/http.md. False: nothing is made of answers.
    `adopt`: a limit that the server tells takes the place of the one that counts requests, as by `Limiter.update`.

    Raises ValueError or TypeError for what can never work; a request raises what `Limiter.acquire` does, before it is sent.
    """

    def __init__(
        self,
        *limiters: Limiter,
        inner: httpx.BaseTransport | None = None,
        key: Key[httpx.Request] = None,
        exempt: Exempt[httpx.Request] = (),
        heed: bool = True,
        adopt: bool = False,
    ) -> None:
        calls = Calls(
            "Transport",
            limiters,
            key,
            exempt,
            httpx_transports.place,
            heeding("Transport", heed, adopt),
        )
        super().__init__(calls, httpx.HTTPTransport() if inner is None else inner, Body)


class AsyncTransport(
    httpx_transports.AsyncTransport[httpx.Request, httpx.Response], httpx.AsyncBaseTransport
):
    """`Transport` for an `httpx.AsyncClient`."""

    def __init__(
        self,
        *limiters: Limiter,
        inner: httpx.AsyncBaseTransport | None = None,
        key: Key[httpx.Request] = None,
        exempt: Exempt[httpx.Request] = (),
        heed: bool = True,
        adopt: bool = False,
    ) -> None:
        calls = Calls(
            "AsyncTransport",
            limiters,
            key,
            exempt,
            httpx_transports.place,
            heeding("AsyncTransport", heed, adopt),
        )
        super().__init__(calls, httpx.AsyncHTTPTransport() if inner is None else inner, AsyncBody)


class Body(httpx_transports.Body, httpx.SyncByteStream):
    """As the client wants it."""


class AsyncBody(httpx_transports.AsyncBody, httpx.AsyncByteStream):
    """As the client wants it."""


def limit(
    client: Client,
    *limiters: Limiter,
    key: Key[httpx.Request] = None,
    exempt: Exempt[httpx.Request] = (),
    heed: bool = True,
    adopt: bool = False,
) -> Client:
    """Limit a client in place, and return it: its proxies, TLS, mounts, pools and time-outs stay as they are.

        client = limit(httpx.AsyncClient(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `Transport`. Called again, it adds limiters: those that were added last are passed first.
    """
    exempt = Calls(
        "limit", limiters, key, exempt, httpx_transports.place, heeding("limit", heed, adopt)
    ).exempt
    if isinstance(client, httpx.AsyncClient):
        httpx_transports.put_around(
            client,
            lambda inner: AsyncTransport(
                *limiters, inner=inner, key=key, exempt=exempt, heed=heed, adopt=adopt
            ),
        )
    elif isinstance(client, httpx.Client):
        httpx_transports.put_around(
            client,
            lambda inner: Transport(
                *limiters, inner=inner, key=key, exempt=exempt, heed=heed, adopt=adopt
            ),
        )
    else:
        raise TypeError(
            f"limit({show(client)}): a client is an httpx.Client or an httpx.AsyncClient."
        )
    return client
