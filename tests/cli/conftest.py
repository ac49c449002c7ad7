"""The fixtures of the command's tests: other kinds of servers, for the proofs."""

from tests.topologies.conftest import _cluster, certificates, cluster, secure_server, sentinels

__all__ = ["_cluster", "certificates", "cluster", "secure_server", "sentinels"]
