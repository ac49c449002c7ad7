"""The command and the web page at a Cluster in which one primary is dead, and no replica takes its
place. They show the names of the other servers in time, and say that some are missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import monotonic

import pytest

from headgate import Limiter
from headgate.cli.exporter import TIMEOUT
from headgate.stores.redis import store
from headgate.stores.redis.protocol.index import NAMES
from headgate.stores.registry import store_of
from headgate.web.reading import Reader, View, part_of
from tests.cli.command import exporting, headgate_here, scraped
from tests.clusters import Cluster, Node
from tests.index import refreshed
from tests.machine import scaled

IN_TIME = scaled(8.0)  # seconds for one answer of a verb or of the page, about five when idle


@dataclass
class Scene:
    url: str
    victim: Node
    how: str
    alive: set[str]  # names
    lost: set[str]

    def strike(self) -> None:
        self.victim.kill() if self.how == "kill" else self.victim.pause()


async def scene_of(cluster: Cluster, stem: str, how: str, with_index: bool) -> Scene:
    """Two names on each primary, all in the index."""
    masters, index = cluster.masters(), cluster.master_of(NAMES)
    victim = index if with_index else next(each for each in masters if each is not index)
    alive, lost = set[str](), set[str]()
    for number, master in enumerate(masters * 2):
        name = cluster.name_on(master, f"{stem}-{number}")
        (lost if master is victim else alive).add(name)
        await Limiter(name, "10/hour", store=cluster.user_url).acquire()
    await refreshed(cluster.user_url)
    return Scene(cluster.user_url, victim, how, alive, lost)


@pytest.fixture(params=["kill", "pause"])
async def scene(
    request: pytest.FixtureRequest, name: str, cluster: Cluster
) -> AsyncIterator[Scene]:
    """The victim is not the server with the index."""
    found = await scene_of(cluster, name, request.param, with_index=False)
    with cluster.without_successors(found.victim):
        yield found
        cluster.heal()


@pytest.fixture(params=["kill", "pause"])
async def scene_of_index(
    request: pytest.FixtureRequest, name: str, cluster: Cluster
) -> AsyncIterator[Scene]:
    """The victim is the server with the index."""
    found = await scene_of(cluster, name, request.param, with_index=True)
    with cluster.without_successors(found.victim):
        yield found
        cluster.heal()


def names_in(series: dict[tuple[str, ...], float]) -> set[str]:
    return {labels[-1] for labels in series if labels[0] == "queue_length"}


async def check_exporter(scene: Scene) -> str:
    """It shows the names of the others within its time, and counts the rest. Returns its stderr."""
    where = f"{store_of(scene.url)}"
    with exporting(scene.url) as (started, address):
        whole = await scraped(address)
        assert names_in(whole) >= scene.alive | scene.lost
        assert whole["exporter_unread_names", where] == 0
        scene.strike()
        for _ in range(2):  # with and without connections that were open before
            start = monotonic()
            found = await scraped(address)
            assert monotonic() - start < 5 * scaled(TIMEOUT)
            assert names_in(found) >= scene.alive
            assert not names_in(found) & scene.lost
            assert found["exporter_unread_names", where] >= len(scene.lost)
            assert found["store_available", "raise", where] == 0
        started.end()
        return started.done().err


async def check_top(scene: Scene) -> None:
    start = monotonic()
    done = await headgate_here(scene.url, "top", "--json")

    assert monotonic() - start < IN_TIME
    assert {each["name"] for each in done.object["limiters"]} >= scene.alive
    assert done.object["unread"] >= len(scene.lost)
    assert "names could not be read: `headgate doctor` finds the fault." in done.err


async def check_page(reader: Reader, scene: Scene) -> None:
    name = min(scene.lost)
    views = [View(), View(target=(name, None))]
    start = monotonic()
    snapshot = await reader.read(views)

    assert monotonic() - start < IN_TIME
    assert snapshot.trouble
    every, one = (part_of(snapshot, view) for view in views)
    known = {row["name"] for row in every["rows"] if row["known"]}
    assert known >= scene.alive
    assert {row["name"] for row in every["rows"] if row.get("unread")} >= scene.lost
    assert one["one"] == {"name": name, "key": None, "known": False, "unread": True}


async def test_the_names_of_the_other_servers_are_shown(scene: Scene) -> None:
    reader = Reader(scene.url)
    assert not (await reader.read([View()])).trouble

    said = await check_exporter(scene)
    assert "names: `headgate doctor` finds the fault." in said
    start = monotonic()
    listed = (await headgate_here(scene.url, "ls", "--json")).object["names"]
    assert monotonic() - start < IN_TIME
    assert set(listed) >= scene.alive | scene.lost
    await check_top(scene)
    await check_page(reader, scene)


async def test_without_the_index_the_names_are_those_of_before(scene_of_index: Scene) -> None:
    """`ls` and `top` begin without them: they name the server that is missing."""
    scene, reader = scene_of_index, Reader(scene_of_index.url)
    assert not (await reader.read([View()])).trouble

    said = await check_exporter(scene)
    assert "The index of names" in said
    await check_page(reader, scene)
    for verb in ("ls", "top"):
        start = monotonic()
        done = await headgate_here(scene.url, verb, "--json")
        assert (done.code, done.out) == (69, "")
        assert monotonic() - start < IN_TIME
    assert (await headgate_here(scene.url, "show", min(scene.alive))).code == 0


async def test_many_names_of_a_silent_server_take_no_time_from_the_others(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first part of the names, no other part waits for that server."""
    monkeypatch.setattr(store, "STATUSES", 2)
    scene = await scene_of(cluster, name, "pause", with_index=False)
    lost = [cluster.name_on(scene.victim, f"{name}-more-{number}") for number in range(9)]
    healthy = store.redis_store(scene.url)
    with cluster.without_successors(scene.victim):
        scene.strike()
        found = await healthy.astatuses([*lost, *scene.alive], scaled(0.5))
        cluster.heal()

    assert {each for each, status in found.items() if status is not None} == scene.alive
