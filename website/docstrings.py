"""How a docstring of the package becomes Markdown for the site.

Here lives an extension of griffe, the reader of docstrings behind mkdocstrings. The package
explains arguments in lines that begin with `name`: on a page these lines are a list.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"`\w+`: ")


def with_lists(text: str) -> str:
    """Return a docstring in which lines that explain arguments are items of a list."""
    lines: list[str] = []
    within = False
    for line in text.splitlines():
        if ARGUMENT.match(line):
            lines += [f"- {line}"] if within or not lines or not lines[-1] else ["", f"- {line}"]
            within = True
        else:
            within = within and bool(line)
            lines.append(f"    {line}" if within else line)
    return "\n".join(lines)


class Arguments(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_lists(obj.docstring.value)
