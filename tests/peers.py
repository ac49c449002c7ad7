"""The limiters of docs/migration that a machine may lack: self-limiters and Bottleneck.

This module installs Bottleneck, which runs under node. Bottleneck stands in a folder of its own,
installed once for each environment and version.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

BOTTLENECK = "2.19.5"
PATIENCE = 300  # seconds for its installation
SOON = 60  # seconds for one of its programs, which take less than one


class PeerMissing(Exception):
    """This machine does not have it; the message says why."""


def missing() -> dict[str, str]:
    """The peers that this machine does not have, and why."""
    reasons = {}
    if importlib.util.find_spec("self_limiters") is None:
        reasons["self-limiters"] = "it is not installed: the dev extra has it on Linux only"
    lacking = [program for program in ("node", "npm") if shutil.which(program) is None]
    if lacking:
        reasons["bottleneck"] = f"{' and '.join(lacking)} cannot be found on the PATH"
    return reasons


def run_in_node(program: str) -> str:
    """Run a program that may require "bottleneck", and return the lines that it prints."""
    environment = {**os.environ, "NODE_PATH": str(_folder() / "node_modules")}
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


def _folder() -> Path:
    """The folder that holds Bottleneck; the first caller installs it."""
    wanted = json.dumps({"private": True, "dependencies": {"bottleneck": BOTTLENECK}})
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    place = Path(sys.prefix) / f"headgate-bottleneck-{digest}"
    if not place.exists():
        unfinished = place.with_name(f"{place.name}-{os.getpid()}")
        unfinished.mkdir()
        (unfinished / "package.json").write_text(wanted)
        _install(unfinished)
        try:
            unfinished.rename(place)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return place


def _install(place: Path) -> None:
    command = ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    if done.returncode:
        shutil.rmtree(place)
        raise PeerMissing(f"Bottleneck could not be installed for its tests: {done.stderr}")
