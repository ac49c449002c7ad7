"""In order: callers pass first come, first served under all limits (S6, T3), and never more than
the limits allow (S1, T1).
"""

from __future__ import annotations

import asyncio
import time

import pytest

from headgate import Concurrency, Limiter, Permit, Quota, Rate, Refusal, Window
from tests.world import HOUR, World, assert_paced, at_rest, soon, told, until, waiting


class Arrivals:
    """Callers that come one after another, and the order in which they are granted."""

    def __init__(self, limiter: Limiter, stay: float = 0.0) -> None:
        self.limiter = limiter
        self.stay = stay
        self.permits: list[tuple[int, Permit]] = []
        self.inside = self.most = 0

    async def visit(self, number: int, **cost: int) -> None:
        weight = cost.get("mb", 1)
        async with self.limiter.acquire(**cost) as permit:
            self.permits.append((number, permit))
            self.inside += weight
            self.most = max(self.most, self.inside)
            await asyncio.sleep(self.stay)
            self.inside -= weight

    @property
    def order(self) -> list[int]:
        return [number for number, _ in self.permits]

    @property
    def moments(self) -> list[int]:
        """The granted moments by the store's clock, in the order of entry."""
        return [permit.t for _, permit in self.permits]


@told
async def test_callers_pass_a_rate_in_the_order_of_arrival_and_exactly_in_time(
    world: World,
) -> None:
    """T2, T3: under backlog the gap before each grant is its cost over the rate, to the tick."""
    arrivals = Arrivals(world.limiter(Rate(1, per=world.beat)))

    await asyncio.gather(*(arrivals.visit(number) for number in range(10)))

    assert arrivals.order == list(range(10))
    assert_paced(world, arrivals.moments, [world.ticks] * 9)


@told
async def test_no_caller_passes_before_the_granted_moment(world: World) -> None:
    """TL1, F16: a caller acts on its grant at the granted moment or later, by this process's own
    clock.
    """
    limiter = world.limiter(Rate(1, per=world.beat))
    start = world.now()
    passed = []

    async def caller() -> None:
        await limiter.acquire()
        passed.append(world.now() - start)

    await asyncio.gather(*(caller() for _ in range(6)))

    assert all(moment >= number * world.beat - 1e-9 for number, moment in enumerate(passed))


@told
async def test_no_caller_passes_early_though_its_timer_is_early(world: World) -> None:
    """TL1, F17: given a loop that runs timers up to half a beat early, when it wakes often, then no
    caller passes too soon.
    """
    limiter = world.limiter(Rate(1, per=world.beat))
    start, passed = world.now(), list[float]()
    asyncio.get_running_loop()._clock_resolution = world.beat / 2  # type: ignore[attr-defined]  # asyncio has no other word for it

    async def caller() -> None:
        await limiter.acquire()
        passed.append(world.now() - start)

    restless = (asyncio.sleep(number * world.beat / 7) for number in range(40))
    await asyncio.gather(*restless, *(caller() for _ in range(6)))

    assert all(moment >= number * world.beat - 1e-9 for number, moment in enumerate(passed)), passed


class Coarse(asyncio.SelectorEventLoop):
    """A loop whose clock shows every fiftieth of a second, as uvloop's does every thousandth."""

    def time(self) -> float:
        return time.monotonic() // 0.02 * 0.02


def test_no_permit_is_granted_before_the_servers_clock_shows_its_moment(
    redis_url: str, name: str
) -> None:
    """TL1, F17, F20: the grants are exact to the microsecond, also on a loop with a coarse clock.
    The server's clock is this machine's here.
    """
    limiter = Limiter(name, Rate(1, per=0.0013), store=redis_url)
    early = list[int]()

    async def caller() -> None:
        permit = await limiter.acquire()
        early.append(permit.t - time.time_ns() // 1000)

    async def story() -> None:
        await asyncio.gather(*(caller() for _ in range(100)))

    with asyncio.Runner(loop_factory=Coarse) as runner:
        runner.run(story())

    assert max(early) <= 0


@pytest.mark.exact
@told
async def test_each_cost_of_a_rate_takes_its_time(world: World) -> None:
    """T2: the gap before a caller is its cost. On a busy machine it is shorter by the tokens that
    came back while the caller before was late.
    """
    arrivals = Arrivals(world.limiter(Rate(1, per=world.beat, capacity=4, initial=0)))
    costs = [3, 1, 4, 1, 2]

    await asyncio.gather(
        *(arrivals.visit(number, requests=cost) for number, cost in enumerate(costs))
    )

    assert arrivals.order == list(range(5))
    if world.virtual:
        assert_paced(world, arrivals.moments, [cost * world.ticks for cost in costs[1:]])
    else:
        assert arrivals.moments[-1] - arrivals.moments[0] >= (sum(costs[1:]) - 4) * world.ticks


@told
async def test_a_burst_passes_at_once_and_not_one_call_more(world: World) -> None:
    """T1: at the start a bucket gives its capacity, then one token a beat."""
    arrivals = Arrivals(world.limiter(Rate(1, per=world.beat, capacity=5)))

    await asyncio.gather(*(arrivals.visit(number) for number in range(8)))

    start = arrivals.moments[0]
    waits = [moment - start for moment in arrivals.moments]
    assert arrivals.order == list(range(8))
    # On the server the burst may arrive in two calls, some microseconds apart; the bucket counts
    # from the first.
    assert all(wait < world.ticks / 2 for wait in waits[:5])
    assert all(wait >= number * world.ticks for number, wait in enumerate(waits[5:], start=1))


@told
async def test_a_rate_with_steps_passes_a_batch_at_each_step(world: World) -> None:
    arrivals = Arrivals(world.limiter(Rate(3, per=world.beat, steps=True, initial=0)))

    await asyncio.gather(*(arrivals.visit(number) for number in range(9)))

    assert arrivals.order == list(range(9))
    steps = [0, 0, world.ticks]
    if world.virtual:  # on the server a late batch does not make the next one late
        assert_paced(world, arrivals.moments, [*steps, *steps, 0, 0])


@told
async def test_no_interval_of_a_window_holds_more_than_the_amount(world: World) -> None:
    """T1 for windows: any interval of `per` seconds, and no slower than that."""
    arrivals = Arrivals(world.limiter(Window(3, per=world.beat)))

    await asyncio.gather(*(arrivals.visit(number) for number in range(10)))

    assert arrivals.order == list(range(10))
    for turn in range(3):  # every third call makes room for the one after the next two
        moments = arrivals.moments[turn::3]
        assert_paced(world, moments, [world.ticks] * (len(moments) - 1))


@pytest.mark.exact
@told
async def test_a_quota_waits_for_its_next_window(world: World) -> None:
    arrivals = Arrivals(world.limiter(Quota(2, per=world.beat)))

    await asyncio.gather(*(arrivals.visit(number) for number in range(6)))

    windows = [moment // world.ticks for moment in arrivals.moments]
    assert arrivals.order == list(range(6))
    assert all(windows.count(window) <= 2 for window in windows)
    if world.virtual:  # a process that stands still asks the server too late
        assert all(moment % world.ticks == 0 for moment in arrivals.moments[2:])


@told
async def test_callers_pass_a_concurrency_in_order_and_never_exceed_it(world: World) -> None:
    """S1, S6, L2: never more callers than the capacity at once, in order, and a released permit is
    taken again.
    """
    limiter = world.limiter(Concurrency(3))
    arrivals = Arrivals(limiter, stay=world.beat / 4)

    await asyncio.gather(*(arrivals.visit(number) for number in range(12)))

    assert arrivals.order == list(range(12))
    assert arrivals.most == 3
    await at_rest(limiter)


@told
async def test_a_rate_and_a_concurrency_hold_together(world: World) -> None:
    """S1, S6, T1: both limits at once, and the order is still that of arrival."""
    limiter = world.limiter(Rate(1, per=world.beat / 2, capacity=2), Concurrency(2))
    arrivals = Arrivals(limiter, stay=world.beat)

    await asyncio.gather(*(arrivals.visit(number) for number in range(10)))

    assert arrivals.order == list(range(10))
    assert arrivals.most == 2
    start = arrivals.moments[0]
    assert all(
        moment - start >= (number - 1) * world.ticks / 2
        for number, moment in enumerate(arrivals.moments)
    )
    await at_rest(limiter)


@told
async def test_weights_never_exceed_the_capacity_and_no_caller_overtakes(world: World) -> None:
    """S1, S6 with weights: the sum of what is held stays within the capacity."""
    limiter = world.limiter(Concurrency(5, unit="mb"))
    arrivals = Arrivals(limiter, stay=world.beat / 4)
    weights = [2, 3, 1, 5, 4, 1, 1, 3, 2, 5, 1]

    await asyncio.gather(
        *(arrivals.visit(number, mb=weight) for number, weight in enumerate(weights))
    )

    assert arrivals.order == list(range(len(weights)))
    assert arrivals.most <= 5
    await at_rest(limiter)


@told
async def test_a_light_caller_waits_behind_a_heavy_one(world: World) -> None:
    """S6, F53: there are permits for the light caller, and still it does not overtake. When the
    heavy one gives up, it passes at once.
    """
    limiter = world.limiter(Concurrency(5, unit="mb"))
    first = await limiter.acquire(mb=4)
    heavy = asyncio.create_task(_entered(limiter, mb=5))
    await waiting(limiter, 1)
    light = asyncio.create_task(_entered(limiter, mb=1))
    await waiting(limiter, 2)

    heavy.cancel()
    permit = await soon(light)

    assert permit.fence > first.fence
    first.release()
    permit.release()
    await at_rest(limiter)


@told
async def test_a_newcomer_does_not_take_permits_that_the_queue_waits_for(world: World) -> None:
    """S6: a grant without queueing happens only when no caller waits, even if there are enough
    permits.
    """
    limiter = world.limiter(Concurrency(5, unit="mb"))
    first = await limiter.acquire(mb=3)
    heavy = asyncio.create_task(_entered(limiter, mb=4))
    await waiting(limiter, 1)

    assert isinstance(await limiter.atry_acquire(mb=1), Refusal)

    first.release()
    (await soon(heavy)).release()
    (await soon(_entered(limiter, mb=1))).release()
    await at_rest(limiter)


@pytest.mark.parametrize("weights", [[3, 1, 1], [1, 1, 3]])
@told
async def test_one_release_grants_all_waiters_that_fit(world: World, weights: list[int]) -> None:
    """L2 with mixed costs: the permits of one heavy holder are enough for several callers, and all
    of them pass.
    """
    limiter = world.limiter(Concurrency(5, unit="mb"))
    heavy = await limiter.acquire(mb=5)
    callers = []
    for number, weight in enumerate(weights, start=1):
        callers.append(asyncio.create_task(_entered(limiter, mb=weight)))
        await waiting(limiter, number)

    heavy.release()
    permits = await soon(asyncio.gather(*callers))

    assert heavy.fence < permits[0].fence < permits[1].fence < permits[2].fence
    for permit in permits:
        permit.release()
    await at_rest(limiter)


@told
async def test_callers_of_several_limiter_objects_of_one_name_stand_in_one_queue(
    world: World,
) -> None:
    limiters = [world.limiter(Rate(1, per=world.beat)) for _ in range(3)]
    order: list[int] = []

    async def visit(number: int) -> None:
        async with limiters[number % 3]:
            order.append(number)

    await asyncio.gather(*(visit(number) for number in range(9)))

    assert order == list(range(9))


@told
async def test_a_queue_keeps_its_order_when_a_waiter_gives_up(world: World) -> None:
    """S6, T5: the third of six callers gives up, and the others pass in order of arrival."""
    limiter = world.limiter(Concurrency(1), Rate(100, per=HOUR))
    holder = await limiter.acquire()
    arrivals = Arrivals(limiter)
    callers = [asyncio.create_task(arrivals.visit(number)) for number in range(6)]
    await waiting(limiter, 6)

    callers[2].cancel()
    await waiting(limiter, 5)
    holder.release()
    await soon(asyncio.wait(callers))

    assert arrivals.order == [0, 1, 3, 4, 5]
    await until(lambda status: status.limits[1].used == 6, limiter)


async def _entered(limiter: Limiter, **cost: int) -> Permit:
    return await limiter.acquire(**cost)
