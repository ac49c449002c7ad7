"""LiteLLM: a callback that limits calls, holds their permits to the end, and settles their tokens.

LiteLLM may report the end of a call several times; the first report counts. When a call is
cancelled, or its stream left early, it reports no end, and drops the logging object of the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from headgate.missing_extra import extra

with extra("litellm"):
    from litellm.integrations.custom_logger import CustomLogger

from headgate.internals import acquire_estimated, queue_of, refund, settle_stated
from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from headgate.permit import Permit

__all__ = ["LiteLLMLimiter"]

LONGEST_DEBT = 3600.0  # seconds for which a stated usage may hold later calls
UNITS = {  # and their names in LiteLLM's usage
    "tokens": "total_tokens",
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
}
NUMBERS = count()  # LiteLLM tells callbacks of one class apart by their public attributes

Call = Mapping[str, Any]
Estimate = Callable[[Call], Mapping[str, int]]


class LiteLLMLimiter(CustomLogger):  # type: ignore[misc]  # its base has no types
    """A limiter for LiteLLM's coroutines.

        litellm.callbacks = [LiteLLMLimiter(Limiter("llm", "500/minute", "90k tokens/min"))]

    Each `acompletion`, `aembedding`, ... and each attempt of a Router acquires once; retries by an
    SDK below do not. A permit is held until the response is complete, or its stream has ended.
    `completion` and other plain functions are not limited: put `with limiter:` around them.
    `estimate`: a function of the call's arguments that returns the units of the call, such as
    `{"tokens": 900}`. An estimate above a limit's capacity is reduced to it. The usage in the
    response (tokens, input_tokens, output_tokens, as far as the limiter counts them) is settled at
    the end. Without an estimate it is charged then, as a debt of an hour at most.
    `key`: "model", or a function of the call's arguments that returns a text: each model or text
    has a state of its own.

    Raises TypeError for bad arguments. A call raises the errors of `Limiter.acquire`, before it is
    sent.
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
                f"LiteLLMLimiter({show(limiter)}): give it a Limiter, such as "
                "Limiter('llm', '500/minute')."
            )
        if estimate is not None and not callable(estimate):
            raise TypeError(
                f"LiteLLMLimiter(estimate={show(estimate)}): write a function of a call that "
                "returns its units."
            )
        if key is not None and key != "model" and not callable(key):
            raise TypeError(
                f"LiteLLMLimiter(key={show(key)}): write 'model', or a function of a call that "
                "returns a text."
            )
        self._limiter = limiter
        self._estimate = estimate
        self._key = key
        # The calls that have not ended, by LiteLLM's id.
        self._calls: dict[str, tuple[Permit, weakref.finalize[..., Any]]] = {}

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        """LiteLLM calls this before an attempt."""
        # Call the user's function once here: the queue asks for the units again during the wait.
        estimated = {} if self._estimate is None else self._estimate(kwargs)
        permit = await acquire_estimated(
            self._limiter_for(kwargs), lambda limiter: reduce_units(limiter, estimated)
        )
        call_id = kwargs["litellm_call_id"]
        finalizer = weakref.finalize(kwargs["litellm_logging_obj"], self._drop, call_id)
        finalizer.atexit = False  # when the process exits, no loop is left for a release
        self._calls[call_id] = permit, finalizer

    async def async_post_call_success_deployment_hook(
        self, request_data: Call, response: Any, call_type: Any
    ) -> None:
        """LiteLLM calls this when a response has come."""
        self._end(request_data, response)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Call,
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """LiteLLM calls this when an attempt has failed."""
        self._end(request_data)

    async def async_log_success_event(
        self, kwargs: Call, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """LiteLLM calls this for a cached response, and at the end of a stream."""
        self._end(kwargs, response_obj)

    async def async_log_failure_event(
        self, kwargs: Call, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """LiteLLM calls this when a call has failed, also in the middle of a stream."""
        self._end(kwargs)

    def _limiter_for(self, call: Call) -> Limiter:
        if self._key is None:
            return self._limiter
        if self._key != "model":
            return self._limiter[self._key(call)]
        model = call.get("model")
        return self._limiter[model if isinstance(model, str) else str(model)]

    def _end(self, call: Call, response: Any = None) -> None:
        permit, finalizer = self._calls.pop(call.get("litellm_call_id", ""), (None, None))
        if permit is None or finalizer is None:
            return
        finalizer.detach()
        if call.get("cache_hit"):
            refund(permit)  # the response came from LiteLLM's cache
        else:
            settle_stated(permit, read_usage(response), LONGEST_DEBT)
        permit.release()

    def _drop(self, call_id: str) -> None:
        """Give a permit back. A finalizer calls this, in any thread and at any moment."""
        permit, _ = self._calls.pop(call_id)
        queue_of(permit).abandon(permit)


def reduce_units(limiter: Limiter, estimated: Mapping[str, int]) -> dict[str, Any]:
    """Return an estimate, at most the capacity of each limit."""
    capacity = queue_of(limiter).declared.capacity
    return {
        unit: min(amount, capacity.get(unit, amount))
        for unit, amount in estimated.items()
        if amount
    }


def read_usage(response: Any) -> dict[str, int]:
    usage = getattr(response, "usage", None)
    amounts = {unit: getattr(usage, word, None) for unit, word in UNITS.items()}
    return {
        unit: amount for unit, amount in amounts.items() if isinstance(amount, int) and amount >= 0
    }
