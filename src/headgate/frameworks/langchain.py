"""LangChain: a limiter in the place of a chat model's `rate_limiter`.

LangChain says when a call begins and never when it ends, so limits on concurrency belong to the
HTTP client under the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.missing_extra import extra

with extra("langchain"):
    from langchain_core.rate_limiters import BaseRateLimiter

from headgate.internals import queue_of
from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration

__all__ = ["LangChainLimiter"]


class LangChainLimiter(BaseRateLimiter):
    """A limiter for LangChain's chat models.

        ChatOpenAI(rate_limiter=LangChainLimiter(Limiter("openai", "500/minute")))

    Each invoke, stream or item of a batch takes one request. Answers from LangChain's cache
    and retries by the SDK below take none. A wait is part of the run, and no trace shows it: give
    the limiter an `on_wait`.

    Raises TypeError for an argument that is no limiter, and ValueError for a limiter with a
    Concurrency or without a rate of requests. For a limiter of `Limiter.attach`, the first acquire
    raises that ValueError, because the limits are not known before.
    """

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"LangChainLimiter({show(limiter)}): give it a Limiter, such as "
                "Limiter('openai', '500/minute')."
            )
        self._limiter = limiter
        self._is_checked = False
        if limiter.limits:  # an attached limiter has none yet
            self._check(queue_of(limiter).declared)

    def _check(self, declared: Declaration) -> None:
        if not declared.program:
            return  # the store is unavailable, and on_store_error="open"
        if declared.holds:
            raise ValueError(
                f"LangChainLimiter({self._limiter!r}): LangChain never says when a call has ended, "
                "so a Concurrency would not get its permits back; limit the HTTP client of the "
                "model by headgate.http, and give this one rates."
            )
        if "requests" not in declared.rated:
            raise ValueError(
                f"LangChainLimiter({self._limiter!r}): none of its limits counts requests, and "
                "LangChain says no other cost; give it a rate of them, such as '500/minute'."
            )
        self._is_checked = True

    def acquire(self, *, blocking: bool = True) -> bool:
        """Return True when the call may go. LangChain calls this.

        Without `blocking`, False when the call would have to wait. Raises the errors of
        `Limiter.acquire_sync`, if the limiter has a max_sleep or max_waiters.
        """
        if not self._is_checked:
            self._check(queue_of(self._limiter).learn_sync())
        permit = self._limiter.acquire_sync() if blocking else self._limiter.try_acquire()
        if permit:
            permit.release()
        return bool(permit)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """`acquire` for coroutines."""
        if not self._is_checked:
            self._check(await queue_of(self._limiter).learn())
        permit = await self._limiter.acquire() if blocking else await self._limiter.atry_acquire()
        if permit:
            permit.release()
        return bool(permit)
