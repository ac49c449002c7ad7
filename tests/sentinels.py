"""A real primary with a replica, and three Sentinels that watch them, on private ports of this
machine.

This module starts and breaks them. It knows nothing about headgate. The primary and its replica
change with each failover: ask `primary`. They are in order again some ten seconds after it, so a
test that breaks them has some of its own.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from tests.certificates import Certificate
from tests.rights import PASSWORD, USER
from tests.servers import Server, await_order, holds

SERVICE = "main"
WATCHERS = 3
QUORUM = 2
DOWN_AFTER = (
    500  # milliseconds of silence after which a primary is taken for down, where a test kills it
)
CALM = 60_000  # the same where none does: a busy machine is no failover
FAILOVER = 1000  # milliseconds that a failover may take before it is tried again
UNUSED_PORT = 1  # a port without a listener
GUEST = "guest"  # the user by which clients ask a Sentinel
GUESTS_PASSWORD = "the-sentinels-password"


class Copy(Server):
    """A server that may become the primary of the others, or a replica."""

    source: Copy | None = None
    eligible = True  # whether the Sentinels may make it the primary

    def replicates(self) -> bool:
        """Whether it is a replica and has all that its primary has."""
        state = self.admin.info("replication")
        return bool(state["role"] == "slave" and state["master_link_status"] == "up")

    def leads(self) -> bool:
        return bool(self.admin.info("replication")["role"] == "master")

    def _words(self) -> list[str]:
        options = "--repl-diskless-sync-delay 0 --repl-ping-replica-period 1"
        follows = [] if self.source is None else ["--replicaof", f"127.0.0.1 {self.source.port}"]
        secure = [] if self.certificate is None else ["--tls-replication", "yes"]
        never = [] if self.eligible else ["--replica-priority", "0"]
        return [*super()._words(), *options.split(), *follows, *secure, *never]


class Watcher(Server):
    """One Sentinel: it keeps its knowledge in its configuration, and comes back with it."""

    def __init__(
        self, primary: Copy, certificate: Certificate | None = None, down_after: int = CALM
    ) -> None:
        super().__init__(certificate=certificate)
        self.primary = primary
        self._down_after = down_after
        self.identity = secrets.token_hex(20)
        self._configuration = Path(self._folder.name) / "sentinel.conf"

    def ask(self, *words: object) -> Any:
        """SENTINEL ..., about the service."""
        return self.admin.execute_command("SENTINEL", *words, SERVICE)  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated

    def knows(self) -> tuple[int, int]:
        """How many other Sentinels and how many replicas."""
        return len(self.ask("SENTINELS")), len(self.ask("REPLICAS"))

    def primary_port(self) -> int:
        return int(self.ask("GET-MASTER-ADDR-BY-NAME")[1])

    def _words(self) -> list[str]:
        if not self._configuration.exists():
            self._configuration.write_text(self._first_configuration())
        return [self._program, str(self._configuration), "--sentinel"]

    def _first_configuration(self) -> str:
        network_options = " ".join(self._network_options()).replace(" --", "\n").removeprefix("--")
        watch = {
            "down-after-milliseconds": self._down_after,
            "failover-timeout": FAILOVER,
            "parallel-syncs": 1,
        }
        return "\n".join(
            [
                *[
                    "bind 127.0.0.1",
                    f"dir {self._folder.name}",
                    network_options,
                    "tls-replication yes" if self.certificate else "",
                ],
                *[f"user {GUEST} on >{GUESTS_PASSWORD} &* +@all", f"sentinel myid {self.identity}"],
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} {QUORUM}",
                *[f"sentinel {word} {SERVICE} {value}" for word, value in watch.items()],
            ]
        )


class Sentinels:
    """A primary, its replica and its Sentinels: `start()`, use `user_url`, `stop()`.

    `down_after`: milliseconds of silence after which another one takes the primary's place.
    `spares`: more replicas, which never become the primary.
    """

    def __init__(
        self, certificate: Certificate | None = None, down_after: int = CALM, spares: int = 0
    ) -> None:
        self._down_after = down_after
        self.copies = [Copy(certificate=certificate) for _ in range(2 + spares)]
        for spare in self.copies[2:]:
            spare.eligible = False
        self.watchers: list[Watcher] = []
        self.certificate = certificate

    @property
    def user_url(self) -> str:
        """For the user of docs/redis.md, by all Sentinels."""
        return self.url_by(*self.watchers)

    def url_by(self, *watchers: Watcher) -> str:
        return self.url_at(*(f"127.0.0.1:{watcher.port}" for watcher in watchers))

    def url_at(self, *places: str) -> str:
        scheme, trust = (
            ("rediss", f"&ssl_ca_certs={self.certificate.authority}")
            if self.certificate
            else ("redis", "")
        )
        guest = f"sentinel_username={GUEST}&sentinel_password={GUESTS_PASSWORD}"
        return (
            f"{scheme}+sentinel://{USER}:{PASSWORD}@{','.join(places)}/{SERVICE}/0?{guest}{trust}"
        )

    @property
    def primary(self) -> Copy:
        """The primary that the Sentinels name."""
        port = next(watcher for watcher in self.watchers if watcher.runs).primary_port()
        return next(copy for copy in self.copies if copy.port == port)

    @property
    def replica(self) -> Copy:
        primary = self.primary
        return next(copy for copy in self.copies if copy is not primary)

    def start(self) -> Sentinels:
        primary, *replicas = self.copies
        primary.start()
        for replica in replicas:
            replica.source = primary
            replica.start()
            await_order(replica.replicates, "the replica has followed")
        self.watchers = [
            Watcher(primary, self.certificate, self._down_after) for _ in range(WATCHERS)
        ]
        for watcher in self.watchers:
            watcher.start()
        await_order(self._in_order, "all know each other")
        return self

    def stop(self) -> None:
        for server in (*self.watchers, *self.copies):
            server.stop()

    def copy(self) -> None:
        """Go on when each replica has all that the primary has."""
        primary, replicas = self.primary, len(self.copies) - 1
        primary.admin.set("mark", "1")  # WAIT is for the writes of its own connection
        assert primary.admin.wait(replicas, 5000) == replicas, "a replica does not follow"

    def stop_copying(self) -> None:
        """Later writes are lost with the primary."""
        self.copy()
        self.replica.admin.replicaof("127.0.0.1", UNUSED_PORT)

    def kill_primary(self) -> Copy:
        """kill -9; the dead one. Another server is the primary when `promoted(dead)` says so."""
        primary = self.primary
        primary.kill()
        return primary

    def promoted(self, former: Copy) -> bool:
        """Whether another one than `former` is the primary, and every Sentinel says so."""
        successor = next(copy for copy in self.copies if copy is not former)
        return holds(
            lambda: (
                successor.leads()
                and all(
                    watcher.primary_port() == successor.port
                    for watcher in self.watchers
                    if watcher.runs
                )
            )
        )

    def fail_over(self) -> Copy:
        """The Sentinels make the replica the primary, though nothing is wrong; the former
        primary.
        """
        former = self.primary
        self.watchers[0].admin.execute_command(
            "SENTINEL", "SET", SERVICE, "failover-timeout", CALM
        )  # it is not tried again
        self.watchers[0].ask("FAILOVER")
        return former

    def forget(self) -> None:
        """From now on every Sentinel says that it knows of no primary."""
        for watcher in self.watchers:
            watcher.ask("REMOVE")

    def watch(self, primary: Copy) -> None:
        """There is a primary again."""
        for watcher in self.watchers:
            watcher.admin.execute_command(
                "SENTINEL", "MONITOR", SERVICE, "127.0.0.1", primary.port, QUORUM
            )

    def _in_order(self) -> bool:
        return all(
            watcher.knows() == (WATCHERS - 1, len(self.copies) - 1) for watcher in self.watchers
        )
