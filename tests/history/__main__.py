"""python -m tests.history FILE ...: judge histories that were kept.

Exit status: 0 when all of them agree with the model, 1 when one does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.history.checker import judged
from tests.history.events import read


def main(files: list[str]) -> int:
    if not files:
        print(__doc__)
        return 2
    verdicts = [judged(read(Path(file))) for file in files]
    for file, verdict in zip(files, verdicts, strict=True):
        print(f"{file}: {verdict}")
    return int(any(verdict.broken for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
