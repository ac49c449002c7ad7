"""RQ: the jobs of all workers together keep to the limits of one service.

Run it: `cd examples/recipes && rq worker --with-scheduler`
"""

import os
from math import ceil

import httpx
from redis import Redis
from rq import Queue, Retry

from headgate import Concurrency, Limiter, MaxSleepExceededError, StoreError

SERVICE = os.environ.get("SERVICE_URL", "http://localhost:8080")
REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")

limiter = Limiter("service", "100/minute", Concurrency(3), store=REDIS, max_sleep=10)


def fetch(path: str) -> str | Retry:
    try:
        with limiter:
            return httpx.get(f"{SERVICE}/{path}", timeout=30).raise_for_status().text
    except MaxSleepExceededError as error:  # the queue is long: let this worker do other work
        return Retry(max=1000, interval=ceil(error.retry_after or 5))
    except StoreError:
        return Retry(max=1000, interval=30)
    finally:
        limiter.flush()  # RQ ends the process of each job by os._exit


def main() -> None:
    queue = Queue(connection=Redis.from_url(REDIS))
    for number in range(20):
        queue.enqueue("rq_jobs.fetch", str(number), job_timeout=60)


if __name__ == "__main__":
    main()
