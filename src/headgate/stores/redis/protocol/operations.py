"""The operations of a session: all its requests but the acquires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from headgate.errors import StoreError
from headgate.stores.redis.protocol.replies import Answer, StatusAnswer

if TYPE_CHECKING:
    from headgate.permit import Permit
    from headgate.request import Request

Outcome = Answer | StatusAnswer | StoreError
# A call states one of these about its limits.
KNOWN = 0  # the store knows them
DECLARED = 1  # this process declares them
UPDATED = 2  # the same, and they overrule all others
ASKED = 3  # the call only asks: nothing is declared, and the name gets no state
OFFERED = 4  # nothing is declared; they hold until a process declares some, or offers others


class Promise(Protocol):
    """The place for one outcome, such as a future. A cancelled one is done, too."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...
    def cancel(self) -> object: ...


class Caller(NamedTuple):
    """The id of an acquire: its session, its number there, and its cost as text (`asked`)."""

    session_id: str
    number: int
    asked: str

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}:{self.asked}"


# Each permit has one: this is twice as fast as the constructor.
new_caller: Callable[[tuple[str, int, str]], Caller] = partial(tuple.__new__, Caller)


@dataclass(slots=True, eq=False)
class Operation:
    """It is written as its verb, and then its fields in order."""

    asker: Promise | None = field(default=None, kw_only=True)  # it gets the answer

    verb: ClassVar[str]
    # The least that its call must state about the limits.
    needs: ClassVar[int] = KNOWN
    # The user calls it by a method of a limiter or permit. So if it cannot be delivered, a log line
    # names it.
    logged: ClassVar[bool] = True
    # A second one changes nothing, so it may be sent again after a refusal.
    repeatable: ClassVar[bool] = True
    # A release is likely to follow in the same turn, and travels in the same call.
    leads_release: ClassVar[bool] = False

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, *(getattr(self, each.name) for each in fields(self) if not each.kw_only))

    def owed_at(self, now: float) -> bool:
        """Whether the session must still deliver it after its caller failed with StoreError."""
        return self.asker is None


@dataclass(slots=True, eq=False)
class GivingBack(Operation):
    caller: Caller
    t: int = 0  # only of a cancel: the moment of the grant that it undoes

    def write(self, count: int) -> tuple[Any, ...]:
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, count, asked)

    def count_alike(self, operations: Sequence[Operation], index: int) -> int:
        """How many of `operations` are written together, from this one at `index` on.

        One with an asker is alone: an answer for several would not say which were held. So is the
        cancel of a grant, because it names the grant's own moment.
        """
        count, kind, (session_id, number, asked) = 1, type(self), self.caller
        if self.asker is not None or self.t:
            return 1
        while index + count < len(operations):
            other = operations[index + count]
            if (
                type(other) is not kind
                or other.asker is not None
                or other.caller != (session_id, number + count, asked)
                or other.t
            ):
                break
            count += 1
        return count


@dataclass(slots=True, eq=False)
class Release(GivingBack):
    verb = "release"

    def owed_at(self, now: float) -> bool:
        return True


@dataclass(slots=True, eq=False)
class Cancel(GivingBack):
    verb = "cancel"
    logged = False

    def write(self, count: int) -> tuple[Any, ...]:
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, count, self.t, asked)


@dataclass(slots=True, eq=False)
class Amend(Operation):
    """A waiter asks for another cost. `NextCall` makes it anew for each call."""

    verb = "amend"
    logged = False

    number: int
    asked: str
    renewed: Request = field(kw_only=True)
    # Gets the new request when the server has changed the cost.
    accept: Callable[[Request], None] = field(kw_only=True)

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.number, self.asked, self.renewed.text)

    def owed_at(self, now: float) -> bool:
        return False


@dataclass(slots=True, eq=False)
class Renew(Operation):
    verb = "renew"
    logged = False

    permit: Permit
    lease: int

    def owed_at(self, now: float) -> bool:
        return False

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, str(self.permit.key), self.lease, self.permit.t)


@dataclass(slots=True, eq=False)
class Settle(Operation):
    verb = "settle"
    repeatable = False
    leads_release = True

    t: int  # the moment of the grant
    extras: str  # its real cost


@dataclass(slots=True, eq=False)
class Update(Operation):
    verb = "update"

    overruled: str  # the limits that this process has declared before, or empty

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.overruled.replace(" ", ",") or "-")


@dataclass(slots=True, eq=False)
class ShortLived(Operation):
    """It is about this moment, and soon worth nothing."""

    until: float = field(default=0.0, kw_only=True)  # on the monotonic clock

    def owed_at(self, now: float) -> bool:
        return now < self.until


@dataclass(slots=True, eq=False)
class Resume(ShortLived):
    verb = "resume"
    needs = ASKED


@dataclass(slots=True, eq=False)
class Reset(ShortLived):
    verb = "reset"
    needs = ASKED


@dataclass(slots=True, eq=False)
class Pause(ShortLived):
    """No caller passes for `time` microseconds."""

    verb = "pause"
    needs = OFFERED

    time: int


@dataclass(slots=True, eq=False)
class Drain(ShortLived):
    verb = "drain"
    needs = OFFERED

    unit: str
    limit: int
    left: int
    since: int


@dataclass(slots=True, eq=False)
class WithinCall(Operation):
    """It has no effect after its call."""

    needs = ASKED
    logged = False

    def owed_at(self, now: float) -> bool:
        return False  # The answer is worth nothing to a caller that has left.


@dataclass(slots=True, eq=False)
class AskStatus(WithinCall):
    verb = "status"

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, "-")  # the status for an acquire of the usual cost


@dataclass(slots=True, eq=False)
class Watch(AskStatus):
    """For a whole limiter whose keys are used: the server notifies its session of a pause.

    OFFERED, because the server keeps the session in the state of the name.
    """

    needs = OFFERED


@dataclass(slots=True, eq=False)
class PauseWhole(WithinCall):
    """For a key: no caller passes for `time` microseconds, because the whole limiter is paused."""

    verb = "whole"

    time: int


@dataclass(slots=True, eq=False)
class AskDeclared(WithinCall):
    verb = "declared"


@dataclass(slots=True, eq=False)
class AskInUse(AskDeclared):
    """A state without declared limits is enough, as the use of a key creates it."""

    needs = OFFERED


@dataclass(slots=True, eq=False)
class Rejoin(Operation):
    """It undoes a grant in a pause, so that its caller waits again."""

    verb = "rejoin"
    logged = False
    repeatable = False  # a second one would undo another grant

    caller: Caller
    t: int
    fence: int

    @property
    def words(self) -> tuple[Any, ...]:
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, self.t, self.fence, asked)


@dataclass(slots=True, eq=False)
class Quit(Operation):
    """The end of a former session."""

    verb = "quit"
    logged = False

    session_id: str
    kept: str  # the numbers of the callers that still hold something


@dataclass(slots=True, eq=False)
class Leave(Quit):
    """The end of the present session, which keeps what it holds. It travels alone."""

    kept: str = "*"

    def owed_at(self, now: float) -> bool:
        return False
