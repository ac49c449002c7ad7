"""LangChain: a limiter where a chat model takes its `rate_limiter`.

Here live the two spellings of one acquire, in LangChain's words. It says when a call begins and never when it ends, so what is held
cannot be given back in time: limits on concurrency belong to the HTTP client under the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.extras import extra

with extra("langchain"):
    from langchain_core.rate_limiters import BaseRateLimiter

from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration

__all__ = ["LangChainLimiter"]


class LangChainLimiter(BaseRateLimiter):
    """A limiter for LangChain: `ChatOpenAI(rate_limiter=LangChainLimiter(Limiter("openai", "500/minute")))`.

    One request is taken for each invoke, stream or item of a batch, after LangChain's cache: not for what an SDK tries again below.
    A wait is part of the run, and no trace shows it: give the limiter an `on_wait`.

    Raises TypeError for what is no limiter, and ValueError for a limiter with a Concurrency or without a rate of requests.
    For a limiter of `Limiter.attach`, the first acquire raises that ValueError, because the limits are not known before.
    """

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"LangChainLimiter({show(limiter)}): give it a Limiter, such as Limiter('openai', '500/minute')."
            )
        self._limiter = limiter
        self._checked = False
        if limiter.limits:  # those of an attached limiter are not known before its first acquire
            self._check(limiter._queue.declared)

    def _check(self, declared: Declaration) -> None:
        if (
            not declared.program
        ):  # the store is away, and on_store_error="open" lets calls pass without limits
            return
        if declared.holds:
            raise ValueError(
                f"LangChainLimiter({self._limiter!r}): LangChain never says when a call has ended, so a Concurrency would not "
                "get its permits back; limit the HTTP client of the model by headgate.http, and give this one rates."
            )
        if "requests" not in declared.rated:
            raise ValueError(
                f"LangChainLimiter({self._limiter!r}): none of its limits counts requests, and LangChain says no other cost; "
                "give it a rate of them, such as '500/minute'."
            )
        self._checked = True

    def acquire(self, *, blocking: bool = True) -> bool:
        """For LangChain: true when the call may go. Without `blocking`, false when it would have to wait.

        Raises what `Limiter.acquire_sync` does, where the limiter has a max_sleep or max_waiters.
        """
        if not self._checked:
            self._check(self._limiter._queue.learn_sync())
        permit = self._limiter.acquire_sync() if blocking else self._limiter.try_acquire()
        if permit:
            permit.release()
        return bool(permit)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """`acquire` for coroutines."""
        if not self._checked:
            self._check(await self._limiter._queue.learn())
        permit = await self._limiter.acquire() if blocking else await self._limiter.atry_acquire()
        if permit:
            permit.release()
        return bool(permit)
