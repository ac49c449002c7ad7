"""The effects of the server's decisions about the callers of a session."""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, cast

from headgate.errors import StoreError
from headgate.gate.gate import Grant
from headgate.stores.change_events import note_fleet_pause
from headgate.stores.redis.protocol.operations import DECLARED, UPDATED, Rejoin
from headgate.stores.redis.protocol.replies import Answer
from headgate.stores.refusals import never, queue_full, too_long

if TYPE_CHECKING:
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.protocol.replies import GrantedAtOnce, Outbox
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.deadlines import Deadlines
    from headgate.stores.redis.session.lease_renewal import LeaseRenewal
    from headgate.stores.redis.session.local_handoff import LocalHandoff
    from headgate.stores.redis.session.numbering import Numbering
    from headgate.stores.redis.session.traffic import Sent, Traffic


class Grants:
    def __init__(
        self,
        limits: LimitSync,
        numbering: Numbering,
        traffic: Traffic,
        renewal: LeaseRenewal,
        handoff: LocalHandoff,
        deadlines: Deadlines,
    ) -> None:
        self._limits = limits
        self._numbering = numbering
        self._traffic = traffic
        self._last_reply = numbering.last_reply
        self._renewal = renewal
        self._handoff = handoff
        self._deadlines = deadlines

    def accept_at_once(self, sent: Sent, reply: GrantedAtOnce, now: float) -> None:
        """The only acquire of a call is granted. If its caller has left, its grant goes back."""
        self.note_reply(sent, reply.now)
        pending = sent.acquires[0]
        if not pending.t:  # otherwise a notification was faster
            self._traffic.waiting.pop(pending.number, None)
            self.apply_grant(pending, reply.grant, sent.lease, reply.now, now)

    def note_reply(self, sent: Sent, server_now: int) -> None:
        last, command = self._last_reply, sent.command
        if command.declares in (DECLARED, UPDATED) or command.program != last.program:
            self._handoff.note_limits(server_now)
        last.number, last.program, last.server_time = command.number, command.program, server_now
        last.asked_at, last.lease = sent.at, sent.lease

    def apply_answers(
        self, acquires: list[PendingAcquire], answers: list[Answer], now: float
    ) -> tuple[bool, int | None]:
        """Return whether all were granted, and how many are before the first that waits."""
        for pending, answer in zip(acquires, answers, strict=True):
            if not pending.t:  # otherwise a notification was faster
                self._apply_answer(pending, answer, now)
        kinds = [answer.kind for answer in answers]
        # The `fence` of a wait is its position.
        ahead = answers[kinds.index("wait")].fence if "wait" in kinds else None
        return kinds.count("grant") == len(kinds), ahead

    def _apply_answer(self, pending: PendingAcquire, answer: Answer, now: float) -> None:
        kind, number, fence = answer
        if kind == "wait":
            self._apply_wait(pending, number, fence, now)
            return
        self._traffic.waiting.pop(pending.number, None)
        name = self._limits.name
        if kind == "grant":
            last = self._last_reply
            self.apply_grant(pending, Grant(number, fence), last.lease, last.server_time, now)
        elif kind == "never":
            pending.resolve(never(name, self._limits.declared, pending.request))
        elif kind == "full":
            pending.resolve(queue_full(name, pending.request, number, fence))
        else:
            pending.resolve(too_long(name, pending.request, number))

    def _apply_wait(self, pending: PendingAcquire, delay: int, position: int, now: float) -> None:
        pending.queued, pending.due = True, now + delay / 1_000_000 if delay else inf
        if pending.future.done():
            self._traffic.withdraw(pending)
            return
        if pending.grant_future is not None:
            pending.report_wait(pending.grant_future, position, delay)
        if pending.request.max_sleep is not None:
            self._deadlines.limit_wait(pending, pending.request.max_sleep)

    def apply_grant(
        self, pending: PendingAcquire, grant: Grant, lease: int, server_now: int, now: float
    ) -> None:
        """Sleep until the moment of the grant, counted from now, so never too early (TL1)."""
        pending.t = t = grant.t
        self._handoff.note_grant(pending)
        traffic = self._traffic
        pending.certain_until = self._certain_until(t, lease, server_now, now) if lease else None
        if pending.future.done():
            traffic.give_up(pending)
            return
        if lease:
            self._renewal.expected[pending] = lease
        reserved = traffic.reserved
        # The first condition saves time for a limiter that is no key.
        whole_paused = reserved.whole is not None and reserved.is_whole_paused(now)
        if t <= server_now and not (reserved.sleepers or whole_paused):
            pending.future.set_result(grant)
        else:
            pending.queued = True
            reserved.sleep(pending, grant, t - server_now, now)
            if whole_paused or reserved.precedes_pause(grant):  # news of the pause was faster
                self.hold_back(now)

    def _certain_until(self, t: int, lease: int, server_now: int, now: float) -> float:
        """The moment until which a permit granted for `t` is certain (S2, lease time).

        The lease ends at `t + lease` by the server's clock. Two pairs of moments translate that to
        the clock of this process. One is the server's time in the last reply, and the sending of
        its call. The other is `server_now` of a notification, and its arrival. The server's clock
        may have stepped in between, so the earlier end counts.
        """
        known, sent = self._last_reply.server_time, self._traffic.sent
        if not known:  # A notification was faster than the first reply: the call in flight asked.
            return (sent.at if sent else 0.0) + lease / 1_000_000
        end = self._last_reply.asked_at + (t + lease - known) / 1_000_000
        if server_now == known:
            return end
        return min(end, now + (t + lease - server_now) / 1_000_000)

    def apply_outbox(self, outbox: Outbox, server_now: int, now: float) -> dict[int, bool]:
        """Apply grants and a pause. Return, by fence, whether a caller claims the grant."""
        claims, traffic = {}, self._traffic
        for number, t, fence, lease in outbox.grants:
            self._handoff.outbox_grants += 1
            if number in traffic.waiting and fence <= traffic.waiting[number].undone_fence:
                continue  # a pause has undone this grant
            pending = traffic.waiting.pop(number, None) or traffic.abandoned.pop(number, None)
            claims[fence] = pending is not None or t < 0  # a refusal needs no caller
            if pending is None:
                continue  # the grant was applied before, or the state has gone back
            if t < 0:
                pending.resolve(never(self._limits.name, self._limits.declared, pending.request))
            else:
                self.apply_grant(pending, Grant(t, fence), lease, server_now, now)
        if outbox.pause is not None:
            traffic.pause_news = server_now, outbox.pause
            self._handoff.stop()  # callers that are held back elsewhere may come before ours
            if traffic.reserved.pause(server_now, outbox.pause, now):
                note_fleet_pause(self._limits.name, outbox.pause / 1_000_000)
                self.hold_back(now)
        return claims

    def hold_back(self, now: float) -> None:
        """Let callers wait again during a pause, before all others (T3, order of moments)."""
        traffic = self._traffic
        held = traffic.reserved.take_held_back(self._numbering.session_id)
        for pending, grant in held:
            traffic.operations.append(Rejoin(pending.caller, grant.t, grant.fence))
            pending.t, pending.undone_fence = 0, grant.fence
            pending.due = now + traffic.reserved.pause_left(now)
            if pending.request.max_sleep is not None:
                self._deadlines.limit_wait(pending, pending.request.max_sleep)
        if held:
            first = OrderedDict({pending.number: pending for pending, _ in held})
            traffic.waiting = first | traffic.waiting
            traffic.schedule()

    def on_rejoined(self, rejoin: Rejoin, answer: Outcome) -> None:
        """Ask again, behind all others, for a grant that the server has forgotten (S6, FIFO)."""
        pending = self._traffic.waiting.get(rejoin.caller.number)
        lost = not isinstance(answer, StoreError) and not cast(Answer, answer).number
        if lost and pending is not None and pending.caller == rejoin.caller:
            del self._traffic.waiting[pending.number]
            self._numbering.last_acquire = pending.number = self._numbering.last_acquire + 1
            self._traffic.acquires.append(pending)
