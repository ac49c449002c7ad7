"""Child processes that never outlive the demo: each is stopped by its own process id, or stops by
itself.

Parent and child speak in lines over the child's stdin and stdout. No signal of the terminal reaches
a child: Ctrl-C is the parent's to handle.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
STDIN = 0


@asynccontextmanager
async def child(module: str) -> AsyncIterator[Process]:
    command = (sys.executable, "-m", module)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, cwd=ROOT, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended already
            process.terminate()
        await process.wait()


async def say(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    await process.stdin.drain()


async def hear(process: Process) -> str:
    """The next line of the child, empty when it has ended."""
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def end_with_parent() -> None:
    """In a child: ends the process when the parent has ended, in any way: stdin is closed then."""
    threading.Thread(target=_wait_for_end_of_stdin, daemon=True).start()


def _wait_for_end_of_stdin() -> None:
    # os.read, because a thread inside sys.stdin holds its lock, and the interpreter cannot shut
    # down.
    while os.read(STDIN, 1024):
        pass
    os._exit(1)
