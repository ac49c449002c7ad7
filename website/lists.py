"""Lists as GitHub reads them, for Zensical.

Here lives one difference between two readers of Markdown. To GitHub, lines belong to an item of a
list when they are indented as far as its text, mostly by two spaces. Zensical wants four spaces for
each level, and an empty line between a paragraph and a list.
"""

from __future__ import annotations

import re

ITEM = re.compile(r"(?:[-*+]|\d+[.)]) +(?=\S)")
FENCE = re.compile(r"```|~~~")
LEVEL = 4  # spaces


def as_zensical_reads(text: str) -> str:
    """Return a document whose lists look in Zensical as they look on GitHub."""
    lines: list[str] = []
    texts: list[int] = []  # for each open item, how far its text is indented
    shift = 0  # of the lines of a fence
    fenced = False
    for line in text.splitlines():
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        if fenced:
            lines.append(" " * max(0, indent + shift) + content if content else "")
            fenced = not FENCE.match(content)
            continue
        item = ITEM.match(content)
        within = bool(texts)
        goes_on = bool(lines and lines[-1].strip()) and not item
        if content and not goes_on:
            while texts and indent < texts[-1]:
                texts.pop()
        outer = texts[-1] if texts else 0
        if item and indent - outer < LEVEL:
            shift = LEVEL * len(texts) - indent
            texts.append(indent + len(item[0]))
            if not within and ends_in_a_paragraph(lines):
                lines.append("")
        else:
            shift = LEVEL * len(texts) - outer if indent >= outer else 0
        lines.append(" " * (indent + shift) + content if content else "")
        fenced = bool(FENCE.match(content))
    return "\n".join(lines) + "\n"


def ends_in_a_paragraph(lines: list[str]) -> bool:
    """Whether the last line is one of a paragraph, where no list is open."""
    last = lines[-1] if lines else ""
    return bool(last) and not last.startswith((" ", "#", "|", "<!--"))
