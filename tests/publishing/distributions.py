"""The two distributions of a release: the sdist, and the wheel that is built from the sdist.

This module builds them, and reads the results. The tests decide on the necessary files.
"""

from __future__ import annotations

import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path
    unpacked: Path  # the sdist's folder

    @cached_property
    def source_files(self) -> set[str]:
        """Return the files of the sdist, as paths within its folder."""
        files = (path for path in self.unpacked.rglob("*") if path.is_file())
        return {path.relative_to(self.unpacked).as_posix() for path in files}

    @cached_property
    def wheel_files(self) -> set[str]:
        """Return the files of the wheel, without those that describe it."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @cached_property
    def metadata(self) -> Message:
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())

    @property
    def index_text(self) -> str:
        """Return the text that the package index shows."""
        return str(self.metadata.get_payload())


def build(folder: Path) -> Distributions:
    """Build both with the project's own build backend."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    (wheel,) = WheelBuilder(str(unpacked)).build(directory=str(folder), versions=["standard"])
    return Distributions(Path(sdist), Path(wheel), unpacked)
