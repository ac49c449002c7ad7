"""httpx, sync and async: transports that pass limiters first, and `limit`.

httpx_transports.py does the work. Here the classes get the types of httpx.
"""

from __future__ import annotations

from typing import TypeVar

from headgate.missing_extra import extra

with extra("httpx"):
    import httpx

    from headgate.http import httpx_transports
    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.limiter_chain import Exempt, Key

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["AsyncTransport", "Transport", "limit"]

Client = TypeVar("Client", httpx.Client, httpx.AsyncClient)


class Body(httpx_transports.Body, httpx.SyncByteStream): ...


class AsyncBody(httpx_transports.Body, httpx.AsyncByteStream): ...


UNSENT = (httpx.PoolTimeout, httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)


class Transport(
    httpx_transports.Transport[httpx.Request, httpx.Response, httpx.BaseTransport],
    httpx.BaseTransport,
):
    """Limits each request that it sends: `httpx.Client(transport=Transport(limiter))`.

    `inner`: the transport that sends; unsaid, an `httpx.HTTPTransport()`. A client with a transport
    of its own ignores proxies from the environment, its `verify` and its `limits`; `limit` keeps
    them. The other arguments are those of `limit`.
    """

    _body = Body
    _default = httpx.HTTPTransport
    _unsent = UNSENT


class AsyncTransport(
    httpx_transports.AsyncTransport[httpx.Request, httpx.Response, httpx.AsyncBaseTransport],
    httpx.AsyncBaseTransport,
):
    """`Transport` for an `httpx.AsyncClient`."""

    _body = AsyncBody
    _default = httpx.AsyncHTTPTransport
    _unsent = UNSENT


TRANSPORTS = {httpx.Client: Transport, httpx.AsyncClient: AsyncTransport}


def limit(
    client: Client,
    *limiters: Limiter,
    key: Key[httpx.Request] = None,
    exempt: Exempt[httpx.Request] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
) -> Client:
    """Limit a client in place, and return it. It keeps its proxies, TLS, mounts and pools.

        client = limit(httpx.AsyncClient(), Limiter("api", "100/minute", Concurrency(5)))

    Each request that goes out acquires from each limiter, in the order named: each redirect, and
    each retry by code around the client. The permits are held until the body has been read or
    closed, and go back on errors. The wait counts in `response.elapsed`, and not towards the
    time-outs. Called again, it adds limiters: a request passes the newest ones first.
    `key`: "host", or a function of the request that returns a text: each host or text has a state
    of its own.
    `exempt`: requests that are not limited: hosts ("localhost", "*.host"), paths with all below
    them ("/health"), both ("host/health"), or functions of the request.
    `feedback`: apply the server's responses to all that use these limiters. A refusal (429, 503 and
    similar) pauses them; a remaining budget below theirs drains or pauses them: see docs/http.md.
    False: responses change nothing.
    `adopt`: True lowers your limit on requests to the limit that the server states, as
    `Limiter.update` does. Two factors of your limit, such as (0.1, 2.0), bound the adopted one.
    `heed_at_most`: seconds above 0. No response holds callers for longer.
    `on_answer`: a plain function of the status, the headers and the body of each response. The
    body is b"" unless the status is 400 or more and headgate can read it. The function returns
    the `Answer` to apply. After None or an exception, headgate reads the response by itself. The
    function must not block.

    Raises ValueError or TypeError for arguments that can never work. A request raises the errors of
    `Limiter.acquire`, before it is sent.
    """
    find_place = httpx_transports.find_place
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = httpx_transports.HttpxChain("limit", limiters, key, exempt, find_place, options)
    if not httpx_transports.limit_client(client, chain, TRANSPORTS):
        raise TypeError(
            f"limit({show(client)}): a client is an httpx.Client or an httpx.AsyncClient."
        )
    return client
