"""Fixtures for the scenarios of topologies: servers that the tests share, and some of their own to
be broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from headgate.limits import Limit
from tests.certificates import Certificates
from tests.clusters import NODE_TIMEOUT, Cluster
from tests.faults import haste
from tests.faults.scene import Puppet
from tests.processes import running
from tests.sentinels import DOWN_AFTER, Sentinels
from tests.servers import Server


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    made = Certificates()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def secure_server(certificates: Certificates) -> Iterator[Server]:
    """One server, by TLS."""
    server = Server(certificate=certificates.good()).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sentinels() -> Iterator[Sentinels]:
    """For scenarios in which nothing fails over."""
    place = Sentinels().start()
    yield place
    place.stop()


@pytest.fixture(scope="session")
def secure_sentinels(certificates: Certificates) -> Iterator[Sentinels]:
    place = Sentinels(certificates.good()).start()
    yield place
    place.stop()


@pytest.fixture
def own_sentinels() -> Iterator[Sentinels]:
    """For one scenario alone, which breaks them."""
    place = Sentinels(down_after=DOWN_AFTER).start()
    yield place
    place.stop()


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    place = Cluster(node_timeout=NODE_TIMEOUT).start()
    yield place
    place.stop()


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """A scenario may break it; it is healed for the next one."""
    yield _cluster
    _cluster.heal()


@pytest.fixture(scope="session")
def secure_cluster(certificates: Certificates) -> Iterator[Cluster]:
    place = Cluster(certificates.good()).start()
    yield place
    place.stop()


@pytest.fixture
def puppet(name: str) -> Iterator[Callable[..., Puppet]]:
    """Makes processes at a URL that share the test's name, with the product's constants."""
    with ExitStack() as stack:

        def made(url: str, *limits: Limit) -> Puppet:
            puppet = Puppet(
                stack.enter_context(running("puppet", url, name, "calm", *map(repr, limits)))
            )
            assert puppet.process.line() == "ready"
            return puppet

        yield made


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limiters of this test use the shorter constants of `haste`."""
    haste.hurry(monkeypatch.setattr)
