"""HTTP clients, limited where they send: one module for each client, imported when it is used.

    headgate.http.httpx, headgate.http.httpx2     transports, and `limit(client, ...)`
    headgate.http.aiohttp                         a middleware, `limit(session, ...)`, and the
                                                  classic `RateLimiter(session, ...)`
    headgate.http.requests                        an adapter, and `limit(session, ...)`
    headgate.http.openai, headgate.http.anthropic `limit(client, ...)` for the SDKs: it counts
                                                  requests and tokens
    headgate.http.rate_limit_headers              what a response says about the server's limits:
                                                  `read(status, headers)`

Only the module of a client imports it, and `import headgate.http` imports none.
"""
