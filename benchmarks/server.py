"""The redis-server of a run: started here on a private port of the loopback, and stopped by its
process id.

Here the server is only started, asked and stopped; other modules measure on it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

START_PATIENCE = 10.0
POLL = 0.01
SWEEP_BATCH = 1000
NO_PERSISTENCE = ("--save", "", "--appendonly", "no")


class ServerMissingError(Exception):
    """There is no redis-server to measure on; the text says how to get one."""


@contextmanager
def private_server() -> Iterator[str]:
    """A redis-server of our own, without persistence; yields its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerMissingError("redis-server is not on the PATH: install it, or give --redis URL")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headgate-benchmarks-") as directory:
        where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory]
        process = subprocess.Popen([program, *where, *NO_PERSISTENCE], stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_PATIENCE
    with Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except RedisConnectionError:
                if process.poll() is not None:
                    raise ServerMissingError(
                        f"redis-server ended with status {process.returncode}"
                    ) from None
                if time.monotonic() > deadline:
                    raise ServerMissingError("redis-server does not answer") from None
                time.sleep(POLL)
            else:
                return


def server_version(url: str) -> str:
    try:
        with Redis.from_url(url) as client:
            return str(client.info("server")["redis_version"])
    except RedisError as error:  # the URL may hold a password: it stays out of the text
        raise ServerMissingError(
            f"the server given does not answer: {type(error).__name__}"
        ) from None


def sweep(url: str, mark: str) -> None:
    """Delete the keys of this run from a server that is not ours: every name of the run contains
    its mark.
    """
    with Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"*{mark}*", count=SWEEP_BATCH):
            client.unlink(key)
