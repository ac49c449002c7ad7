"""Certificates for tests: one that is in order, and some that are not.

An authority makes them, which lasts as long as its object. A server shows one (servers.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

HERE = ("127.0.0.1", "localhost")


class Certificate:
    """A certificate of a server, and `authority`: the file that a client has to trust."""

    def __init__(self, shown: trustme.LeafCert, authority: Path, folder: Path) -> None:
        self.authority = authority
        self._chain, self._key = folder / "chain.pem", folder / "key.pem"
        shown.private_key_pem.write_to_path(self._key)
        for certificate in shown.cert_chain_pems:
            certificate.write_to_path(self._chain, append=True)

    def url(self, port: int) -> str:
        """Where the server is that shows this at `port`."""
        return f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={self.authority}"

    def options(self) -> list[str]:
        """For redis-server."""
        files = {
            "--tls-cert-file": self._chain,
            "--tls-key-file": self._key,
            "--tls-ca-cert-file": self.authority,
        }
        return [str(word) for option in files.items() for word in option]


class Certificates:
    """An authority, and its certificates in a folder that `remove()` removes."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-certificates-")
        self._authority = trustme.CA()
        self._made = 0

    def remove(self) -> None:
        self._folder.cleanup()

    def good(self) -> Certificate:
        return self._certificate(self._authority.issue_cert(*HERE), self._authority)

    def expired(self) -> Certificate:
        yesterday = datetime.now(UTC) - timedelta(days=1)
        shown = self._authority.issue_cert(
            *HERE, not_before=yesterday - timedelta(days=1), not_after=yesterday
        )
        return self._certificate(shown, self._authority)

    def of_another_host(self) -> Certificate:
        return self._certificate(self._authority.issue_cert("elsewhere.example"), self._authority)

    def of_another_authority(self) -> Certificate:
        """It is in order, but a client that trusts our authority does not know the one that made
        it.
        """
        return self._certificate(trustme.CA().issue_cert(*HERE), self._authority)

    def _certificate(self, shown: trustme.LeafCert, authority: trustme.CA) -> Certificate:
        self._made += 1
        folder = Path(self._folder.name) / str(self._made)
        folder.mkdir()
        authority.cert_pem.write_to_path(folder / "authority.pem")
        return Certificate(shown, folder / "authority.pem", folder)


WRONG: dict[str, Callable[[Certificates], Certificate]] = {
    "expired": Certificates.expired,
    "of another host": Certificates.of_another_host,
    "of another authority": Certificates.of_another_authority,
}
