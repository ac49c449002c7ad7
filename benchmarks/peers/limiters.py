"""redis-rate-limiters (imported as `limiters`): the classic's successor in Python, on a redis-py
client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.peers.clients import async_client, patient_client, sync_client
from benchmarks.stage import PERIOD, PLENTY, Maker, Opening, Stage


def bucket_opening(
    client_of: Callable[[Stage], AbstractContextManager[Any]], class_name: str
) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        import limiters

        token_bucket_class = getattr(limiters, class_name)
        with client_of(stage) as client:
            yield lambda name: token_bucket_class(
                name=name,
                capacity=PLENTY,
                refill_frequency=PERIOD,
                refill_amount=PLENTY,
                connection=client,
            )

    return opening


token_bucket = bucket_opening(async_client, "AsyncTokenBucket")
token_bucket_patient = bucket_opening(patient_client, "AsyncTokenBucket")
token_bucket_sync = bucket_opening(sync_client, "SyncTokenBucket")


def semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from limiters import AsyncSemaphore

        with async_client(stage) as client:
            yield lambda name: AsyncSemaphore(name=name, capacity=capacity, connection=client)

    return opening
