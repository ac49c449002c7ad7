"""A thousand callers wait in four processes, and every other one gives up. The others move forward,
in the order of all arrivals.

The same scenario stands in conformance/test_cancellation.py: in memory to the microsecond, and on
Redis where all callers ask at once. Here the order of arrival is known over all processes, so S6
and T3 are checked over all of them.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import pairwise
from time import monotonic
from typing import NamedTuple

import pytest

from headgate import Limiter, Rate
from headgate.stores.redis.session.polls import HEARTBEAT
from tests.faults.scene import Slack
from tests.processes import Running, running

PROCESSES, GROUP, CALLERS = 4, 25, 1000
RATE = 100
GAP = 1_000_000 // RATE


class Through(NamedTuple):
    """A caller that was granted: its number, by arrival; its fence; the moment of its grant; and
    when it went on.
    """

    number: int
    fence: int
    t: int
    when: int


@pytest.mark.proof
async def test_when_half_of_a_thousand_callers_give_up_the_others_move_forward_in_order(
    name: str, redis_url: str, slack: Slack
) -> None:
    """T1, T2, T3, T5, S6, TL1: given 1000 callers due over 10 s, when every other one is cancelled,
    then the rest are granted within 5 s, in order of arrival.

    The server's clock measures it, and callers that were granted before they could give up count,
    too. Processes of a busy machine begin and end late.
    """
    limit = Rate(RATE, per=1, initial=0)
    limiter = Limiter(name, limit, store=redis_url)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running("parade", redis_url, name, repr(limit)))
            for _ in range(PROCESSES)
        ]
        assert [await process.said() for process in processes] == ["ready"] * PROCESSES
        start = monotonic()
        for first in range(0, CALLERS, GROUP):
            await send_and_confirm(processes[first // GROUP % PROCESSES], f"ask {first} {GROUP}")
        due = (await limiter.astatus()).retry_after
        asked = monotonic()
        for process in processes:
            process.tell("go")
        assert [await process.said() for process in processes] == ["gave up"] * PROCESSES
        gave_up = monotonic()
        lists = await asyncio.gather(*(all_said(process) for process in processes))

    through = sorted(
        (passed for passed_there in lists for passed in passed_there),
        key=lambda passed: passed.fence,
    )
    numbers = [passed.number for passed in through]
    assert numbers == sorted(numbers)
    assert set(numbers) >= set(range(0, CALLERS, 2))
    early = len(through) - CALLERS // 2  # odd ones that were granted before they gave up
    assert early <= RATE * (gave_up - start) + 10

    moments = [passed.t for passed in through]
    assert moments == sorted(moments)
    assert all(moment - moments[0] >= index * GAP - 1 for index, moment in enumerate(moments))
    assert all(passed.when >= passed.t for passed in through)
    assert max(after - before for before, after in pairwise(moments)) <= HEARTBEAT / 2 * 1_000_000

    assert due is not None
    assert asked - start + due > 8.0  # this is how long it would have taken
    assert moments[-1] - moments[0] <= len(through) * GAP + slack() * 1_000_000


async def send_and_confirm(process: Running, line: str) -> None:
    process.tell(line)
    assert await process.said() == "asked"


async def all_said(process: Running) -> list[Through]:
    lines = await asyncio.to_thread(process.lines)
    return [Through(*map(int, line.split())) for line in lines]
