"""A real Redis Cluster for tests: three masters and a replica of each, on private ports of this
machine.

This module forms, breaks and heals it, and moves a slot step by step. It knows nothing about
headgate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.certificates import Certificate
from tests.rights import PASSWORD, USER, rights
from tests.servers import Server, ServerMissing, await_order, connections_of, free_port, holds

SLOTS = 16384
MASTERS = 3
# A right that redis-py's and valkey-py's own clusters for threads need, and headgate does not.
THEIRS = "+command"
# Milliseconds of silence after which a node is suspected, where a test kills one, and while all
# meet.
NODE_TIMEOUT = 1000
CALM = 60_000  # the same where none does: a busy machine is no failover
# At once.
REPLICATION = (
    "--repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --cluster-replica-validity-factor 0"
)


class Node(Server):
    """One server of a cluster; it keeps its identity and its two ports when it is killed and
    started again.
    """

    _bus = 0

    def __init__(self, certificate: Certificate | None = None) -> None:
        super().__init__(certificate=certificate, rights=f"{rights()} {THEIRS}")

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @cached_property
    def identity(self) -> str:
        return str(self.ask("MYID"))

    def ask(self, *words: object) -> Any:
        """CLUSTER ..., and the answer as the server gives it."""
        return self.admin.execute_command("CLUSTER", *words)  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated

    def meet(self, other: Node) -> None:
        self.ask("MEET", "127.0.0.1", other.port, other._bus)

    def _words(self) -> list[str]:
        self._bus = self._bus or free_port()
        options = (
            f"--cluster-enabled yes --cluster-port {self._bus} "
            f"--cluster-node-timeout {NODE_TIMEOUT}"
        )
        secure = (
            [] if self.certificate is None else ["--tls-cluster", "yes", "--tls-replication", "yes"]
        )
        return [*super()._words(), *options.split(), *REPLICATION.split(), *secure]


class Cluster:
    """Six nodes: `start()`, use `user_url`, `heal()` after a test that broke it, `stop()`.

    `node_timeout`: milliseconds of silence after which another one takes a node's place.
    """

    def __init__(self, certificate: Certificate | None = None, node_timeout: int = CALM) -> None:
        self._node_timeout = node_timeout
        self.nodes = [Node(certificate=certificate) for _ in range(2 * MASTERS)]
        self.certificate = certificate

    @property
    def user_url(self) -> str:
        """For the user of docs/redis.md, by the first two nodes."""
        return self.url_by(*self.nodes[:2])

    def url_by(self, *seeds: Server) -> str:
        return self.url_at(*(f"127.0.0.1:{seed.port}" for seed in seeds))

    def url_at(self, *places: str) -> str:
        scheme, trust = (
            ("rediss", f"?ssl_ca_certs={self.certificate.authority}")
            if self.certificate
            else ("redis", "")
        )
        return f"{scheme}+cluster://{USER}:{PASSWORD}@{','.join(places)}{trust}"

    def start(self) -> Cluster:
        for node in self.nodes:
            node.start()
        first, masters = self.nodes[0], self.nodes[:MASTERS]
        for index, node in enumerate(masters):
            node.ask("ADDSLOTSRANGE", SLOTS * index // MASTERS, SLOTS * (index + 1) // MASTERS - 1)
            node.ask("SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            first.meet(node)
        await_order(
            lambda: all(self._knows_all(node) for node in self.nodes), "all nodes know each other"
        )
        for node, master in zip(self.nodes[MASTERS:], masters, strict=True):
            node.ask("REPLICATE", master.identity)
        self.settle()
        for node in self.nodes:
            node.admin.config_set("cluster-node-timeout", self._node_timeout)
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def heal(self) -> None:
        """After any test: every node is there, each slot has an owner, each master a replica."""
        for node in self.nodes:
            node.resume()
            if not node.runs:
                node.start()
        try:
            self.close_moves()
            self.settle()
        except (
            RedisError,
            ServerMissing,
        ):  # they come to no agreement, which is Redis's matter: the next test needs others
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.stop()
        self.nodes = [Node(certificate=self.certificate) for _ in self.nodes]
        self.start()

    def settle(self) -> None:
        """Go on when every node finds the cluster in order, and every replica is connected."""
        await_order(self._in_order, "the cluster is in order")

    # Looking --------------------------------------------------------------------------------------

    def masters(self) -> list[Node]:
        """Those that own slots, in the order of these."""
        return list(dict.fromkeys(self._node(entry[2][1]) for entry in self._map()))

    def master_of(self, key: str) -> Node:
        """The owner of the slot of `key`."""
        slot = key_slot(key.encode())
        return next(
            self._node(entry[2][1]) for entry in self._map() if entry[0] <= slot <= entry[1]
        )

    def replica_of(self, master: Node) -> Node:
        return next(self._node(entry[3][1]) for entry in self._map() if entry[2][1] == master.port)

    def serves(self, key: str, without: Node) -> bool:
        """Whether another master than `without` has taken over the slot of `key`, and all living
        nodes know that all is in order.
        """
        alive = [node for node in self.nodes if node.runs]
        return holds(
            lambda: (
                self.master_of(key) is not without
                and all("cluster_state:ok" in node.ask("INFO") for node in alive)
            )
        )

    def copy(self, master: Node) -> None:
        """Go on when its replica has all that `master` has."""
        key = self.name_on(master, "mark")
        master.admin.set(
            f"headgate:{{{key}}}", "1", px=1000
        )  # WAIT is for the writes of its own connection
        assert master.admin.wait(1, 5000) == 1, "the replica does not follow"

    def stop_copying(self, master: Node) -> None:
        """Later writes are lost with `master`. Its replica stands still until it is resumed."""
        self.copy(master)
        self.replica_of(master).pause()
        master.admin.client_kill_filter(_type="replica")

    def name_on(self, master: Node, stem: str) -> str:
        """A name that begins with `stem` and whose keys stand on `master`."""
        names = (f"{stem}-{number}" for number in range(SLOTS))
        return next(name for name in names if self.master_of(f"headgate:{{{name}}}") is master)

    def listened_to(self) -> list[Node]:
        """The nodes on which the user of docs/redis.md listens."""
        return [node for node in self.nodes for _ in range(connections_of(node.admin, "pubsub"))]

    def _map(self) -> list[Any]:
        """CLUSTER SLOTS, by any node that runs."""
        return sorted(next(node for node in self.nodes if node.runs).ask("SLOTS"))

    def _node(self, port: int) -> Node:
        return next(node for node in self.nodes if node.port == port)

    def _knows_all(self, node: Node) -> bool:
        entries = node.ask("NODES").splitlines()
        return len(entries) == len(self.nodes) and all(
            " connected" in entry and "handshake" not in entry for entry in entries
        )

    def _in_order(self) -> bool:
        maps = [
            sorted((entry[0], entry[1], len(entry)) for entry in node.ask("SLOTS"))
            for node in self.nodes
        ]
        fine = ["cluster_state:ok" in node.ask("INFO") for node in self.nodes]
        links = [node.admin.info("replication") for node in self.nodes]
        linked = sum(
            link["role"] == "slave" and link["master_link_status"] == "up" for link in links
        )
        return (
            all(fine)
            and linked == MASTERS
            and all(each == maps[0] and _is_whole(each) for each in maps)
        )

    # Moving a slot --------------------------------------------------------------------------------

    def move(self, key: str, target: Node | None = None) -> Move:
        """The slot of `key`, about to move to `target`, or to any other master."""
        source = self.master_of(key)
        others = [node for node in self.masters() if node is not source]
        return Move(self, key_slot(key.encode()), source, target or others[0])

    @contextmanager
    def nobody_has(self, key: str) -> Iterator[None]:
        """Its slot is taken from the master that has it, and given back at the end."""
        master, slot = self.master_of(key), key_slot(key.encode())
        master.ask("DELSLOTS", slot)
        try:
            yield
        finally:
            master.ask("ADDSLOTS", slot)
            self.settle()

    @contextmanager
    def without_successors(self, master: Node) -> Iterator[None]:
        """No node takes the place of `master`, and the others serve their slots without it."""
        changed = [node for node in self.nodes if node is not master]
        replica = self.replica_of(master)
        for node in changed:
            node.admin.config_set("cluster-require-full-coverage", "no")
        replica.admin.config_set("cluster-replica-no-failover", "yes")
        try:
            yield
        finally:
            replica.admin.config_set("cluster-replica-no-failover", "no")
            for node in changed:
                node.admin.config_set("cluster-require-full-coverage", "yes")

    def close_moves(self) -> None:
        """No slot is on its way any more: those that were stay where they were."""
        for node in self.nodes:
            mine = next(line for line in node.ask("NODES").splitlines() if "myself" in line)
            for word in mine.split():
                if word.startswith("["):  # [slot->-target] or [slot-<-source]
                    node.ask("SETSLOT", word[1:].partition("-")[0], "STABLE")


class Move:
    """A slot on its way: `open()`, `carry()` some of its keys or all, `close()`.

    A test may stand between any two of them.
    """

    def __init__(self, cluster: Cluster, slot: int, source: Node, target: Node) -> None:
        self.slot = slot
        self.source = source
        self.target = target
        self._cluster = cluster

    def open(self) -> Move:
        self.target.ask("SETSLOT", self.slot, "IMPORTING", self.source.identity)
        self.source.ask("SETSLOT", self.slot, "MIGRATING", self.target.identity)
        return self

    def carry(self, *keys: str) -> Move:
        """`keys`, or all keys of the slot."""
        for key in keys or self.source.ask("GETKEYSINSLOT", self.slot, 1000):
            self.source.admin.migrate("127.0.0.1", self.target.port, key, 0, 5000)
        return self

    def close(self) -> None:
        """The target owns the slot; late keys are carried, too."""
        self.carry()
        others = [
            node for node in self._cluster.masters() if node not in (self.source, self.target)
        ]
        for node in (self.target, self.source, *others):
            node.ask("SETSLOT", self.slot, "NODE", self.target.identity)


def _is_whole(ranges: Iterable[tuple[int, int, int]]) -> bool:
    """Every slot has a master and a replica."""
    ranges = list(ranges)
    return sum(last - first + 1 for first, last, _ in ranges) == SLOTS and all(
        size >= 4 for _, _, size in ranges
    )
