"""The room that the SDKs of language models share: what a call will take is asked for, and what it took is settled.

Each attempt on the wire asks every limiter for one request and for the tokens that it is estimated at, in the units that the
limiter counts; the answer's usage is read as it goes by, settled when its body is over, and learned from. No SDK is known here, nor
the client under it: how a client is limited is httpx_transports.py's, how a provider speaks a `Dialect`, what is learned token_estimates.py's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from headgate.http import httpx_transports
from headgate.http.limiter_chain import ONE_OF_EACH, Calls, Exempt, Heard, Held, Key, Passed, Terms
from headgate.http.token_estimates import Estimates
from headgate.http.token_usage import CODINGS, Asked, Dialect, Reader, Usage
from headgate.limiter import Limiter
from headgate.permit import Permit
from headgate.validation import show


class Request(Protocol):
    """A request of httpx2."""

    method: str
    headers: Any

    @property
    def url(self) -> Any: ...
    @property
    def content(self) -> bytes: ...


R = TypeVar("R", bound=Request)
ByModel: TypeAlias = Key[R] | Literal["model"]

NO_MODEL = "-"  # the key of calls that name none
UNITS = ("tokens", "input_tokens", "output_tokens")


class Metering(Generic[R], Calls[R]):
    """Calls whose tokens are counted."""

    def __init__(
        self,
        limiters: tuple[Limiter, ...],
        key: ByModel[R],
        exempt: Exempt[R],
        dialect: Dialect,
        estimates: Estimates | None,
        heard: Heard | None,
    ) -> None:
        super().__init__(
            "limit",
            limiters,
            self._model_of if key == "model" else key,
            exempt,
            httpx_transports.place,
            heard,
        )
        self._dialect = dialect
        self._estimates = check_estimates(estimates)

    def _terms(self, request: R) -> Terms:
        asked = self._asked(request)
        if asked is None:
            return ONE_OF_EACH
        request.headers["accept-encoding"] = (
            CODINGS  # whatever its caller says: the answer is to be read here, too
        )
        return Bill(asked, self._dialect, self._estimates)

    def _asked(self, request: R) -> Asked | None:
        try:
            body = request.content
        except RuntimeError:  # it is sent piece by piece: an upload
            return None
        return self._dialect.asked(request.method, request.url.path, body)

    def _model_of(self, request: R) -> str:
        asked = self._asked(request)
        return NO_MODEL if asked is None else asked.model


class Bill(Terms):
    """What one attempt is estimated at, and what is charged in the end."""

    def __init__(self, asked: Asked, dialect: Dialect, estimates: Estimates) -> None:
        self.dialect = dialect
        self._asked = asked
        self._estimates = estimates
        self._input = estimates.input(asked.model, asked.characters)
        self._output = estimates.output(asked.model, asked.most) if asked.answers else 0

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """In what the limiter counts. An estimate that it could never hold is cut down: what the call took is settled anyway."""
        capacity = limiter._queue.declared.capacity
        amounts = self._amounts(Usage())
        return {
            unit: min(amounts[unit], capacity[unit])
            for unit in UNITS
            if unit in capacity and amounts[unit]
        }

    def held(self, passed: Passed, heard: Heard | None) -> Held:
        return Metered(self, passed, heard)

    def settle(self, permits: Sequence[Permit], used: Usage) -> None:
        """What is not known to have been used stands as it was estimated."""
        if used == Usage():
            return
        amounts = self._amounts(used)
        for permit in permits:
            permit.settle(
                **{unit: amounts[unit] for unit in UNITS if unit in permit._queue.declared.rated}
            )

    def learn(self, used: Usage) -> None:
        if used.input is not None:
            self._estimates.learn_input(
                self._asked.model, self._asked.characters, self._input, used.input
            )
        if used.output is not None and self._asked.answers:
            self._estimates.learn_output(self._asked.model, self._output, used.output)

    def _amounts(self, used: Usage) -> dict[str, int]:
        into = self._input if used.input is None else used.input
        out = self._output if used.output is None else used.output
        return {"tokens": into + out, "input_tokens": into, "output_tokens": out}


class Metered(Held):
    """The permits of one attempt, settled when they go back."""

    __slots__ = ("_bill", "_reader", "_refused")

    def __init__(self, bill: Bill, passed: Passed, heard: Heard | None) -> None:
        super().__init__(passed, heard)
        self._bill: Bill | None = bill
        self._reader: Reader | None = None
        self._refused = False

    def __bool__(self) -> bool:
        """There is always an answer to listen to."""
        return True

    def opened(self, response: Any) -> None:
        """What was refused or sent elsewhere was no call to a model. A body that is there already, as a mock's, is decoded."""
        self._refused = 300 <= response.status_code < 500
        if self._bill is not None and 200 <= response.status_code < 300:
            self._reader = Reader(
                self._bill.dialect, response.headers, coded=not response.is_closed
            )
            if response.is_closed:
                with suppress(RuntimeError):  # closed, and never read
                    self.hear(response.content)

    def hear(self, chunk: bytes) -> None:
        if self._reader is not None:
            self._reader.hear(chunk)

    def release(self) -> None:
        bill, self._bill = self._bill, None  # once
        if bill is not None:
            used = self._reader.usage() if self._reader is not None else Usage()
            bill.learn(used)
            bill.settle(
                [permit for _, permit in self._passed], Usage(0, 0) if self._refused else used
            )
        super().release()


class Body(httpx_transports.Body):
    """A body that is listened to, if there is a bill."""

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self._held, Metered):
            return Chunks(iter(self._inner), self._held)
        return super().__iter__()


class AsyncBody(httpx_transports.AsyncBody):
    """The same for coroutines."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self._held, Metered):
            return AsyncChunks(aiter(self._inner), self._held)
        return super().__aiter__()


class Chunks(httpx_transports.Chunks):
    """What is read is heard."""

    _held: Metered

    def __next__(self) -> bytes:
        chunk = super().__next__()
        self._held.hear(chunk)
        return chunk


class AsyncChunks(httpx_transports.AsyncChunks):
    """The same for coroutines."""

    _held: Metered

    async def __anext__(self) -> bytes:
        chunk = await super().__anext__()
        self._held.hear(chunk)
        return chunk


def put_around(client: Any, transport: Callable[[Any], Any]) -> None:
    """`httpx_transports.put_around`, in a client that asks for codings that can be read here: some sign what they ask for."""
    client.headers["accept-encoding"] = CODINGS
    httpx_transports.put_around(client, transport)


def check_estimates(estimates: object) -> Estimates:
    if estimates is None:
        return Estimates()
    if not isinstance(estimates, Estimates):
        raise TypeError(
            f"limit(estimates={show(estimates)}): write an Estimates(), which other clients may share."
        )
    return estimates
