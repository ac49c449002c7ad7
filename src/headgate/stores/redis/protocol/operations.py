"""The operations of a session: all its requests but the acquires.

Each type says how it is written, what the call that carries it needs, and what happens when the
server is away or refuses it.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headgate.errors import StoreError
from headgate.stores.redis.protocol.replies import Answer, StatusAnswer

if TYPE_CHECKING:
    from headgate.permit import Permit

Outcome = Answer | StatusAnswer | StoreError
# The statement of a call about the limits that it names. The store knows them; or the call declares
# them; or it declares them and overrules all others.
KNOWN, DECLARED, UPDATED = 0, 1, 2
# The call declares nothing. With ASKED it creates no state for the name. With OFFERED it creates
# a state, and these limits hold until a process declares some.
ASKED, OFFERED = 3, 4


class Caller(NamedTuple):
    """An acquire, as the script knows it."""

    session_id: str
    number: int
    asked: str

    def __str__(self) -> str:
        return f"{self.session_id}:{self.number}:{self.asked}"


class Operation:
    """A request that is no acquire.

    `asker` gets the answer. None: no caller waits for it.
    """

    __slots__ = ("asker",)

    verb: ClassVar[str]
    # KNOWN: it needs declared limits. OFFERED: it needs none, and creates a state for the name, so
    # that the first caller that acquires finds it. ASKED: it changes nothing without a state.
    needs: ClassVar[int] = KNOWN
    # It is a method of the user's limiter or permit. A log line names it when it is given up.
    logged: ClassVar[bool] = True
    # A second one changes nothing, so it may be sent again after the server has refused it.
    repeatable: ClassVar[bool] = True
    # A release is likely to follow in the same turn of the loop, and travels in the same call.
    leads_release: ClassVar[bool] = False

    def __init__(self, asker: Asker | None = None) -> None:
        self.asker = asker

    @property
    def words(self) -> tuple[Any, ...]:
        """The operation as the script reads it."""
        return (self.verb,)

    @property
    def owed(self) -> bool:
        """Whether it must be delivered, even after a caller got the error that the server is away."""
        return self.asker is None


Asker = Future[Any] | Callable[[Outcome], object]


class GivingBack(Operation):
    """It gives back a grant or a place.

    The script reads neighbours as one. It then says how many of them were held or waited, and not
    which. So they are written as one only if no caller waits for the answers.
    """

    __slots__ = ("caller", "t")

    def __init__(self, caller: Caller, t: int = 0, asker: Asker | None = None) -> None:
        self.caller = caller
        self.t = t  # the moment of a grant that a cancel undoes, or 0
        self.asker = asker

    def write(self, count: int) -> tuple[Any, ...]:
        """Write `count` neighbours, of which this is the first."""
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, count, asked)

    def count_alike(self, following: Iterable[Operation]) -> int:
        """How many operations are written together, from this one on.

        The cancel of a grant is written alone, because it names the grant's own moment.
        """
        count, kind, (session_id, number, asked) = 1, type(self), self.caller
        if self.asker is not None or self.t:
            return 1
        for other in following:
            if (
                type(other) is not kind
                or other.asker is not None
                or other.caller != (session_id, number + count, asked)
                or other.t
            ):
                break
            count += 1
        return count


class Release(GivingBack):
    """The end of a permit."""

    __slots__ = ()
    verb = "release"

    @property
    def owed(self) -> bool:
        return True


class Cancel(GivingBack):
    """The end of an acquire: of its grant, if there is one, or of its place."""

    __slots__ = ()
    verb = "cancel"
    logged = False

    def write(self, count: int) -> tuple[Any, ...]:
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, count, self.t, asked)


class Renew(Operation):
    """The renewal of the lease of a permit. The next one follows in time."""

    __slots__ = ("lease", "permit")
    verb = "renew"
    logged = False
    owed = False

    def __init__(self, permit: Permit, lease: int) -> None:
        super().__init__()
        self.permit = permit
        self.lease = lease

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, str(self.permit.key), self.lease)


class Settle(Operation):
    """The real cost of the grant of the moment `t`. A second one would change something."""

    __slots__ = ("extras", "t")
    verb = "settle"
    repeatable = False
    leads_release = True

    def __init__(self, t: int, extras: str) -> None:
        super().__init__()
        self.t = t
        self.extras = extras

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.t, self.extras)


class Update(Operation):
    """Limits that overrule all others. It names the limits that this process declared last."""

    __slots__ = ("overruled",)
    verb = "update"

    def __init__(self, overruled: str, asker: Asker | None = None) -> None:
        super().__init__(asker)
        self.overruled = overruled

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.overruled)


class Statement(Operation):
    """It is about this moment, and soon worth nothing."""

    __slots__ = ("until",)

    def __init__(self, until: float = 0.0, asker: Asker | None = None) -> None:
        super().__init__(asker)
        self.until = until  # the end of its worth, on the monotonic clock

    @property
    def owed(self) -> bool:
        return monotonic() < self.until


class Resume(Statement):
    """The end of a pause."""

    __slots__ = ()
    verb = "resume"
    needs = ASKED


class Reset(Statement):
    """All limits as new."""

    __slots__ = ()
    verb = "reset"
    needs = ASKED


class Pause(Statement):
    """No caller passes for `time` microseconds."""

    __slots__ = ("time",)
    verb = "pause"
    needs = OFFERED

    def __init__(self, time: int, until: float = 0.0, asker: Asker | None = None) -> None:
        super().__init__(until, asker)
        self.time = time

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.time)


class Drain(Statement):
    """The service says how much of a unit is `left`."""

    __slots__ = ("left", "limit", "since", "unit")
    verb = "drain"
    needs = OFFERED

    def __init__(self, unit: str, limit: int, left: int, since: int, until: float) -> None:
        super().__init__(until)
        self.unit = unit
        self.limit = limit
        self.left = left
        self.since = since

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.unit, self.limit, self.left, self.since)


class Look(Operation):
    """A question. Its answer is worth nothing to a caller that has left."""

    __slots__ = ()
    needs = ASKED
    logged = False
    owed = False


class AskStatus(Look):
    """The limits, and what is left of them."""

    __slots__ = ()
    verb = "status"

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, "-")


class AskDeclared(Look):
    """Whether a process has declared limits of the name."""

    __slots__ = ()
    verb = "declared"


class Rejoin(Operation):
    """It undoes a grant in a pause, so that its caller waits again. A second one would, too."""

    __slots__ = ("caller", "fence", "t")
    verb = "rejoin"
    logged = False
    repeatable = False

    def __init__(self, caller: Caller, t: int, fence: int) -> None:
        super().__init__()
        self.caller = caller
        self.t = t
        self.fence = fence

    @property
    def words(self) -> tuple[Any, ...]:
        session_id, number, asked = self.caller
        return (self.verb, session_id, number, self.t, self.fence, asked)


class Quit(Operation):
    """The end of a session, which holds only the callers with the numbers in `kept`."""

    __slots__ = ("kept", "session_id")
    verb = "quit"
    logged = False

    def __init__(self, session_id: str, kept: str) -> None:
        super().__init__()
        self.session_id = session_id
        self.kept = kept or "-"

    @property
    def words(self) -> tuple[Any, ...]:
        return (self.verb, self.session_id, self.kept)


class Leave(Quit):
    """The end of the present session, which keeps all that it holds. Its last call is this alone."""

    __slots__ = ()
    owed = False

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, "*")
