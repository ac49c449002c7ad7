"""`python -m website`: build the site into build/docs/html, and check it.

Exit status: 0 the site is built and has no fault; 1 it has faults, which are printed.
A fault is a warning of Zensical or of one of its parts, a dead link, a page without a place
in the navigation, or a public name that the API reference leaves out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from website import check, pages, reference

ROOT = Path(__file__).parents[1]
COLOR = re.compile(r"\x1b\[[\d;]*m")
FOLDER = ROOT / "build/docs"  # which git ignores, as all of build/


def main() -> int:
    faults = build(ROOT, FOLDER)
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print(f"The site has {len(faults)} faults.", file=sys.stderr)
        return 1
    index = FOLDER / "html/index.html"
    count = len(list((FOLDER / "html").rglob("*.html")))
    print(f"{count} pages without a dead link: {index.relative_to(ROOT)}")
    return 0


def build(root: Path, folder: Path) -> list[str]:
    """Build the site of the repository at `root` in `folder`, and return its faults."""
    try:
        pages.write(root, folder)
    except pages.PageError as error:
        return [str(error)]
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(
        [*command, "-f", str(folder / "zensical.toml")],
        cwd=ROOT,  # where Zensical finds website.docstrings
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = COLOR.sub("", done.stdout)
    if done.returncode or "warning" in said.lower():
        return [said.partition("Traceback")[0].strip() or said]
    html = folder / "html"
    return [*check.faults(html), *reference.left_out(root, html)]


if __name__ == "__main__":
    sys.exit(main())
