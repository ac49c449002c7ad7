"""steindamm: redis-rate-limiters' successor, on Redis and in memory.

`max_sleep=0` waits for as long as it takes, as headgate does when nothing is said; it is also
quicker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from benchmarks.peers.clients import async_client, patient_client, sync_client
from benchmarks.stage import PERIOD, PLENTY, Maker, Opening, Stage

ClientOf = Callable[[Stage], AbstractContextManager[Any]]


def in_memory(_stage: Stage) -> AbstractContextManager[None]:
    """Without a connection, `create` picks the local implementation."""
    return nullcontext()


def bucket_opening(client_of: ClientOf, class_name: str) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        import steindamm

        create = getattr(steindamm, class_name).create
        with client_of(stage) as client:
            yield lambda name: create(
                name=name,
                capacity=PLENTY,
                refill_frequency=PERIOD,
                refill_amount=PLENTY,
                max_sleep=0,
                connection=client,
            )

    return opening


def semaphore_opening(client_of: ClientOf, class_name: str, capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        import steindamm

        create = getattr(steindamm, class_name).create
        with client_of(stage) as client:
            yield lambda name: create(name=name, capacity=capacity, max_sleep=0, connection=client)

    return opening


rate = bucket_opening(in_memory, "AsyncTokenBucket")
rate_sync = bucket_opening(in_memory, "SyncTokenBucket")
token_bucket = bucket_opening(async_client, "AsyncTokenBucket")
token_bucket_patient = bucket_opening(patient_client, "AsyncTokenBucket")
token_bucket_sync = bucket_opening(sync_client, "SyncTokenBucket")


def concurrency(capacity: int) -> Opening:
    return semaphore_opening(in_memory, "AsyncSemaphore", capacity)


def concurrency_sync(capacity: int) -> Opening:
    return semaphore_opening(in_memory, "SyncSemaphore", capacity)


def semaphore(capacity: int) -> Opening:
    return semaphore_opening(async_client, "AsyncSemaphore", capacity)
