"""A limiter whose keys are on other masters of a Cluster than the limiter itself: a pause holds all
of them, and a master that is away holds none.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from headgate import Limiter, Rate
from headgate.internals import queue_of
from headgate.stores.redis.session import pause_watch, whole_pause
from tests.clusters import Cluster, Node
from tests.faults.scene import enter, eventually, visit
from tests.topologies.test_cluster import apart
from tests.world import HOUR, long, soon, waiting

PLENTY = Rate(1000, per=1000 * HOUR)


def key_on(cluster: Cluster, master: Node, limiter: Limiter) -> Limiter:
    """A key of the limiter whose state is on this master."""
    keys = (limiter[f"k{number}"] for number in range(1000))
    return next(key for key in keys if cluster.master_of(queue_of(key).key) is master)


async def test_a_notification_holds_and_wakes_keys_on_every_master(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given keys on each master, when another process pauses the limiter and ends that, then
    notifications alone hold the keys, and wake their waiters.
    """
    monkeypatch.setattr(whole_pause, "TRUSTED", HOUR)
    monkeypatch.setattr(whole_pause, "ASK_AGAIN", HOUR)
    limiter = Limiter(name, PLENTY, store=cluster.user_url)
    other = Limiter(name, PLENTY, store=apart(cluster.user_url, 1))
    keys = [key_on(cluster, master, limiter) for master in cluster.masters()]
    for key in keys:
        await visit(key)
    whole = queue_of(limiter).routing.session()
    await eventually(lambda: whole.client.subscriptions.notifies(whole))

    await other.apause(HOUR)
    await eventually(lambda: queue_of(keys[0]).pause.ends)
    waiters = [asyncio.create_task(enter(key)) for key in keys]
    for key in keys:
        await waiting(key, 1)
    await other.aresume()

    assert all(await soon(asyncio.gather(*waiters)))


async def test_the_first_call_for_a_key_waits_for_the_answer_of_a_slow_master(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: given a paused limiter, and a process that has not used it, when its master answers late,
    then a caller of a key on a faster master does not pass.
    """
    monkeypatch.setattr(pause_watch, "PATIENCE", HOUR)
    slow, fast, _ = cluster.masters()
    its, url = cluster.name_on(slow, name), apart(cluster.user_url, 3)
    await Limiter(its, PLENTY, store=cluster.user_url).apause(HOUR)
    key = key_on(cluster, fast, Limiter(its, PLENTY, store=url))
    await visit(Limiter(cluster.name_on(fast, f"{name}-other"), PLENTY, store=url))

    slow.pause()
    try:
        caller = asyncio.create_task(enter(key))
        await visit(Limiter(cluster.name_on(fast, f"{name}-third"), PLENTY, store=url))
        assert not caller.done()
    finally:
        slow.resume()
    await waiting(key, 1)

    assert not caller.done()
    caller.cancel()


@pytest.mark.parametrize("way", ["loop", "thread"])
async def test_a_caller_of_a_key_waits_until_the_pause_by_its_own_process_has_arrived(
    way: str, name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: given a key in use, when a program pauses the limiter, whose master answers late, and
    then enters the key on a faster master, then it does not pass.
    """
    monkeypatch.setattr(pause_watch, "PATIENCE", HOUR)
    monkeypatch.setattr(whole_pause, "TRUSTED", HOUR)
    monkeypatch.setattr(whole_pause, "ASK_AGAIN", HOUR)
    slow, fast, _ = cluster.masters()
    url = apart(cluster.user_url, 4)
    limiter = Limiter(cluster.name_on(slow, name), PLENTY, store=url)
    other = Limiter(cluster.name_on(fast, f"{name}-other"), PLENTY, store=url)
    key = key_on(cluster, fast, limiter)

    def enter_by_thread(limiter: Limiter) -> None:
        with limiter:
            pass

    def pause_and_enter_by_thread() -> None:
        limiter.pause(HOUR)
        enter_by_thread(key)

    for used in (limiter, key, other):
        await visit(used)
        await asyncio.to_thread(enter_by_thread, used)
        await asyncio.to_thread(used.status)  # by the portal, which knows all masters now
    slow.pause()
    try:
        if way == "loop":
            limiter.pause(HOUR)
            caller = asyncio.create_task(enter(key))
        else:
            caller = asyncio.create_task(asyncio.to_thread(pause_and_enter_by_thread))
            await eventually(lambda: queue_of(limiter).threads.no_fast_path_until)
        await visit(other)
        await asyncio.to_thread(enter_by_thread, other)
        assert not caller.done()
    finally:
        slow.resume()
    await waiting(key, 1)

    assert not caller.done()
    await limiter.aresume()
    await soon(caller)


async def test_a_silent_master_of_the_limiter_delays_its_keys_on_other_masters_for_a_moment(
    name: str, cluster: Cluster
) -> None:
    """L5, F36: given a master that stands still, with the state of the limiter, when a caller
    enters a key on another master, then it passes soon after PATIENCE.
    """
    silent, healthy, _ = cluster.masters()
    limiter = Limiter(cluster.name_on(silent, name), PLENTY, store=apart(cluster.user_url, 2))
    key = key_on(cluster, healthy, limiter)
    await Limiter(
        cluster.name_on(healthy, name), PLENTY, store=apart(cluster.user_url, 2)
    ).acquire()

    silent.pause()
    try:
        start = monotonic()
        await visit(key)
        took = monotonic() - start
    finally:
        silent.resume()

    assert pause_watch.PATIENCE <= took < long()
