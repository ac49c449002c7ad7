"""PydanticAI: a limiter where models and agents take a concurrency limiter.

Here live acquiring and releasing in PydanticAI's words, and nothing else: which of them a run passes, and when, is its own to know.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headgate.extras import extra

with extra("pydantic-ai"):
    from pydantic_ai import AbstractConcurrencyLimiter

from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.permit import Permit

__all__ = ["PydanticAILimiter"]


class PydanticAILimiter(AbstractConcurrencyLimiter):
    """A limiter for PydanticAI, over all processes that share its store.

        model = ConcurrencyLimitedModel("openai:gpt-5", limiter=PydanticAILimiter(Limiter("openai", Concurrency(10), "500/minute")))
        agent = Agent(model, max_concurrency=PydanticAILimiter(Limiter("agents", Concurrency(3))))

    A model passes it for each request, an agent for each run; a permit is held to the end, of a stream too. Rates are charged when
    it is granted. Make two of them for a model and its agent: one at both would wait for itself.

    Raises TypeError for what is no limiter. A run raises what `Limiter.acquire` does.
    """

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"PydanticAILimiter({show(limiter)}): give it a Limiter, such as Limiter('openai', Concurrency(10))."
            )
        self._limiter = limiter
        self._permits: deque[Permit] = deque()  # all alike, so it does not matter whose goes back

    async def acquire(self, source: str) -> None:
        """For PydanticAI: go on when it is the turn of `source`."""
        self._permits.append(await self._limiter.acquire())

    def release(self) -> None:
        """For PydanticAI: the permit that was taken first goes back, from whatever task."""
        self._permits.popleft().release()
