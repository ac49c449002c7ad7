"""Notifications that no story of the twins covers: by sharded channels, and without a record.

The name of a session with sharded channels ends with "s". Its client has one channel for each name,
on the server of that name.
"""

from __future__ import annotations

import pytest
import redis

from tests.twins.model import UNHEARD
from tests.twins.wire import NOON, TIMEOUT, Acquire, Call, Caller, Pause, Release, Reply, Wire

LIMITS = "slots permits 1 30000000"


class Queue:
    """A session that holds the only permit, and others that wait behind it, in this order."""

    def __init__(self, wire: Wire, *waiters: str, listens: bool = True) -> None:
        self.wire, self.holder = wire, f"{wire.token}-1.1"
        self._says(Call(LIMITS, self.holder, 1, (Acquire(1),)))
        self._received = {
            waiter: self._says(Call(LIMITS, waiter, 1, (Acquire(1),), listens=listens), index)
            for index, waiter in enumerate(waiters, 1)
        }

    def _says(self, call: Call, after: int = 0) -> Reply:
        return self.wire.call(call, NOON + after)

    def release(self, after: int) -> None:
        self._says(
            Call(LIMITS, self.holder, 2, (Release(Caller(self.holder, 1, "-")),), declares=0), after
        )

    def granted(self, waiter: str, after: int) -> list[int]:
        """The numbers of the waiter's callers that were granted a permit."""
        received = self._received[waiter].beginning
        return [
            number
            for number, *_ in self._says(
                Call(LIMITS, waiter, 2, received=received, waits=True, declares=0), after
            ).outbox
        ]


def test_a_session_with_sharded_channels_is_notified_by_them_alone(
    wire: Wire, client: redis.Redis
) -> None:
    """L2: given one that waits, when a permit is released, then its channel brings the grant."""
    client_name = f"{wire.token}-2"
    queue = Queue(wire, f"{client_name}.1s")
    subscriber = client.pubsub(ignore_subscribe_messages=True)
    subscriber.ssubscribe(f"{wire.key}:{client_name}")
    subscriber.get_message(timeout=TIMEOUT)

    queue.release(UNHEARD)
    message = subscriber.get_message(timeout=TIMEOUT)
    subscriber.close()

    assert message is not None
    assert message["data"].startswith(f"{wire.key} {client_name}.1s ".encode())
    assert wire.notifications() == []
    assert queue.granted(f"{client_name}.1s", UNHEARD + 1) == [1]


def test_a_session_whose_sharded_channel_has_no_receiver_expires_soon(wire: Wire) -> None:
    """L3, F59: given a waiter that was killed, then the next one has the permit."""
    killed, living = f"{wire.token}-2.1s", f"{wire.token}-3.1"
    queue = Queue(wire, killed, living)

    queue.release(UNHEARD + 1)

    assert queue.granted(living, UNHEARD + 2) == [1]


def test_a_session_that_is_subscribed_elsewhere_is_notified_by_publish(wire: Wire) -> None:
    """L2: given a waiter that this server does not notify, then PUBLISH brings its grant, too."""
    waiter = f"{wire.token}-2.1s"
    queue = Queue(wire, waiter, listens=False)

    queue.release(2)

    assert [text.split(" ")[1] for text in wire.notifications()] == [waiter]


@pytest.mark.parametrize(
    "session",
    ["+2.1", "-2.1", "-2.1s"],
    ids=["without a receiver", "with a receiver", "with sharded channels"],
)
def test_a_session_whose_record_was_lost_is_no_error_for_others(wire: Wire, session: str) -> None:
    """L5: given a waiter whose record was lost, when another session pauses, then it may."""
    waiter = f"{wire.token}{session}"
    queue = Queue(wire, waiter)
    wire.client.hdel(wire.key, f"r{waiter}")

    paused = wire.call(Call(LIMITS, queue.holder, 2, (Pause(1_000_000),), declares=0), NOON + 2)

    assert (paused.verdict, paused.paused) == ("ok", NOON + 1_000_002)
