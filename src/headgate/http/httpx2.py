"""httpx2, sync and async: transports that pass limiters first, and `limit`.

httpx_transports.py does the work. Here the classes get the types of httpx2.
"""

from __future__ import annotations

from typing import TypeVar

from headgate.missing_extra import extra

with extra("httpx2"):
    import httpx2

    from headgate.http import httpx_transports
    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.limiter_chain import Exempt, Key

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["AsyncTransport", "Transport", "limit"]

Client = TypeVar("Client", httpx2.Client, httpx2.AsyncClient)


class Body(httpx_transports.Body, httpx2.SyncByteStream): ...


class AsyncBody(httpx_transports.Body, httpx2.AsyncByteStream): ...


UNSENT = (
    httpx2.PoolTimeout,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.UnsupportedProtocol,
)


class Transport(
    httpx_transports.Transport[httpx2.Request, httpx2.Response, httpx2.BaseTransport],
    httpx2.BaseTransport,
):
    """Limits each request that it sends, as `headgate.http.httpx.Transport` does.

    `inner`: unsaid, an `httpx2.HTTPTransport()`.
    """

    _body = Body
    _default = httpx2.HTTPTransport
    _unsent = UNSENT


class AsyncTransport(
    httpx_transports.AsyncTransport[httpx2.Request, httpx2.Response, httpx2.AsyncBaseTransport],
    httpx2.AsyncBaseTransport,
):
    """`Transport` for an `httpx2.AsyncClient`."""

    _body = AsyncBody
    _default = httpx2.AsyncHTTPTransport
    _unsent = UNSENT


TRANSPORTS = {httpx2.Client: Transport, httpx2.AsyncClient: AsyncTransport}


def limit(
    client: Client,
    *limiters: Limiter,
    key: Key[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
) -> Client:
    """Limit a client in place, and return it, as `headgate.http.httpx.limit` does.

        client = limit(httpx2.AsyncClient(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments and all errors are the same.
    """
    find_place = httpx_transports.find_place
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = httpx_transports.HttpxChain("limit", limiters, key, exempt, find_place, options)
    if not httpx_transports.limit_client(client, chain, TRANSPORTS):
        raise TypeError(
            f"limit({show(client)}): a client is an httpx2.Client or an httpx2.AsyncClient."
        )
    return client
