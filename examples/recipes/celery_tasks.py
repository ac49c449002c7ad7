"""Celery: the tasks of all workers together keep to the limits of one service.

Run it: `cd examples/recipes && celery --app celery_tasks worker --concurrency 4`
"""

import os

import httpx
from celery import Celery, Task
from celery.signals import worker_process_shutdown

from headgate import Concurrency, Limiter, MaxSleepExceededError, StoreError

SERVICE = os.environ.get("SERVICE_URL", "http://localhost:8080")
REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")

app = Celery("recipes", broker=REDIS, backend=REDIS)
app.conf.broker_connection_retry_on_startup = True
limiter = Limiter("service", "100/minute", Concurrency(3), store=REDIS, max_sleep=10)


@app.task(bind=True, max_retries=None, soft_time_limit=60, time_limit=90)
def fetch(self: Task, path: str) -> str:
    try:
        with limiter:
            return httpx.get(f"{SERVICE}/{path}", timeout=30).raise_for_status().text
    except MaxSleepExceededError as error:  # the queue is long: let this process do other work
        raise self.retry(countdown=error.retry_after or 5) from error
    except StoreError as error:
        raise self.retry(countdown=30) from error


@worker_process_shutdown.connect
def send_the_rest(**details: object) -> None:
    """Celery ends its processes by os._exit."""
    limiter.flush()
