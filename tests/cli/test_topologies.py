"""The command at Sentinels, in a Cluster and over TLS: each verb finds its server."""

from __future__ import annotations

import asyncio

import pytest

from headgate import Limiter
from headgate.stores.registry import store_of
from tests.cli.command import exporting, headgate_done, scraped
from tests.clusters import Cluster
from tests.index import refreshed
from tests.sentinels import Sentinels
from tests.servers import Server


async def test_the_verbs_work_at_sentinels(name: str, sentinels: Sentinels) -> None:
    await tour(name, sentinels.user_url)


@pytest.mark.proof("starts each verb")
async def test_the_verbs_work_over_tls(name: str, secure_server: Server) -> None:
    await tour(name, secure_server.user_url)


async def test_the_verbs_work_in_a_cluster(name: str, cluster: Cluster) -> None:
    """Names of all servers are listed, and doctor asks each of them."""
    names = [cluster.name_on(master, name) for master in cluster.masters()]
    for each in names:
        await tour(each, cluster.user_url)
    listed = headgate_done(cluster.user_url, "ls", "--json").object["names"]
    assert set(names) <= set(listed)
    servers = headgate_done(cluster.user_url, "doctor", "--json").object["servers"]
    assert len(servers) == 3


async def tour(name: str, url: str) -> None:
    """Each verb once, but for those that ask for the right `+scan` or for a terminal."""
    limiter = Limiter(name, "10/hour", "1 concurrent", store=url)
    async with limiter, limiter["k"]:
        pass
    await limiter.aflush()
    await refreshed(url)

    async def done(*words: str) -> int:
        return (await asyncio.to_thread(headgate_done, url, *words)).code

    assert await done("run", name, "--", "true") == 0
    assert await done("pause", name, "300", "--yes") == 0
    assert await done("drain", name, "requests=3", "--yes") == 0
    shown = (await asyncio.to_thread(headgate_done, url, "show", name, "--json")).object
    assert [limit["left"] for limit in shown["limits"]] == [3, 1]
    assert shown["paused"] > 0
    assert await done("resume", name, "--yes") == 0
    assert await done("reset", name, "--yes") == 0
    assert await done("set", name, "20/hour", "--yes") == 0
    assert await done("forget", name, "k", "--yes") == 0
    assert await done("doctor") == 0
    top = (await asyncio.to_thread(headgate_done, url, "top", "--json")).object
    (found,) = [each for each in top["limiters"] if each["name"] == name]
    assert [limit["text"] for limit in found["limits"]] == ["20 in any hour"]
    with exporting(url) as (_, address):
        series = await scraped(address)
    assert series["budget_limit", "window", name, "requests"] == 20
    assert series["store_available", "raise", f"{store_of(url)}"] == 1
