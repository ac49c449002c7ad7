"""`headgate web`: the web page of a store, from one process.

uvicorn serves it. The password comes from the environment, because every user of a machine can read
the arguments of its processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headgate.cli.exits import USAGE, Failure, usage_errors
from headgate.cli.output import address_of, shown
from headgate.cli.store import redis_store_of, url_of
from headgate.missing_extra import extra

if TYPE_CHECKING:
    from headgate.web.application import WebPage

VARIABLE = "HEADGATE_WEB_AUTH"
LAST_PORT = 65_535
STOP_TIMEOUT = 1  # seconds for open pages, once a signal ends the command


async def web(args: Namespace) -> None:
    page = page_of(args)
    with listening(args) as listener:
        host, port = listener.getsockname()[:2]
        print(f"{address_of(host, port)}/", flush=True)
        await serve(page, listener)


def page_of(args: Namespace) -> WebPage:
    from headgate.web import app

    auth = os.environ.get(VARIABLE) or None
    if auth is None and not is_loopback(args.host):
        raise Failure(
            USAGE,
            f"web --host {shown(args.host)} would show all limiters to everyone who reaches this "
            f"machine: set {VARIABLE}=user:password, or leave --host out.",
        )
    if auth is None and args.actions:
        raise Failure(
            USAGE,
            "web --actions would let each program of this machine change limits: set "
            f"{VARIABLE}=user:password.",
        )
    redis_store_of(args)  # raises for a bad URL
    with usage_errors():
        return app(url_of(args), auth=auth, actions=args.actions)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def listening(args: Namespace) -> Iterator[socket.socket]:
    where = f"web --host {shown(args.host)} --port {args.port}"
    if not 0 <= args.port <= LAST_PORT:
        raise Failure(USAGE, f"{where}: a port is a number from 0 to {LAST_PORT}.")
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listener = socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        raise Failure(USAGE, f"{where}: no server can listen there: {error}") from error
    with listener:
        yield listener


async def serve(page: WebPage, listener: socket.socket) -> None:
    """Serve `page` until SIGTERM or SIGINT."""
    try:
        with extra("web"):
            from uvicorn import Config, Server
    except ModuleNotFoundError as missing:
        raise Failure(USAGE, str(missing)) from missing

    class QuietServer(Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """uvicorn would raise the signal again at its end."""
            yield

    config = Config(page, log_level="warning", timeout_graceful_shutdown=STOP_TIMEOUT)
    server = QuietServer(config)

    def end() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    await server.serve([listener])
