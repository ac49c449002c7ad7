"""Tenacity: a wait strategy that waits for as long as a refusal says."""

from __future__ import annotations

from collections.abc import Callable

from headgate.missing_extra import extra

with extra("tenacity"):
    from tenacity import RetryCallState
    from tenacity.wait import wait_base, wait_none

from headgate.errors import MaxSleepExceededError  # QueueFullError is one
from headgate.validation import show

__all__ = ["wait_retry_after"]


class wait_retry_after(wait_base):  # noqa: N801 - the spelling of tenacity's own strategies
    """Wait as long as a MaxSleepExceededError or a QueueFullError says; else as `otherwise` says.

        @retry(
            retry=retry_if_exception_type(MaxSleepExceededError),
            wait=wait_retry_after(wait_exponential()),
        )

    `otherwise`: another wait strategy; unsaid, there is no wait. It also decides when only a
    release can make room, because the time is not known then. Raises TypeError for a value that is
    no strategy.
    """

    def __init__(
        self, otherwise: wait_base | Callable[[RetryCallState], float] | None = None
    ) -> None:
        if otherwise is not None and not callable(otherwise):
            raise TypeError(
                f"wait_retry_after({show(otherwise)}): write a wait strategy of tenacity's, "
                "such as wait_fixed(5)."
            )
        self._otherwise = wait_none() if otherwise is None else otherwise

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the wait in seconds. Tenacity calls this."""
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        wait = error.retry_after if isinstance(error, MaxSleepExceededError) else 0.0
        return wait or self._otherwise(retry_state)
