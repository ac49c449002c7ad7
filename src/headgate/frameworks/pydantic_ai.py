"""PydanticAI: a limiter in the place of the concurrency limiter of a model or an agent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headgate.missing_extra import extra

with extra("pydantic-ai"):
    from pydantic_ai import AbstractConcurrencyLimiter

from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.permit import Permit

__all__ = ["PydanticAILimiter"]


class PydanticAILimiter(AbstractConcurrencyLimiter):
    """A limiter for PydanticAI, for all processes that share its store.

        openai = PydanticAILimiter(Limiter("openai", Concurrency(10), "500/minute"))
        agents = PydanticAILimiter(Limiter("agents", Concurrency(3)))
        model = ConcurrencyLimitedModel("openai:gpt-5", limiter=openai)
        agent = Agent(model, max_concurrency=agents)

    A model acquires for each request, an agent for each run. The permit is held to the end, also of
    a stream. Rates are charged when it is granted. Use two limiters for a model and its agent: with
    one at both, the request would wait for its own run.

    Raises TypeError for an argument that is no limiter. A run raises the errors of
    `Limiter.acquire`.
    """

    def __init__(self, limiter: Limiter) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"PydanticAILimiter({show(limiter)}): give it a Limiter, such as "
                "Limiter('openai', Concurrency(10))."
            )
        self._limiter = limiter
        self._permits: deque[Permit] = deque()  # all are alike, so `release` takes the oldest

    async def acquire(self, source: str) -> None:
        """Wait for the turn of `source`. PydanticAI calls this."""
        self._permits.append(await self._limiter.acquire())

    def release(self) -> None:
        """Release the oldest permit, in any task. PydanticAI calls this."""
        self._permits.popleft().release()
