"""The common part of the SDKs: ask for the estimated tokens of a call, and settle its usage.

The permits read the usage from the response as it passes, and settle it when the body ends.
No SDK and no client is imported here. httpx_transports.py limits the client, a `Dialect` holds the
words of a provider, and token_estimates.py learns.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

from headgate.http.feedback import Feedback, FeedbackOptions
from headgate.http.httpx_transports import (
    Transports,
    content_of,
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
from headgate.http.token_usage import CODINGS, Asked, Dialect, Usage, UsageReader
from headgate.internals import queue_of, settle_counted
from headgate.limiter import Limiter
from headgate.validation import show

R = TypeVar("R")
ByModel: TypeAlias = Key[R] | Literal["model"]

NO_MODEL = "-"  # the key of calls that name no model
UNITS = ("tokens", "input_tokens", "output_tokens")


class TokenChain(LimiterChain[Any]):
    def __init__(
        self,
        limiters: tuple[Limiter, ...],
        dialect: Dialect,
        estimates: Estimates | None,
        key: ByModel[Any],
        exempt: Exempt[Any],
        options: FeedbackOptions,
    ) -> None:
        by = self._find_model if key == "model" else key
        super().__init__("limit", limiters, by, exempt, find_place, options)
        if estimates is not None and not isinstance(estimates, Estimates):
            raise TypeError(
                f"limit(estimates={show(estimates)}): write an Estimates(), which other clients "
                "may share."
            )
        self._dialect = dialect
        self._estimates = Estimates() if estimates is None else estimates

    def _new_permits(self, request: Any) -> CallPermits:
        asked = self._read(request)
        if asked is None:
            return CallPermits(self._feedback)
        # The caller may accept other codings, but the response has to be read here, too.
        request.headers["accept-encoding"] = CODINGS
        return MeteredPermits(asked, self._dialect, self._estimates, self._feedback)

    def _read(self, request: Any) -> Asked | None:
        try:
            body = request.content
        except RuntimeError:  # an upload, which is sent piece by piece
            return None
        return self._dialect.read_request(request.method, request.url.path, body)

    def _find_model(self, request: Any) -> str:
        asked = self._read(request)
        return NO_MODEL if asked is None else asked.model


class MeteredPermits(CallPermits):
    """The permits of one attempt, for its estimated tokens. Their release settles the usage."""

    __slots__ = ("_asked", "_dialect", "_estimates", "_input", "_is_refused", "_output", "_reader")

    def __init__(
        self,
        asked: Asked,
        dialect: Dialect,
        estimates: Estimates,
        feedback: Feedback | None,
    ) -> None:
        super().__init__(feedback)
        self._asked: Asked | None = asked  # until it is settled
        self._dialect = dialect
        self._estimates = estimates
        self._input = estimates.input(asked.model, asked.characters)
        self._output = estimates.output(asked.model, asked.max_output) if asked.has_output else 0
        self._reader: UsageReader | None = None
        self._is_refused = False

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """Return the estimate in each unit of tokens that `limiter` has, at most its capacity."""
        capacity = queue_of(limiter).declared.capacity
        amounts = self._amounts(Usage())  # no usage yet: the estimates
        return {
            unit: min(amounts[unit], capacity[unit])
            for unit in UNITS
            if unit in capacity and amounts[unit]
        }

    def needs_end(self) -> bool:
        """Return True: the end of the body settles the usage."""
        return True

    def watch_body(self, response: Any) -> None:
        """Read the usage of a response. A refusal, a redirect or a 5xx used no tokens.

        A body that is complete already, as a mock's is, is not compressed any more.
        """
        self._is_refused = response.status_code >= 300
        if self._asked is None or not 200 <= response.status_code < 300:
            return
        complete = response.is_closed
        self._reader = UsageReader(self._dialect, response.headers, coded=not complete)
        if complete:
            self.read_chunk(content_of(response))

    def read_chunk(self, chunk: bytes) -> None:
        if self._reader is not None:
            self._reader.read_chunk(chunk)

    def release(self) -> None:
        asked, self._asked = self._asked, None  # once
        if asked is not None:
            used = Usage() if self._reader is None else self._reader.usage()
            self._learn(asked, used)
            self._settle(Usage(0, 0) if self._is_refused else used)
        super().release()

    def _learn(self, asked: Asked, used: Usage) -> None:
        if used.input is not None:
            self._estimates.learn_input(asked.model, asked.characters, self._input, used.input)
        if used.output is not None and asked.has_output:
            self._estimates.learn_output(asked.model, self._output, used.output)

    def _settle(self, used: Usage) -> None:
        """Settle `used`. Units that it does not state keep their estimate."""
        if used != Usage():
            amounts = self._amounts(used)
            for _, permit in self.granted:
                settle_counted(permit, amounts)

    def _amounts(self, used: Usage) -> dict[str, int]:
        into = self._input if used.input is None else used.input
        out = self._output if used.output is None else used.output
        return {"tokens": into + out, "input_tokens": into, "output_tokens": out}


def limit_sdk(
    client: Any, kinds: tuple[type[Any], ...], transports: Transports, chain: TokenChain
) -> None:
    """Limit a copy of the HTTP client inside `client`: others, as of `with_options`, may share it.

    Set the codings here, too: some clients sign their headers before `_new_permits`.
    """
    inside: Any = copy_client(client._client) if isinstance(client, kinds) else None
    if not limit_client(inside, chain, transports):
        names = " or an ".join(
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds
        )
        raise TypeError(f"limit({show(client)}): a client is an {names}, on httpx2.")
    inside.headers["accept-encoding"] = CODINGS
    client._client = inside
