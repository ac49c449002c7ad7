"""A real Prometheus for tests: Debian's programs, on a private port, with rules and targets.

This module finds, starts, asks and stops it. A machine without it gets it into `.venv`: the
distribution's package, unpacked. Installed, that package would start a service of the machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.machine import scaled
from tests.servers import free_port, privilege

PATIENCE = scaled(20.0)  # seconds for it to answer
UNPACKED = Path(sys.prefix) / "headgate-prometheus"
ADVICE = (
    "This proof needs a real Prometheus (prometheus and promtool, 2.42 or later) and found none. "
    "Install it with `sudo apt-get install prometheus` (Debian, Ubuntu), or put both programs on "
    "the PATH, and run the proof again."
)


class PrometheusMissing(Exception):
    """There is none here, and its package could not be had."""


def program(name: str) -> str:
    """The path of prometheus or promtool. The first of the worker processes gets a missing one."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _found(name)
        if found is None:
            _unpack()
            found = _found(name)
    if found is None:
        raise PrometheusMissing(ADVICE)
    return found


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}{UNPACKED / 'usr/bin'}")


def _unpack() -> None:
    """Ask the distribution for its package. Any failure is silent here."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return
    root = privilege()
    with tempfile.TemporaryDirectory(prefix="headgate-prometheus-") as folder:
        if root is not None:
            _run([*root, "apt-get", "update"], folder)
        _run(["apt-get", "-o", "APT::Sandbox::User=root", "download", "prometheus"], folder)
        for package in Path(folder).glob("prometheus_*.deb"):
            _run(["dpkg", "-x", str(package), str(UNPACKED)], folder)


def _run(words: list[str], folder: str) -> None:
    subprocess.run(words, cwd=folder, capture_output=True, check=False)


def promtool(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


class Prometheus:
    """A running server, which scrapes each second."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        query = f"?{urlencode(parameters)}" if parameters else ""
        with urlopen(f"{self.url}/api/v1/{path}{query}", timeout=PATIENCE) as reply:
            return json.load(reply)["data"]

    def values(self, expression: str) -> list[float]:
        """The present values of an expression."""
        return [float(each["value"][1]) for each in self.ask("query", query=expression)["result"]]

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=1) as reply:
                return bool(reply.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def prometheus(targets: list[str], rules: Path) -> Iterator[Prometheus]:
    """A server that scrapes `targets`, each "host:port", for as long as the block lasts."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headgate-prometheus-") as folder:
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "fleet", "static_configs": [{"targets": targets}]}],
        }
        Path(folder, "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        words = [
            program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
            try:
                yield _ready(Prometheus(port), process, Path(folder, "log"))
            finally:
                process.terminate()
                process.wait()


def _ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    give_up = time.monotonic() + PATIENCE
    while not server.is_ready():
        if process.poll() is not None or time.monotonic() > give_up:
            raise PrometheusMissing(f"prometheus does not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    return server
