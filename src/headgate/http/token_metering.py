"""The common part of the SDKs: ask for the estimated tokens of a call, and settle its usage.

The permits read the usage from the response as it passes, and settle it when the body ends.
No SDK and no client is imported here. httpx_transports.py limits the client, a `Dialect` holds the
words of a provider, and token_estimates.py learns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from headgate.http.error_bodies import ACCEPTED_CODINGS
from headgate.http.feedback import Feedback, FeedbackOptions
from headgate.http.httpx_transports import (
    Transports,
    copy_client,
    find_place,
    limit_client,
)
from headgate.http.limiter_chain import (
    CallPermits,
    Exempt,
    Key,
    LimiterChain,
)
from headgate.http.token_estimates import Estimates
from headgate.http.token_usage import Dialect, TokenRequest, Usage, UsageReader
from headgate.internals import queue_of
from headgate.limiter import Limiter
from headgate.validation import show

R = TypeVar("R")
ByModel: TypeAlias = Key[R] | Literal["model"]

NO_MODEL = "-"  # the key of calls that name no model
UNITS = ("tokens", "input_tokens", "output_tokens")
MOST_IN_BACKGROUND = 1000  # responses of a client that may come later; older ones are forgotten


class TokenChain(LimiterChain[Any]):
    def __init__(
        self,
        limiters: tuple[Limiter, ...],
        dialect: Dialect,
        estimates: Estimates | None,
        key: ByModel[Any],
        exempt: Exempt[Any],
        options: FeedbackOptions,
        models: Mapping[str, Limiter] | None = None,
    ) -> None:
        by = self._find_model if key == "model" else key
        super().__init__("limit", limiters, by, exempt, find_place, options)
        self._models = check_models(models)
        if estimates is not None and not isinstance(estimates, Estimates):
            raise TypeError(
                f"limit(estimates={show(estimates)}): write an Estimates(), which other clients "
                "may share."
            )
        self._dialect = dialect
        self._estimates = Estimates() if estimates is None else estimates
        self._in_background: InBackground = OrderedDict()

    @property
    def all_limiters(self) -> Sequence[Limiter]:
        return *self._limiters, *self._models.values()

    def _limiters_for(self, request: Any) -> Sequence[Limiter]:
        if not self._models or (self._exempt and self._is_exempt(request)):
            return super()._limiters_for(request)
        own = self._models.get(self._find_model(request))
        return super()._limiters_for(request) if own is None else (own,)

    def _new_permits(self, request: Any) -> CallPermits:
        permits = self._new_reading_permits(request)
        if permits is None:
            return CallPermits(self._feedback)
        # headgate cannot decompress every coding that the caller may accept.
        request.headers["accept-encoding"] = ACCEPTED_CODINGS
        return permits

    def _new_reading_permits(self, request: Any) -> ReadingPermits | None:
        asked = self._read_request(request)
        if asked is not None:
            return MeteredPermits(
                asked, self._dialect, self._estimates, self._feedback, self._in_background
            )
        if self._dialect.find_retrieved(request.url.path) not in self._in_background:
            return None
        return RetrievalPermits(self._dialect, self._feedback, self._in_background)

    def _read_request(self, request: Any) -> TokenRequest | None:
        try:
            body = request.content
        except RuntimeError:  # an upload, which is sent piece by piece
            return None
        return self._dialect.read_request(request.method, request.url.path, body)

    def _find_model(self, request: Any) -> str:
        asked = self._read_request(request)
        return NO_MODEL if asked is None else asked.model


class ReadingPermits(CallPermits):
    """The permits of one attempt whose response states a usage. Their release settles it."""

    __slots__ = ("_dialect", "_in_background", "_reader")

    def __init__(
        self,
        dialect: Dialect,
        feedback: Feedback | None,
        in_background: InBackground,
    ) -> None:
        super().__init__(feedback)
        self._dialect = dialect
        self._in_background = in_background
        self._reader: UsageReader | None = None

    def needs_end(self) -> bool:
        """Return True: the end of the body settles the usage."""
        return True

    def watch_body(self, response: Any) -> None:
        """Read the usage of a response. The client has decompressed its body if it is complete."""
        if 200 <= response.status_code < 300:
            coded = not response.is_closed
            self._reader = UsageReader(self._dialect, response.headers, coded=coded)

    def read_chunk(self, chunk: bytes) -> None:
        if self._reader is not None:
            self._reader.read_chunk(chunk)

    def release(self) -> None:
        reader, self._reader = self._reader, None  # once
        if reader is not None:
            self._end(reader.usage(), reader.id)
        super().release()

    def _end(self, used: Usage, response_id: str) -> None:
        raise NotImplementedError


class RetrievalPermits(ReadingPermits):
    """The permits of a call that retrieves the response of an earlier background call."""

    __slots__ = ()

    def _end(self, used: Usage, response_id: str) -> None:
        earlier = self._in_background.pop(response_id, None) if used != Usage() else None
        if earlier is not None:
            earlier.learn_and_settle(used)


class MeteredPermits(ReadingPermits):
    """The permits of one attempt, for its estimated tokens."""

    __slots__ = ("_asked", "_estimates", "_input", "_output")

    def __init__(
        self,
        asked: TokenRequest,
        dialect: Dialect,
        estimates: Estimates,
        feedback: Feedback | None,
        in_background: InBackground,
    ) -> None:
        super().__init__(dialect, feedback, in_background)
        self._asked = asked
        self._estimates = estimates
        self._estimate()

    def _estimate(self) -> None:
        asked = self._asked
        self._input = self._estimates.input(asked.model, asked.characters, asked.attached)
        self._output = 0
        if asked.has_output:
            self._output = self._estimates.output(asked.model, asked.max_output)

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """Return the estimate in each unit of tokens that `limiter` has, at most its capacity.

        A queue asks again while the call waits.
        """
        self._estimate()
        capacity = queue_of(limiter).declared.capacity
        amounts = self._amounts(Usage())  # no usage yet: the estimates
        return {
            unit: min(amounts[unit], capacity[unit])
            for unit in UNITS
            if unit in capacity and amounts[unit]
        }

    def watch_body(self, response: Any) -> None:
        """Read the usage of a response. A refusal, a redirect or a 5xx used no tokens."""
        super().watch_body(response)
        if response.status_code >= 300:
            self._settle(Usage(0, 0))

    def _end(self, used: Usage, response_id: str) -> None:
        # A call with RetrievalPermits brings the usage later. Until then the estimate stands.
        if self._asked.in_background and used == Usage() and response_id:
            self._in_background[response_id] = self
            if len(self._in_background) > MOST_IN_BACKGROUND:
                self._in_background.popitem(last=False)
        else:
            self.learn_and_settle(used)

    def learn_and_settle(self, used: Usage) -> None:
        asked = self._asked
        if used.input is not None:
            self._estimates.learn_input(
                asked.model, asked.characters, self._input, used.input, asked.attached
            )
        if used.output is not None and asked.has_output:
            self._estimates.learn_output(asked.model, self._output, used.output)
        self._settle(used)

    def _settle(self, used: Usage) -> None:
        """Settle `used`. Units that it does not state keep their estimate."""
        if used != Usage():
            self.settle_stated(self._amounts(used))

    def _amounts(self, used: Usage) -> dict[str, int]:
        into = self._input if used.input is None else used.input
        out = self._output if used.output is None else used.output
        return {"tokens": into + out, "input_tokens": into, "output_tokens": out}


InBackground: TypeAlias = OrderedDict[str, MeteredPermits]  # by the id of the response


def limit_sdk(
    client: Any, kinds: tuple[type[Any], ...], transports: Transports, chain: TokenChain
) -> None:
    """Limit a copy of the HTTP client inside `client`, because other SDK clients may share it.

    `with_options` makes such clients. The codings are set here, too: some clients sign their
    headers before `_new_permits`.
    """
    # `limit_client` refuses None, as it refuses any object that is no client.
    inside: Any = copy_client(client._client) if isinstance(client, kinds) else None
    if not limit_client(inside, chain, transports):
        names = ", ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds)
        raise TypeError(f"limit({show(client)}): a client is one of {names}, on httpx2.")
    inside.headers["accept-encoding"] = ACCEPTED_CODINGS
    client._client = inside


def check_models(models: Mapping[str, Limiter] | None) -> Mapping[str, Limiter]:
    if models is None:
        return {}
    if not isinstance(models, Mapping) or not all(
        isinstance(name, str) and isinstance(limiter, Limiter) for name, limiter in models.items()
    ):
        raise TypeError(
            f"limit(models={show(models)}): write the limiter of each model by its name, as in "
            "{'gpt-5': Limiter('gpt-5', '500/minute')}."
        )
    return dict(models)
