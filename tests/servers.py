"""A real redis-server for tests: on a private port, without persistence, gone when the tests are.

Here lives the finding, starting, pausing and stopping of a server, and nothing about headgate.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

STARTS = 5  # a free port may be somebody else's by the time the server binds it
PATIENCE = 10.0  # seconds for a server to answer
ADVICE = (
    "The tests need a real redis-server (7.0 or later) and found none. Install it with "
    "`sudo apt-get install redis-server` (Debian, Ubuntu), `sudo dnf install redis` (Fedora) or "
    "`brew install redis` (macOS), and run the tests again."
)


class ServerMissing(Exception):
    """There is no redis-server here, and it could not be installed."""


def find_server() -> str:
    """The path of redis-server; where it is missing, the distribution's package is installed if that may be done."""
    found = shutil.which("redis-server")
    if found is None:
        install_server()
        found = shutil.which("redis-server")
    if found is None:
        raise ServerMissing(ADVICE)
    return found


def install_server() -> None:
    """Ask the distribution for the package, as root or by a sudo that asks nothing; whatever fails, fails silently here."""
    root = privilege()
    if root is None or shutil.which("apt-get") is None:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "redis-server"]):
        subprocess.run([*root, "apt-get", *words], env=quiet, capture_output=True, check=False)


def privilege() -> list[str] | None:
    """What to put before a command that only root may run: nothing, sudo, or None when it cannot be run at all."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        return None
    asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ["sudo", "-n"] if asked.returncode == 0 else None


def free_port() -> int:
    """A port of the loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One redis-server: `start()`, use `url`, `stop()`; `pause()` and `resume()` in between."""

    def __init__(self) -> None:
        self.port = 0
        self._program = find_server()
        self._folder = tempfile.TemporaryDirectory(prefix="headgate-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Server:
        """Start on a free port, or again on the port it had."""
        for _ in range(STARTS):
            self.port = self.port or free_port()
            self._launch()
            if self._answers():
                return self
            self._end()
            self.port = 0
        raise ServerMissing(f"redis-server does not start: {self._log().read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """Stop the server for good."""
        self._end()
        self._folder.cleanup()

    def kill(self) -> None:
        """kill -9; `start()` brings it back, empty, on the same port."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """The server stands still and keeps its connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _launch(self) -> None:
        options = f"--port {self.port} --bind 127.0.0.1 --appendonly no --daemonize no --dir {self._folder.name}"
        with self._log().open("wb") as log:
            words = [self._program, *options.split(), "--save", ""]
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        # A run that is killed cleans nothing up: then the guard's input ends, and the guard ends the server.
        words = ["sh", "-c", 'read -r _; kill -9 "$0"', str(self._process.pid)]
        self._guard = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)

    def _answers(self) -> bool:
        """Whether it is our server that answers, within the time it may take."""
        give_up = time.monotonic() + PATIENCE
        while time.monotonic() < give_up:
            if self._process is None or self._process.poll() is not None:
                return False
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(64).startswith(b"+PONG"):
                        return self._process.poll() is None
            except OSError:
                pass  # not yet
            time.sleep(0.005)
        return False

    def _end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the two processes that this object started, by their ids."""
        if self._process is not None:
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
