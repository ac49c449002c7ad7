"""Packages of npm that tests need: each in a folder of its own, installed once for an environment.

This module knows no package.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

PATIENCE = 300  # seconds for an installation


class NpmFailed(Exception):
    """The package could not be installed; the message has the output of npm."""


def missing_programs() -> str:
    """Why nothing can be installed or run; "" if it can."""
    lacking = [program for program in ("node", "npm") if shutil.which(program) is None]
    return f"{' and '.join(lacking)} cannot be found on the PATH" if lacking else ""


def installed(package: str, version: str) -> Path:
    """The folder `node_modules` that holds the package; the first caller installs it."""
    wanted = json.dumps({"private": True, "dependencies": {package: version}})
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    place = Path(sys.prefix) / f"headgate-{package.replace('/', '-')}-{digest}"
    if not place.exists():
        unfinished = place.with_name(f"{place.name}-{os.getpid()}")
        unfinished.mkdir()
        (unfinished / "package.json").write_text(wanted)
        _install(unfinished, package)
        try:
            unfinished.rename(place)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    return place / "node_modules"


def _install(place: Path, package: str) -> None:
    command = ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    if done.returncode:
        shutil.rmtree(place)
        raise NpmFailed(f"{package} could not be installed for its tests: {done.stderr}")
