"""An environment for LiteLLM, apart from that of the other tests.

LiteLLM is not among the dev extras. This version needs an openai before 3, and the tests of the
SDKs need one from 3 on. A later one that takes both cannot be installed where its other
dependencies are missing. It also brings 200 MB, of which it imports a part. Here is its
installation, once for each environment and list of requirements.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WANTED = HERE / "litellm.txt"
PATIENCE = 300  # seconds for its installation


class Missing(Exception):
    """It could not be installed."""


def folder() -> Path:
    """Return the folder of the installation, which the first caller makes."""
    place = (
        Path(sys.prefix)
        / f"headgate-litellm-{hashlib.sha256(WANTED.read_bytes()).hexdigest()[:12]}"
    )
    if not place.exists():
        unfinished = place.with_name(f"{place.name}-{os.getpid()}")
        install(unfinished)
        unfinished.rename(place)
    return place


def install(place: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [
        *pip,
        "--no-deps",
        "--no-compile",
        "--target",
        str(place),
        "--requirement",
        str(WANTED),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise Missing(f"LiteLLM could not be installed for its tests: {done.stderr}")


def environment() -> dict[str, str]:
    """Return the environment of a Python that can import LiteLLM, without a look at its list of
    prices in the net.
    """
    path = [folder(), ROOT / "src", ROOT, *filter(None, sys.path)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
