"""HTTP clients, limited where they send: one module for each client, imported when it is used.

    headgate.http.httpx, headgate.http.httpx2     transports, and `limit(client, ...)`
    headgate.http.aiohttp                         a middleware, `limit(session, ...)`, and `RateLimiter(session, ...)`
    headgate.http.requests                        an adapter, and `limit(session, ...)`
    headgate.http.openai, headgate.http.anthropic `limit(client, ...)`, for the SDKs: requests and tokens
    headgate.http.rate_limit_headers                         what a server says of its limits: `read(status, headers)`

A client's name is known in its own module alone: what they share (limiter_chain.py, httpx_transports.py, token_metering.py) imports none of them, and
importing `headgate.http` imports no client.
"""
