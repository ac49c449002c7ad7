"""FastAPI in front of a limited service: too many requests get 503 and Retry-After at once.

Run it: `uvicorn --app-dir examples/recipes fastapi_app:app`
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from headgate import Concurrency, Limiter, MaxSleepExceededError, StoreError
from headgate.http.httpx import limit

SERVICE = os.environ.get("SERVICE_URL", "http://localhost:8080")
REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")

limiter = Limiter(
    "service",
    "100/minute",
    Concurrency(5),
    store=REDIS,
    max_sleep=10,  # a request waits at most 10 s for its turn,
    max_waiters=50,  # behind at most 50 others,
    retry_for=1,  # and at most 1 s for an unavailable Redis
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with limit(httpx.AsyncClient(base_url=SERVICE, timeout=30), limiter) as client:
        app.state.client = client
        yield
    await limiter.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/items/{item}")
async def item(item: str, request: Request) -> JSONResponse:
    answer = await request.app.state.client.get(f"/{item}")
    return JSONResponse({"item": answer.text}, answer.status_code)


@app.exception_handler(MaxSleepExceededError)
async def shed(request: Request, error: MaxSleepExceededError) -> JSONResponse:
    return busy(error.retry_after or 1)  # None: only a release can say


@app.exception_handler(StoreError)
async def unknown(request: Request, error: StoreError) -> JSONResponse:
    return busy(5)


def busy(seconds: float) -> JSONResponse:
    headers = {"Retry-After": str(ceil(seconds))}
    return JSONResponse({"detail": "busy, try again later"}, 503, headers)
