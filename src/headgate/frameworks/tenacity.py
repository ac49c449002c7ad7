"""Tenacity: a wait strategy that waits for as long as a refusal says.

Here lives how long to wait, and nothing else: what is tried again and how often is told to tenacity by its user.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.extras import extra

with extra("tenacity"):
    from tenacity import RetryCallState
    from tenacity.wait import wait_base, wait_none

from headgate.errors import MaxSleepExceededError
from headgate.validation import show

__all__ = ["wait_retry_after"]


class wait_retry_after(wait_base):  # noqa: N801 - the spelling of tenacity's own strategies
    """Waits for `retry_after` seconds after a MaxSleepExceededError or a QueueFullError, and as `otherwise` says after all else.

        @retry(retry=retry_if_exception_type(MaxSleepExceededError), wait=wait_retry_after(wait_exponential()), stop=...)

    `otherwise`: another wait strategy; unsaid, there is no wait. It is asked, too, when only a release can make room: nobody
    knows then for how long. Raises TypeError for what is no strategy.
    """

    def __init__(
        self, otherwise: wait_base | Callable[[RetryCallState], float] | None = None
    ) -> None:
        if otherwise is not None and not callable(otherwise):
            raise TypeError(
                f"wait_retry_after({show(otherwise)}): write a wait strategy of tenacity's, such as wait_fixed(5)."
            )
        self._otherwise = wait_none() if otherwise is None else otherwise

    def __call__(self, retry_state: RetryCallState) -> float:
        """For tenacity: seconds."""
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        told = error.retry_after if isinstance(error, MaxSleepExceededError) else 0.0
        return told or self._otherwise(retry_state)
