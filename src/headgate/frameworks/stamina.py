"""Stamina: a hook that retries a refused acquire after its `retry_after`.

It is a function of an error, as stamina's `on=` takes it, so this module does not import stamina.
"""

from __future__ import annotations

from headgate.errors import MaxSleepExceededError  # QueueFullError is one

__all__ = ["retry_after"]


def retry_after(error: Exception) -> bool | float:
    """Return whether to retry, and in how many seconds: `@stamina.retry(on=retry_after)`.

    It retries after a MaxSleepExceededError or a QueueFullError: in `retry_after` seconds, or by
    stamina's own backoff when only a release can make room. To retry after other errors, too:

        on=lambda error: retry_after(error) or isinstance(error, ConnectionError)
    """
    return (error.retry_after or True) if isinstance(error, MaxSleepExceededError) else False
