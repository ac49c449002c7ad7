"""A status for people: lines for a terminal, and a table for a notebook.

This module makes text of plain values. It knows no store and no clock. A terminal gets ASCII alone,
so a print raises in no encoding. A name may have any character; none acts on a terminal or as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.validation import duration

WIDTH = 20  # of a bar, in columns
LONGEST_NAME = 64  # in columns; a longer name loses its middle
NO_LIMITS = "no limits declared yet"


class Use(NamedTuple):
    """One limit. `used` is above `capacity` in a debt, and after a cut below the held permits."""

    kind: str
    unit: str
    used: int
    capacity: int


def as_text(name: str, uses: Sequence[Use], outlook: Sequence[str]) -> str:
    lines = [*(bars(uses) or [NO_LIMITS]), *outlook]
    return "\n  ".join([shortened(ascii(name)), *lines])


def bars(uses: Sequence[Use]) -> list[str]:
    used = padded([f"{use.used:,}" for use in uses], ">")
    capacity = padded([f"{use.capacity:,}" for use in uses], ">")
    unit = padded([use.unit for use in uses], "<")
    return [
        f"[{bar(use)}]  {a} of {b} {c}  {use.kind}{over(use)}"
        for use, a, b, c in zip(uses, used, capacity, unit, strict=True)
    ]


def bar(use: Use, width: int = WIDTH) -> str:
    """The bar has a mark if anything is used, and a dot if anything is left."""
    marks = max(int(use.used > 0), width * use.used // max(use.capacity, 1))
    return f"{'#' * min(marks, width):.<{width}}"


def padded(texts: Sequence[str], align: str) -> list[str]:
    width = max(map(len, texts), default=0)
    return [f"{text:{align}{width}}" for text in texts]


def over(use: Use) -> str:
    return f", {use.used - use.capacity:,} over" if use.used > use.capacity else ""


def outlook(waiting: int, retry_after: float | None, paused: float) -> list[str]:
    """The lines below the limits. The arguments are those of a `Status`."""
    if retry_after is None:
        turn = "waits for a release"
    else:
        turn = f"could go {f'in {duration(retry_after)}' if retry_after else 'at once'}"
    lines = [f"{waiting:,} waiting; a new caller {turn}"]
    return [*lines, f"paused for {duration(paused)}"] if paused else lines


def shortened(text: str) -> str:
    half = LONGEST_NAME // 2
    return text if len(text) <= LONGEST_NAME else f"{text[: half - 3]}...{text[-half:]}"


def as_html(name: str, uses: Sequence[Use], outlook: Sequence[str]) -> str:
    """It sets no color, because a notebook is light or dark.

    The numbers say the same as the bars. So a screen reader skips the bars.
    """
    from html import escape  # here: `import headgate` need not wait for it

    left = "text-align: left"
    rows = "".join(
        f'<tr><th scope="row" style="{left}">{escape(use.kind)}</th>'
        f'<td aria-hidden="true"><meter max="{use.capacity}" value="{use.used}"></meter></td>'
        f'<td style="{left}">{use.used:,} of {use.capacity:,} {escape(use.unit)}{over(use)}</td>'
        "</tr>"
        for use in uses
    )
    # A repr shows a character that is not printable as an escape sequence.
    caption = f'<caption style="{left}; color: inherit">{escape(shortened(repr(name)))}</caption>'
    lines = "".join(f"<div>{line}</div>" for line in ([] if uses else [NO_LIMITS]) + [*outlook])
    return f"<div><table>{caption}{rows}</table>{lines}</div>"
