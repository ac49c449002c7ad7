"""The question before a change."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from headgate.cli.exits import FAILED, USAGE, Failure


def check_may_change(args: Namespace) -> None:
    """Before any I/O: off a terminal, only --yes allows a change."""
    if not args.yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(
            USAGE,
            f"{args.verb} changes a limiter, and there is no terminal to confirm it at: give "
            "--yes.",
        )


def confirm(args: Namespace, question: str) -> None:
    if args.yes:
        return
    with raising_at_ctrl_c():  # from the moment at which the user sees the question
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure(FAILED, "nothing was changed.")


@contextmanager
def raising_at_ctrl_c() -> Iterator[None]:
    """asyncio only cancels the task at Ctrl-C. A task that waits for a line would not notice."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
