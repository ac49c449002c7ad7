"""The error of a module whose optional package is missing. It names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of packages that `pip install 'headgate[name]'` brings.

    If the imported module uses `extra`, too, the error names the outer one.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        raise ModuleNotFoundError(
            f"headgate's {name} support needs the package {package!r}, which is not installed: "
            f"pip install 'headgate[{name}]' brings it.",
            name=package,
        ) from missing
