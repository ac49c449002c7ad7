"""Costs in points, as of GraphQL: a call asks for an estimate, and is settled by the response.

The estimate is learned from earlier calls of the same operation. Only calls that pass a limiter
with a limit on points have one.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import Any, Generic, TypeVar

from headgate.http.error_bodies import decode
from headgate.http.feedback import FAILED_FROM, Feedback
from headgate.http.json_values import find_text, parse_object
from headgate.http.limiter_chain import CallPermits, LimiterChain
from headgate.http.rate_limit_headers import Answer, read
from headgate.http.token_estimates import append_recent, quantile
from headgate.internals import queue_of
from headgate.limiter import Limiter

R = TypeVar("R")  # a client's request

UNIT = "points"
FIRST = 10  # the estimate for a call before any other has stated its cost
# A larger cost is taken for an error. So a server cannot charge a budget for years.
MOST = 1_000_000
MOST_OPERATIONS = 1000  # of a client that are remembered
LARGEST = 1_000_000  # bytes of a response that are read
LONGEST = 200  # characters of a query that tell it from others


class Points:
    """The costs of the latest 64 calls of each operation. Nothing is locked, as in `Estimates`."""

    def __init__(self) -> None:
        self._costs: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._all: tuple[int, ...] = ()

    def estimate(self, operation: str) -> int:
        """Return the smallest number that nine of ten of these calls did not exceed.

        For the first call of an operation, all others count.
        """
        return max(1, ceil(quantile(self._costs.get(operation) or self._all, FIRST)))

    def learn(self, operation: str, cost: int) -> None:
        self._all = append_recent(self._all, cost)
        self._costs[operation] = append_recent(self._costs.pop(operation, ()), cost)
        if len(self._costs) > MOST_OPERATIONS:
            self._costs.popitem(last=False)  # the operation whose last call is the oldest


class PointChain(LimiterChain[R], Generic[R]):
    """The limiters of a client. Those with a limit on points are also asked for points."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._points = Points()

    def _new_permits(self, request: R) -> CallPermits:
        if not any(map(counts_points, self._limiters)):
            return super()._new_permits(request)
        operation = find_operation(self._read_body(request))
        return PointPermits(self._points, operation, self._feedback)

    def _read_body(self, request: R) -> bytes:
        """For subclasses: the body of a request, if the client has it whole."""
        return b""


class PointPermits(CallPermits):
    """The permits of one call, for its estimated points."""

    __slots__ = (
        "_body",
        "_body_feedback",
        "_headers",
        "_is_coded",
        "_operation",
        "_points",
        "_settled",
        "_status",
    )

    def __init__(self, points: Points, operation: str, feedback: Feedback | None) -> None:
        super().__init__(feedback)
        # `apply_feedback` drops the feedback once the headers are applied. The body of a 200 may
        # still refuse the call, as GraphQL's does.
        self._body_feedback = feedback
        self._points = points
        self._operation = operation
        self._body: bytearray | None = None  # of a response that is read
        self._is_coded = True  # whether the body may be compressed
        self._status = 0
        self._headers: Any = {}
        self._settled = False

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """Return the estimate, at most the capacity of `limiter`, if it counts points."""
        capacity = queue_of(limiter).declared.capacity.get(UNIT)
        if capacity is None:
            return {}
        return {UNIT: min(self._points.estimate(self._operation), capacity)}

    def apply_feedback(self, status: int, headers: Any, body: bytes = b"") -> Answer | None:
        """Settle a cost that a header or the user's hook states. A refusal or a 5xx costs none."""
        answer = super().apply_feedback(status, headers, body)
        self._settle(status, answer or read(status, headers, body))
        return answer

    def needs_end(self) -> bool:
        """Return True: the end of the body may settle the cost."""
        return True

    def watch_body(self, response: Any) -> None:
        """Read the body of a response in JSON. The client has decompressed it if it is complete."""
        if not self._settled and "json" in response.headers.get("content-type", ""):
            self._status, self._headers = response.status_code, response.headers
            self._body, self._is_coded = bytearray(), not response.is_closed

    def read_chunk(self, chunk: bytes) -> None:
        if self._body is not None:
            self._body += chunk
            if len(self._body) > LARGEST:
                self._body = None

    def release(self) -> None:
        body, self._body = self._body, None  # once
        if body:
            plain = decode(self._headers, bytes(body)) if self._is_coded else bytes(body)
            answer = read(self._status, self._headers, plain, host=self.departure.host)
            if answer.verdict != "passed" and self._body_feedback is not None:
                self._body_feedback.apply_answer(self.granted, self.departure, self._status, answer)
            self._settle(self._status, answer)
        super().release()

    def _settle(self, status: int, answer: Answer) -> None:
        served = answer.verdict == "passed" and status < FAILED_FROM
        cost = answer.cost if served else 0
        if self._settled or cost is None or not 0 <= cost <= MOST:
            return
        self._settled = True
        if served:
            self._points.learn(self._operation, cost)
        self.settle_stated({UNIT: cost})


def counts_points(limiter: Limiter) -> bool:
    return UNIT in queue_of(limiter).declared.capacity


def find_operation(body: bytes) -> str:
    """Return the name of a GraphQL operation, or the beginning of its query."""
    request = parse_object(body)
    return find_text(request, "operationName") or find_text(request, "query")[:LONGEST]
