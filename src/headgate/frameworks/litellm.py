"""LiteLLM: a callback that lets each call pass a limiter, holds its permit to the call's end, and settles its tokens.

Here lives which of LiteLLM's callbacks begins a call and which may end it: whichever comes first. Calls that end without a word
(they were cancelled, or nobody read their stream to its end) are over when LiteLLM drops what it knows of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from headgate.extras import extra

with extra("litellm"):
    from litellm.integrations.custom_logger import CustomLogger

from headgate.errors import CostExceedsCapacityError
from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.permit import Permit

__all__ = ["LiteLLMLimiter"]

# What a limiter may count: as LiteLLM's usage has it.
UNITS = {
    "tokens": "total_tokens",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
}
NUMBERS = count()  # LiteLLM tells callbacks of one class apart by their public numbers and texts

Call = Mapping[str, Any]
Estimate = Callable[[Call], Mapping[str, int]]


class LiteLLMLimiter(CustomLogger):  # type: ignore[misc]  # its base has no types
    """A limiter for LiteLLM's coroutines: `litellm.callbacks = [LiteLLMLimiter(Limiter("llm", "500/minute", "90k tokens/min"))]`.

    One acquire for each `acompletion`, `aembedding`, ... and for each attempt of a Router; what an SDK tries again below is none.
    A permit is held until the answer is there, or its stream has ended. `completion` and what else is no coroutine is not limited:
    put `with limiter:` around it.
    `estimate`: a function of the call's arguments that returns what it will take, such as `{"tokens": 900}`; an estimate above a
    limit's capacity is cut down to it. What the answer says that it took (tokens, input_tokens, output_tokens, as far as the
    limiter counts them) is settled at the end; without an estimate it is charged then, as a debt.
    `key`: "model", or a function of the call's arguments that returns a text: a state for each model, or for each such text.

    Raises TypeError for bad arguments. A call raises what `Limiter.acquire` does, before it is sent.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        estimate: Estimate | None = None,
        key: Literal["model"] | Callable[[Call], str] | None = None,
    ) -> None:
        super().__init__()
        self.number = next(NUMBERS)
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"LiteLLMLimiter({show(limiter)}): give it a Limiter, such as Limiter('llm', '500/minute')."
            )
        if estimate is not None and not callable(estimate):
            raise TypeError(
                f"LiteLLMLimiter(estimate={show(estimate)}): write a function of a call that returns its units."
            )
        if key is not None and key != "model" and not callable(key):
            raise TypeError(
                f"LiteLLMLimiter(key={show(key)}): write 'model', or a function of a call that returns a text."
            )
        self._limiter = limiter
        self._estimate = estimate
        self._key = key
        self._calls: dict[
            str, tuple[Permit, weakref.finalize[..., Any]]
        ] = {}  # those that are not over, by LiteLLM's id

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        """For LiteLLM: before an attempt."""
        limiter = self._limiter_of(kwargs)
        permit = await self._granted(limiter, kwargs)
        name = kwargs["litellm_call_id"]
        dropped = weakref.finalize(kwargs["litellm_logging_obj"], self._dropped, name)
        dropped.atexit = False
        self._calls[name] = permit, dropped

    async def async_post_call_success_deployment_hook(
        self, request_data: Call, response: Any, call_type: Any
    ) -> None:
        """For LiteLLM: an answer is there."""
        self._over(request_data, response)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Call,
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """For LiteLLM: an attempt has failed."""
        self._over(request_data)

    async def async_log_success_event(
        self, kwargs: Call, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """For LiteLLM: an answer was there all the time, or its stream has ended."""
        self._over(kwargs, response_obj)

    async def async_log_failure_event(
        self, kwargs: Call, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """For LiteLLM: a call has failed, while its answer streamed say."""
        self._over(kwargs)

    def _limiter_of(self, call: Call) -> Limiter:
        if self._key is None:
            return self._limiter
        return self._limiter[str(call.get("model")) if self._key == "model" else self._key(call)]

    async def _granted(self, limiter: Limiter, call: Call) -> Permit:
        """What was asked for may be more than the limiter holds by now, if it was cut: then as much as that."""
        units = self._units(limiter, call)
        try:
            return await limiter.acquire(**units)
        except CostExceedsCapacityError:
            if self._units(limiter, call) == units:
                raise
        return await self._granted(limiter, call)

    def _units(self, limiter: Limiter, call: Call) -> dict[str, Any]:
        capacity = limiter._queue.declared.capacity
        estimated = {} if self._estimate is None else self._estimate(call)
        return {
            unit: min(amount, capacity.get(unit, amount))
            for unit, amount in estimated.items()
            if amount
        }

    def _over(self, call: Call, answer: Any = None) -> None:
        permit, dropped = self._calls.pop(call.get("litellm_call_id", ""), (None, None))
        if permit is None or dropped is None:
            return
        dropped.detach()
        used = nothing(permit) if call.get("cache_hit") else used_by(answer)
        rated = permit._queue.declared.rated
        permit.settle(**{unit: amount for unit, amount in used.items() if unit in rated})
        permit.release()

    def _dropped(self, name: str) -> None:
        """From a finalizer, in whatever thread and in the middle of anything."""
        permit, _ = self._calls.pop(name)
        permit._queue.abandon(permit)


def nothing(permit: Permit) -> dict[str, int]:
    """What was in a cache was not asked of anybody."""
    return dict.fromkeys(permit._queue.declared.rated, 0)


def used_by(answer: Any) -> dict[str, int]:
    """Units that the answer says that it took."""
    usage = getattr(answer, "usage", None)
    amounts = {unit: getattr(usage, word, None) for unit, word in UNITS.items()}
    return {
        unit: amount for unit, amount in amounts.items() if isinstance(amount, int) and amount >= 0
    }
