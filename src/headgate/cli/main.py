"""From the words of the command line to the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from argparse import Namespace
from importlib import import_module

from headgate.cli.exits import (
    BROKEN_PIPE,
    INTERRUPTED,
    NO_INPUT_OUTPUT,
    OK,
    STORE_AWAY,
    Failure,
    code_of,
)
from headgate.cli.output import complain, words_of
from headgate.cli.parser import parse
from headgate.errors import HeadgateError


def main() -> None:
    open_closed_files()
    args = parse(sys.argv[1:])
    # The command reports an error itself, once.
    logging.getLogger("headgate").addHandler(logging.NullHandler())
    code = run(args)
    if code == STORE_AWAY and args.verb != "run":
        # At its end, a process tries for 5 s to deliver what is unsent. This one does not wait: the
        # verb has failed, and its error says so.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(args: Namespace) -> int:
    try:
        code = asyncio.run(finish(args))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # Python flushes stdout again at its end, and must not fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # as of `headgate ls | head -1`
            return BROKEN_PIPE
        complain(error)
        return NO_INPUT_OUTPUT
    return code


def open_closed_files() -> None:
    """Open the standard files that the shell has closed, such as by `>&-`.

    Otherwise a socket would get the number of the closed file. All are opened for writing alone, so
    reading from such a stdin fails.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_WRONLY)  # it gets the least free number
            setattr(sys, name, open(opened, "w", closefd=False))  # noqa: SIM115 - for good


async def finish(args: Namespace) -> int:
    """Run the verb, report its error, and return the exit code."""
    verb = getattr(import_module(args.module), args.function)
    try:
        code: int | None = await verb(args)
    except Failure as failure:
        complain(failure)
        return failure.code
    except HeadgateError as error:
        complain(words_of(error))
        return code_of(error)
    return OK if code is None else code
