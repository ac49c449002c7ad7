"""Stamina: a hook that tries again what was refused, after as long as the refusal says.

Here lives a function of an error, as stamina's `on=` takes it. Stamina itself is not needed for that, nor imported.
"""

from __future__ import annotations

from headgate.errors import MaxSleepExceededError

__all__ = ["retry_after"]


def retry_after(error: Exception) -> bool | float:
    """Whether to try again, and in how many seconds: `@stamina.retry(on=retry_after)`.

    After a MaxSleepExceededError or a QueueFullError: in `retry_after` seconds, or by stamina's own back-off when only a release
    can make room. Not after anything else; with errors of your own:

        on=lambda error: retry_after(error) or isinstance(error, ConnectionError)
    """
    return (error.retry_after or True) if isinstance(error, MaxSleepExceededError) else False
