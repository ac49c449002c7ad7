"""The surprises of docs/migration/bottleneck.md: Bottleneck and headgate, side by side."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import pytest

from headgate import CostExceedsCapacityError, Limiter, QueueFullError
from headgate.testing import ManualClock
from tests.peers import run_in_node

pytestmark = pytest.mark.proof("needs node")

THEIRS = """
const Bottleneck = require("bottleneck");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const dropped = (promise) => promise.catch(() => "dropped");
const after = (ms, value) => sleep(ms).then(() => value);
const all = (jobs) => Promise.all(jobs.map(dropped));

// Run a first call until `end`; the promise is there when the call runs.
async function busy(api, end) {
  return new Promise((begun) => {
    const call = api.schedule({priority: 9}, async () => { begun({call}); await end; return 0; });
  });
}

async function full(strategy) {
  const api = new Bottleneck({maxConcurrent: 1, highWater: 2, strategy});
  const {call} = await busy(api, new Promise((end) => api.on("dropped", end)));
  return all([call, ...[1, 2, 3].map((item) => dropped(api.schedule(after, 1, item)))]);
}

async function waiting() {
  const api = new Bottleneck({minTime: 20, highWater: 1, strategy: Bottleneck.strategy.OVERFLOW});
  return all([0, 1, 2].map((item) => api.schedule(after, 1, item)));
}

async function order() {
  const api = new Bottleneck({maxConcurrent: 1});
  const passed = [0];
  let end;
  const {call} = await busy(api, new Promise((resolve) => { end = resolve; }));
  const note = async (item) => { passed.push(item); };
  const jobs = [1, 2, 3].map((item) => api.schedule({priority: 9 - item}, note, item));
  while (api.queued() < jobs.length) await sleep(1);
  end();
  await all([call, ...jobs]);
  return passed;
}

async function impossible() {
  const api = new Bottleneck({reservoir: 2});
  const jobs = [3, 1].map((weight) => dropped(api.schedule({weight}, after, 1, weight)));
  return Promise.race([...jobs, after(300, "both wait")]);
}

// Two calls that end when both run.
async function most(limiters, expiration) {
  let running = 0;
  const both = new Promise((met) => {
    const call = async () => { if (++running === 2) met(2); await both; };
    limiters.map((api) => dropped(api.schedule({expiration}, call)));
  });
  return Promise.race([both, after(10000, 1)]);
}

async function expired() {
  const api = new Bottleneck({maxConcurrent: 1});
  return most([api, api], 50);
}

async function same_id() {
  return most([1, 2].map(() => new Bottleneck({id: "api", maxConcurrent: 1})), null);
}

async function refreshed() {
  const api = new Bottleneck({
    reservoir: 3, reservoirRefreshAmount: 3, reservoirRefreshInterval: 3000,
  });
  await sleep(2250);  // and 750 ms to wake up in, on a busy machine
  const starts = await all([0, 1, 2, 3, 4, 5].map(() => api.schedule(async () => Date.now())));
  return Math.max(...starts) - Math.min(...starts);
}

async function main() {
  const {LEAK, OVERFLOW} = Bottleneck.strategy;
  const said = {
    leak: await full(LEAK), overflow: await full(OVERFLOW), waiting: await waiting(),
    order: await order(), impossible: await impossible(), expired: await expired(),
    refreshed: await refreshed(), same_id: await same_id(),
  };
  console.log(JSON.stringify(said));
  process.exit();
}

main();
"""


@cache
def theirs() -> dict[str, Any]:
    """The behaviour of Bottleneck, by the names of the functions above."""
    said: dict[str, Any] = json.loads(run_in_node(THEIRS))
    return said


async def enter(limiter: Limiter, number: int, seconds: float = 1) -> int | str:
    try:
        async with limiter:
            await asyncio.sleep(seconds)
            return number
    except QueueFullError:
        return "dropped"


async def enter_all(limiter: Limiter, count: int) -> list[int | str]:
    return await asyncio.gather(*[enter(limiter, number) for number in range(count)])


def test_a_full_queue_refuses_the_newcomer(clock: ManualClock) -> None:
    ours = Limiter("full", "1 concurrent", max_waiters=2)
    assert clock.run(enter_all(ours, 4)) == [0, 1, 2, "dropped"]
    assert theirs()["leak"] == [0, "dropped", 2, 3]
    assert theirs()["overflow"] == [0, 1, 2, "dropped"]


def test_all_that_wait_count(clock: ManualClock) -> None:
    ours = Limiter("waiting", "50/second burst 1", max_waiters=1)
    assert clock.run(enter_all(ours, 3)) == [0, 1, "dropped"]
    assert theirs()["waiting"] == [0, 1, 2]


def test_callers_pass_in_the_order_of_arrival(clock: ManualClock) -> None:
    passed: list[int] = []
    ours = Limiter("order", "1 concurrent")

    async def note(number: int) -> None:
        async with ours:
            passed.append(number)
            await asyncio.sleep(1)

    async def story() -> None:
        await asyncio.gather(*[note(number) for number in range(4)])

    clock.run(story())
    assert passed == [0, 1, 2, 3]
    assert theirs()["order"] == [0, 3, 2, 1]


def test_a_cost_above_the_limit_is_an_error() -> None:
    with pytest.raises(CostExceedsCapacityError):
        Limiter("never", "2/hour").try_acquire(3)
    assert theirs()["impossible"] == "both wait"


def test_a_timeout_ends_the_call(clock: ManualClock) -> None:
    running = most = 0
    ours = Limiter("late", "1 concurrent")

    async def late() -> None:
        nonlocal running, most
        async with ours, asyncio.timeout(0.05):
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0.2)
            finally:
                running -= 1

    async def story() -> None:
        ends = await asyncio.gather(late(), late(), return_exceptions=True)
        assert [type(end) for end in ends] == [TimeoutError, TimeoutError]

    clock.run(story())
    assert most == 1
    assert theirs()["expired"] == 2


def test_a_window_has_no_double_burst(clock: ManualClock) -> None:
    window, quota = Limiter("window", "3/second"), Limiter("quota", "3/second from midnight")
    clock.advance(0.75)
    assert (bool(window.try_acquire(3)), bool(quota.try_acquire(3))) == (True, True)
    clock.advance(0.25)
    assert (bool(window.try_acquire(3)), bool(quota.try_acquire(3))) == (False, True)
    assert theirs()["refreshed"] < 3000  # milliseconds, between the first and the sixth


def test_two_limiters_of_one_name_share_their_permits() -> None:
    with Limiter("shared", "1 concurrent"):
        assert not Limiter("shared", "1 concurrent").try_acquire()
    assert theirs()["same_id"] == 2
