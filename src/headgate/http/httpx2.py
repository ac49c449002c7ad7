"""httpx2, sync and async: transports that pass limiters first, and `limit`, which puts them into a client that is there.

What they do stands in httpx_transports.py; here they get the types of httpx2.
"""

from __future__ import annotations

from typing import TypeVar

from headgate.extras import extra

with extra("httpx2"):
    import httpx2

    from headgate.http import httpx_transports
    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Calls, Exempt, Key

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["AsyncTransport", "Transport", "limit"]

Client = TypeVar("Client", httpx2.Client, httpx2.AsyncClient)


class Transport(httpx_transports.Transport[httpx2.Request, httpx2.Response], httpx2.BaseTransport):
    """Limits whatever goes through it: `httpx2.Client(transport=Transport(Limiter("api", "100/minute")))`.

    One acquire of each limiter, in the order named, for each request that goes out: for redirects and for retries of those around
    the client too. What is held is held until the body has been read or closed, and comes back on errors. The wait is no part of
    the client's time-outs; it is part of `response.elapsed`.
    `inner`: the transport that sends; unsaid, an `httpx2.HTTPTransport()`. A transport of its own switches off a client's
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
        inner: httpx2.BaseTransport | None = None,
        key: Key[httpx2.Request] = None,
        exempt: Exempt[httpx2.Request] = (),
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
        super().__init__(calls, httpx2.HTTPTransport() if inner is None else inner, Body)


class AsyncTransport(
    httpx_transports.AsyncTransport[httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport
):
    """`Transport` for an `httpx2.AsyncClient`."""

    def __init__(
        self,
        *limiters: Limiter,
        inner: httpx2.AsyncBaseTransport | None = None,
        key: Key[httpx2.Request] = None,
        exempt: Exempt[httpx2.Request] = (),
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
        super().__init__(calls, httpx2.AsyncHTTPTransport() if inner is None else inner, AsyncBody)


class Body(httpx_transports.Body, httpx2.SyncByteStream):
    """As the client wants it."""


class AsyncBody(httpx_transports.AsyncBody, httpx2.AsyncByteStream):
    """As the client wants it."""


def limit(
    client: Client,
    *limiters: Limiter,
    key: Key[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    heed: bool = True,
    adopt: bool = False,
) -> Client:
    """Limit a client in place, and return it: its proxies, TLS, mounts, pools and time-outs stay as they are.

        client = limit(httpx2.AsyncClient(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `Transport`. Called again, it adds limiters: those that were added last are passed first.
    """
    exempt = Calls(
        "limit", limiters, key, exempt, httpx_transports.place, heeding("limit", heed, adopt)
    ).exempt
    if isinstance(client, httpx2.AsyncClient):
        httpx_transports.put_around(
            client,
            lambda inner: AsyncTransport(
                *limiters, inner=inner, key=key, exempt=exempt, heed=heed, adopt=adopt
            ),
        )
    elif isinstance(client, httpx2.Client):
        httpx_transports.put_around(
            client,
            lambda inner: Transport(
                *limiters, inner=inner, key=key, exempt=exempt, heed=heed, adopt=adopt
            ),
        )
    else:
        raise TypeError(
            f"limit({show(client)}): a client is an httpx2.Client or an httpx2.AsyncClient."
        )
    return client
