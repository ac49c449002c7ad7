"""The label of this process: its host, its id and its program, for an operator to read."""

from __future__ import annotations

import os
import socket
import sys

from headgate.stores.members import Label


def own_label() -> Label:
    return Label(socket.gethostname(), os.getpid(), program())


def program() -> str:
    """The name of the program as its user started it: a script, a command, or a module."""
    folder, name = os.path.split(str((getattr(sys, "argv", None) or [""])[0]))
    name = os.path.basename(folder) if name == "__main__.py" else name
    return "python" if name in ("", "-c", "-m") else name
