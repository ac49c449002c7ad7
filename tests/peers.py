"""The limiters of docs/migration that a machine may lack: self-limiters and Bottleneck.

Bottleneck runs under node.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess

from tests import npm

BOTTLENECK = "2.19.5"
SOON = 60  # seconds for one of its programs, which take less than one


def missing() -> dict[str, str]:
    """The peers that this machine does not have, and why."""
    reasons = {}
    if importlib.util.find_spec("self_limiters") is None:
        reasons["self-limiters"] = "it is not installed: the dev extra has it on Linux only"
    if lacking := npm.missing_programs():
        reasons["bottleneck"] = lacking
    return reasons


def run_in_node(program: str) -> str:
    """Run a program that may require "bottleneck", and return the lines that it prints."""
    environment = {**os.environ, "NODE_PATH": str(npm.installed("bottleneck", BOTTLENECK))}
    done = subprocess.run(
        ["node", "-"],
        input=program,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SOON,
    )
    assert (done.stderr, done.returncode) == ("", 0), done.stderr
    return done.stdout
