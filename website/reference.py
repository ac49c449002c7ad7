"""The API reference: a page for each public module, made from the docstrings by mkdocstrings.

Here lives the choice of what is public: the names in `__all__` of `headgate`, `headgate.testing`
and `headgate.web`, and of the modules of `headgate.http` and `headgate.frameworks`. The sources are
read and not imported, so the site can be built without any HTTP client or framework.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path("src/headgate")
GROUPS = ("http", "frameworks")  # folders in which each module with an `__all__` is public
FOLDER = "reference"
parsed = cache(ast.parse)


def public_modules(root: Path) -> dict[str, Path]:
    """Return the sources of the public modules by the names under which users import them."""
    package = root / PACKAGE
    testing = package / "testing.py"
    sources = {
        "headgate": package / "__init__.py",
        "headgate.testing": testing if testing.exists() else package / "testing/__init__.py",
        "headgate.web": package / "web/__init__.py",
    }
    for group in GROUPS:
        for path in sorted((package / group).glob("*.py")):
            sources[f"headgate.{group}.{path.stem}"] = path
    return {module: path for module, path in sources.items() if offered(path)}


def public_names(root: Path) -> dict[str, list[str]]:
    """Return the public names of each public module, sorted."""
    sources = public_modules(root)
    return {module: sorted(offered(path), key=str.lower) for module, path in sources.items()}


def offered(path: Path) -> list[str]:
    """Return the names in the `__all__` of a source file."""
    for node in parsed(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def pages(root: Path) -> dict[str, str]:
    """Return the text of each page of the reference by its path in the site."""
    names = public_names(root)
    sources = public_modules(root).items()
    return {place(module): page(module, path, names[module]) for module, path in sources}


def place(module: str) -> str:
    return f"{FOLDER}/{module}.md"


def page(module: str, path: Path, names: list[str]) -> str:
    """Return a page of names after the first paragraph of the module's docstring."""
    first, _, _ = (ast.get_docstring(parsed(path.read_text())) or "").partition("\n\n")
    return "\n\n".join([f"# {module}", first, *(f"::: {module}.{name}" for name in names)]) + "\n"


def left_out(root: Path, html: Path) -> list[str]:
    """Return the faults of a built reference: each public name needs an anchor on its page."""
    faults = []
    for module, names in public_names(root).items():
        path = html / place(module).replace(".md", ".html")
        anchors = set(re.findall(r'id="([^"]+)"', path.read_text()))
        missing = [name for name in names if f"{module}.{name}" not in anchors]
        faults += [f"{place(module)}: the reference leaves out {module}.{name}" for name in missing]
    return faults
