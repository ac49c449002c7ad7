"""The rows: which work, by which entrant, how often. A row is data; shapes.py does the work, and
peers/ has the entrants.

Every peer that can do a row's work is in it, in its documented way; where that fails, also in one
that works.
"""

from __future__ import annotations

from benchmarks import shapes
from benchmarks.peers import (
    aiolimiter,
    alone,
    bare,
    headgate,
    limiters,
    limits,
    self_limiters,
    standard,
    steindamm,
    throttled,
    wire,
)
from benchmarks.stage import Contestant, Goal, Opening, Role, Row, Shape

MEMORY_TIMES, MEMORY_QUICK = 20_000, 5_000
# One after another on Redis: short turns and many of them. Most of such a round trip is waiting for
# a core to wake. That takes 50 us in one minute of a machine and 300 in the next. Only turns that
# lie close together have the same weather.
TURN_TIMES, TURN_ROUNDS = 50, 150
THREAD_TIMES, THREAD_QUICK = 40_000, 8_000
AT_ONCE = 100
MANY_AT_ONCE, MANY_QUICK = 10_000, 2_000
UNCONTENDED = CONTENDED = 10
NARROW = 2

# A goal stands beside its row because the table shows both; they are those of the design, section
# 5.
BELOW = 1.0
NEAR_BARE = 1 / 1.15
AS_FAST = 1 / 1.1  # two halves of one run differ by a tenth anyway
ONE_TRIP = "one bare trip for all"
DECIDED = "the same, decided by our script"
SEMAPHORE_LEADS = {1: 3.0, 10: 10.0, 100: 20.0}


def ours(opening: Opening, shape: Shape) -> Contestant:
    return Contestant("headgate", Role.OURS, opening, shape)


def peer(name: str, opening: Opening, shape: Shape) -> Contestant:
    return Contestant(name, Role.PEER, opening, shape)


def floor(name: str, opening: Opening, shape: Shape) -> Contestant:
    return Contestant(name, Role.FLOOR, opening, shape)


def rates_in_process() -> list[Row]:
    turn, turn_sync = shapes.entered_in_turn, shapes.entered_in_turn_sync
    return [
        Row(
            "rate-async",
            "in process: one rate, `async with`, nobody waits",
            MEMORY_TIMES,
            (
                ours(headgate.rate, turn),
                peer("aiolimiter", aiolimiter.rate, turn),
                peer("steindamm", steindamm.rate, turn),
                peer("throttled-py", throttled.rate, turn),
                peer("limits, fixed window", limits.rate, shapes.called_in_turn),
                floor("asyncio.Semaphore", standard.asyncio_semaphore(UNCONTENDED), turn),
            ),
            quick_times=MEMORY_QUICK,
            goal=Goal("in process, `async with`, a rate", Role.FLOOR, BELOW),
        ),
        Row(
            "rate-sync",
            "in process: one rate, `with`, nobody waits",
            MEMORY_TIMES,
            (
                ours(headgate.rate, turn_sync),
                peer("steindamm", steindamm.rate_sync, turn_sync),
                peer("throttled-py", throttled.rate_sync, turn_sync),
                peer("limits, fixed window", limits.rate_sync, shapes.called_in_turn_sync),
                floor("threading.Semaphore", standard.threading_semaphore(UNCONTENDED), turn_sync),
            ),
            quick_times=MEMORY_QUICK,
            goal=Goal("in process, `with`, a rate", Role.FLOOR, BELOW),
        ),
    ]


def concurrency_in_process() -> list[Row]:
    turn, turn_sync = shapes.entered_in_turn, shapes.entered_in_turn_sync
    return [
        Row(
            "concurrency-async",
            "in process: concurrency, `async with`, nobody waits",
            MEMORY_TIMES,
            (
                ours(headgate.concurrency(UNCONTENDED), turn),
                peer("asyncio.Semaphore", standard.asyncio_semaphore(UNCONTENDED), turn),
                peer("steindamm", steindamm.concurrency(UNCONTENDED), turn),
            ),
            quick_times=MEMORY_QUICK,
            goal=Goal("in process, `async with`, concurrency", Role.PEER, BELOW),
        ),
        Row(
            "concurrency-sync",
            "in process: concurrency, `with`, nobody waits",
            MEMORY_TIMES,
            (
                ours(headgate.concurrency(UNCONTENDED), turn_sync),
                peer("threading.Semaphore", standard.threading_semaphore(UNCONTENDED), turn_sync),
                peer("steindamm", steindamm.concurrency_sync(UNCONTENDED), turn_sync),
            ),
            quick_times=MEMORY_QUICK,
            goal=Goal("in process, `with`, concurrency", Role.PEER, BELOW),
        ),
    ]


def contended_in_process() -> list[Row]:
    crowd, threads = shapes.entered_at_once, shapes.entered_by_threads
    return [
        Row(
            "concurrency-tasks",
            f"in process: {{times}} tasks through a capacity of {CONTENDED}",
            1_000,
            (
                ours(headgate.concurrency(CONTENDED), crowd),
                peer("asyncio.Semaphore", standard.asyncio_semaphore(CONTENDED), crowd),
                peer("steindamm", steindamm.concurrency(CONTENDED), crowd),
            ),
            rounds=201,
        ),
        Row(
            "concurrency-threads",
            f"in process: {shapes.THREADS} threads through a capacity of {NARROW}, {{times}} "
            "entries",
            THREAD_TIMES,
            (
                ours(headgate.concurrency(NARROW), threads),
                peer("threading.Semaphore", standard.threading_semaphore(NARROW), threads),
                peer("steindamm", steindamm.concurrency_sync(NARROW), threads),
            ),
            quick_times=THREAD_QUICK,
        ),
    ]


def bucket_floors(shape: Shape) -> tuple[Contestant, Contestant]:
    return floor(ONE_TRIP, wire.gate(AT_ONCE), shape), floor(DECIDED, alone.bucket, shape)


def buckets_at_once() -> list[Row]:
    made, entered = shapes.made_and_entered_at_once, shapes.entered_at_once
    documented = (
        peer("self-limiters", self_limiters.token_bucket, made),
        peer("redis-rate-limiters", limiters.token_bucket, made),
        peer("steindamm", steindamm.token_bucket, made),
        peer("throttled-py", throttled.token_bucket, made),
    )
    patient = (
        peer("redis-rate-limiters, blocking pool", limiters.token_bucket_patient, made),
        peer("steindamm, blocking pool", steindamm.token_bucket_patient, made),
        peer("throttled-py, blocking pool", throttled.token_bucket_patient, made),
    )
    return [
        Row(
            "bucket-classic",
            "token bucket on Redis: {times} instances made and entered at once",
            AT_ONCE,
            (ours(headgate.token_bucket, made), *documented, *bucket_floors(made)),
            rounds=25,
            goal=Goal("bucket on Redis, {times} at once", Role.PEER, 10.0),
        ),
        Row(
            "bucket-one",
            "token bucket on Redis: one instance entered {times} times at once",
            AT_ONCE,
            (
                ours(headgate.token_bucket, entered),
                peer("self-limiters", self_limiters.token_bucket, entered),
                peer("redis-rate-limiters", limiters.token_bucket, entered),
                peer("steindamm", steindamm.token_bucket, entered),
                peer("throttled-py", throttled.token_bucket, entered),
                *bucket_floors(entered),
            ),
            rounds=25,
        ),
        Row(
            "bucket-many",
            "token bucket on Redis: {times} instances made and entered at once",
            MANY_AT_ONCE,
            (ours(headgate.token_bucket, made), *documented, *patient),
            rounds=3,
            quick_times=MANY_QUICK,
        ),
        crowd_sizes(),
    ]


def crowd_sizes() -> Row:
    made, by_the_hundred = shapes.made_and_entered_at_once, shapes.made_and_entered_by_the_hundred
    return Row(
        "bucket-scale",
        "token bucket on Redis: {times} at once, or in crowds of 100 one after another",
        MANY_AT_ONCE,
        (
            ours(headgate.token_bucket, made),
            Contestant(
                "headgate, 100 at once", Role.VARIANT, headgate.token_bucket, by_the_hundred
            ),
            floor("tasks that do nothing", standard.nothing, made),
            floor("the same, 100 at once", standard.nothing, by_the_hundred),
        ),
        quick_times=MANY_QUICK,
        goal=Goal("bucket on Redis, {times} at once", Role.VARIANT, AS_FAST),
    )


def buckets_in_turn() -> list[Row]:
    turn, turn_sync = shapes.entered_in_turn, shapes.entered_in_turn_sync
    return [
        Row(
            "bucket-turn-async",
            "token bucket on Redis: one after another, `async with`",
            TURN_TIMES,
            (
                ours(headgate.token_bucket, turn),
                peer("self-limiters", self_limiters.token_bucket, turn),
                peer("redis-rate-limiters", limiters.token_bucket, turn),
                peer("steindamm", steindamm.token_bucket, turn),
                peer("throttled-py", throttled.token_bucket, turn),
                peer("limits, fixed window", limits.fixed_window, shapes.called_in_turn),
                floor("bare EVALSHA", bare.evalsha, shapes.called_in_turn),
            ),
            rounds=TURN_ROUNDS,
            goal=Goal("bucket on Redis, one by one, `async with`", Role.FLOOR, NEAR_BARE),
        ),
        Row(
            "bucket-turn-sync",
            "token bucket on Redis: one after another, `with`",
            TURN_TIMES,
            (
                ours(headgate.token_bucket, turn_sync),
                peer("redis-rate-limiters", limiters.token_bucket_sync, turn_sync),
                peer("steindamm", steindamm.token_bucket_sync, turn_sync),
                peer("throttled-py", throttled.token_bucket_sync, turn_sync),
                peer("limits, fixed window", limits.fixed_window_sync, shapes.called_in_turn_sync),
                floor("bare EVALSHA", bare.evalsha_sync, shapes.called_in_turn_sync),
            ),
            rounds=TURN_ROUNDS,
            goal=Goal("bucket on Redis, one by one, `with`", Role.FLOOR, NEAR_BARE),
        ),
    ]


def semaphore_row(
    key: str, title: str, capacity: int, shape: Shape, goal: Goal | None = None
) -> Row:
    awaited = headgate.semaphore_release_awaited(capacity)
    decided = (
        [floor(DECIDED, alone.semaphore(capacity), shape)] if capacity == AT_ONCE else []
    )  # no trip for each caller that leaves
    return Row(
        f"{key}-{capacity}",
        f"semaphore on Redis, capacity {capacity}: {title}",
        AT_ONCE,
        (
            ours(headgate.semaphore(capacity), shape),
            Contestant("headgate, release awaited", Role.VARIANT, awaited, shapes.called_at_once),
            peer("self-limiters", self_limiters.semaphore(capacity), shape),
            peer("redis-rate-limiters", limiters.semaphore(capacity), shape),
            peer("steindamm", steindamm.semaphore(capacity), shape),
            floor(f"a bare trip for each {capacity}", wire.gate(capacity), shape),
            *decided,
        ),
        goal=goal,
    )


def semaphores() -> list[Row]:
    classic = [
        semaphore_row(
            "semaphore-classic",
            "{times} instances made, entered and left at once",
            capacity,
            shapes.made_and_entered_at_once,
        )
        for capacity in (1, 100)
    ]
    one = [
        semaphore_row(
            "semaphore-one",
            "{times} tasks enter and leave one instance",
            capacity,
            shapes.entered_at_once,
            Goal(f"semaphore on Redis, capacity {capacity}, {{times}} tasks", Role.PEER, lead),
        )
        for capacity, lead in SEMAPHORE_LEADS.items()
    ]
    return classic + one


def windows() -> list[Row]:
    turn, turn_sync = shapes.entered_in_turn, shapes.entered_in_turn_sync
    call, call_sync = shapes.called_in_turn, shapes.called_in_turn_sync
    return [
        Row(
            "window-turn-async",
            "sliding window on Redis: one after another, `async with`",
            TURN_TIMES,
            (
                ours(headgate.window, turn),
                peer("limits, moving window (exact)", limits.moving_window, call),
                peer("limits, sliding counter (estimate)", limits.sliding_counter, call),
                peer("throttled-py, sliding (estimate)", throttled.window, turn),
            ),
            rounds=TURN_ROUNDS,
        ),
        Row(
            "window-turn-sync",
            "sliding window on Redis: one after another, `with`",
            TURN_TIMES,
            (
                ours(headgate.window, turn_sync),
                peer("limits, moving window (exact)", limits.moving_window_sync, call_sync),
                peer("limits, sliding counter (estimate)", limits.sliding_counter_sync, call_sync),
                peer("throttled-py, sliding (estimate)", throttled.window_sync, turn_sync),
            ),
            rounds=TURN_ROUNDS,
        ),
    ]


def all_rows() -> list[Row]:
    in_process = [*rates_in_process(), *concurrency_in_process(), *contended_in_process()]
    return [*in_process, *buckets_at_once(), *buckets_in_turn(), *semaphores(), *windows()]
