"""The holders and waiters of one name, as an operator sees them: the same types for every store."""

from __future__ import annotations

from typing import NamedTuple

MOST = 500  # holders that are listed, and as many waiters


class Label(NamedTuple):
    """The process of a session."""

    host: str
    pid: int
    program: str


class Holder(NamedTuple):
    """A held permit: its session, that session's process if it is labelled, and the cost by unit.

    `lease_left`: seconds until the lease ends, unless the session renews it. At 0 or below it has
    ended. None: no lease ends in this store.
    `held`: for how many seconds it is held. None: the store does not say. In memory it never does:
    a clock would slow down each acquire.
    """

    session_id: str
    label: Label | None
    units: dict[str, int]
    lease_left: float | None
    held: float | None = None


class Waiter(NamedTuple):
    """A queued acquire, with the same facts as a `Holder`. `position`: how many stand before it.

    `alive_for`: seconds until its session expires and the place is lost, unless the session calls.
    None: the session has expired, or no session expires in this store.
    `waited`: for how many seconds it waits. None: the store does not say.
    """

    session_id: str
    label: Label | None
    units: dict[str, int]
    position: int
    alive_for: float | None
    waited: float | None = None


class Members(NamedTuple):
    """At most MOST of each: the holders whose leases end first, and the waiters at the head.

    `holding` and `waiting` count all of them.
    """

    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    holding: int
    waiting: int
