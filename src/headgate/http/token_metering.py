"""The common part of the SDKs: ask for the estimated tokens of a call, and settle its usage.

The usage is read from the response as it passes, and settled and learned from when its body ends.
No SDK and no client is imported here. httpx_transports.py limits the client, a `Dialect` holds the
words of a provider, and token_estimates.py learns.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, TypeAlias, TypeVar

from headgate.http.feedback import ApplyFeedback, Granted
from headgate.http.httpx_transports import Transports, find_place, limit_client
from headgate.http.limiter_chain import (
    ONE_OF_EACH,
    CallCost,
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
    """The limiters of an SDK's client."""

    def __init__(
        self,
        limiters: tuple[Limiter, ...],
        dialect: Dialect,
        estimates: Estimates | None,
        key: ByModel[Any],
        exempt: Exempt[Any],
        feedback: bool,
        adopt: bool,
    ) -> None:
        by = self._find_model if key == "model" else key
        super().__init__("limit", limiters, by, exempt, find_place, feedback, adopt)
        if estimates is not None and not isinstance(estimates, Estimates):
            raise TypeError(
                f"limit(estimates={show(estimates)}): write an Estimates(), which other clients "
                "may share."
            )
        self._dialect = dialect
        self._estimates = Estimates() if estimates is None else estimates

    def _cost_of(self, request: Any) -> CallCost:
        asked = self._read(request)
        if asked is None:
            return ONE_OF_EACH
        # The caller may accept other codings, but the response has to be read here, too.
        request.headers["accept-encoding"] = CODINGS
        return TokenCost(asked, self._dialect, self._estimates)

    def _read(self, request: Any) -> Asked | None:
        try:
            body = request.content
        except RuntimeError:  # an upload, which is sent piece by piece
            return None
        return self._dialect.read_request(request.method, request.url.path, body)

    def _find_model(self, request: Any) -> str:
        asked = self._read(request)
        return NO_MODEL if asked is None else asked.model


class TokenCost(CallCost):
    """The estimated tokens of one attempt."""

    def __init__(self, asked: Asked, dialect: Dialect, estimates: Estimates) -> None:
        self.dialect = dialect
        self._asked = asked
        self._estimates = estimates
        self._input = estimates.input(asked.model, asked.characters)
        self._output = estimates.output(asked.model, asked.most) if asked.answers else 0

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """Return the estimate in the units of `limiter`, at most its capacity.

        The call's real usage is settled in any case.
        """
        capacity = queue_of(limiter).declared.capacity
        amounts = self._amounts(Usage())
        return {
            unit: min(amounts[unit], capacity[unit])
            for unit in UNITS
            if unit in capacity and amounts[unit]
        }

    def hold(self, granted: Granted, apply_feedback: ApplyFeedback | None) -> CallPermits:
        return MeteredPermits(self, granted, apply_feedback)

    def settle(self, granted: Granted, used: Usage) -> None:
        """Settle `used`. Units that it does not state keep their estimate."""
        if used != Usage():
            amounts = self._amounts(used)
            for _, permit in granted:
                settle_counted(permit, amounts)

    def learn(self, used: Usage) -> None:
        model = self._asked.model
        if used.input is not None:
            self._estimates.learn_input(model, self._asked.characters, self._input, used.input)
        if used.output is not None and self._asked.answers:
            self._estimates.learn_output(model, self._output, used.output)

    def _amounts(self, used: Usage) -> dict[str, int]:
        into = self._input if used.input is None else used.input
        out = self._output if used.output is None else used.output
        return {"tokens": into + out, "input_tokens": into, "output_tokens": out}


class MeteredPermits(CallPermits):
    """The permits of one attempt. Their release settles the usage."""

    __slots__ = ("_cost", "_is_refused", "_reader")

    def __init__(
        self, cost: TokenCost, granted: Granted, apply_feedback: ApplyFeedback | None
    ) -> None:
        super().__init__(granted, apply_feedback)
        self._cost: TokenCost | None = cost  # until it is settled
        self._reader: UsageReader | None = None
        self._is_refused = False

    def __bool__(self) -> bool:
        """True: there is always a body to read."""
        return True

    def watch_body(self, response: Any) -> None:
        """Read the usage of a response. A refusal or a redirect used no tokens.

        A body that is complete already, as a mock's is, is not compressed any more.
        """
        self._is_refused = 300 <= response.status_code < 500
        if self._cost is None or not 200 <= response.status_code < 300:
            return
        complete = response.is_closed
        self._reader = UsageReader(self._cost.dialect, response.headers, coded=not complete)
        if complete:
            with suppress(RuntimeError):  # it was closed before it was read
                self.read_chunk(response.content)

    def read_chunk(self, chunk: bytes) -> None:
        if self._reader is not None:
            self._reader.read_chunk(chunk)

    def release(self) -> None:
        cost, self._cost = self._cost, None  # once
        if cost is not None:
            used = Usage() if self._reader is None else self._reader.usage()
            cost.learn(used)
            cost.settle(self._granted, Usage(0, 0) if self._is_refused else used)
        super().release()


def limit_sdk(
    client: Any, kinds: tuple[type[Any], ...], transports: Transports, chain: TokenChain
) -> None:
    """Limit the HTTP client inside `client`.

    Every request asks for readable codings from the start, because some clients sign their headers
    before they send.
    """
    inside: Any = getattr(client, "_client", None)
    if not (isinstance(client, kinds) and limit_client(inside, chain, transports)):
        names = " or an ".join(
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds
        )
        raise TypeError(f"limit({show(client)}): a client is an {names}, on httpx2.")
    inside.headers["accept-encoding"] = CODINGS
