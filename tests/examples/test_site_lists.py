"""The lists of a document look in the site as they look on GitHub."""

from __future__ import annotations

import pytest

from website.lists import as_zensical_reads

CASES = {
    "a list without levels": ("- a\n- b\n", "- a\n- b\n"),
    "a second line of an item": ("- a\n  more\n- b\n", "- a\n    more\n- b\n"),
    "a lazy second line of an item": ("- a\nmore\n- b\n", "- a\nmore\n- b\n"),
    "a second level": ("- a\n  - b\n  - c\n- d\n", "- a\n    - b\n    - c\n- d\n"),
    "a second level that is far in": ("- a\n    - b\n- c\n", "- a\n    - b\n- c\n"),
    "a third level": ("- a\n  - b\n    - c\n- d\n", "- a\n    - b\n        - c\n- d\n"),
    "a numbered list": ("1. a\n   - b\n2. c\n", "1. a\n    - b\n2. c\n"),
    "a paragraph of an item": ("- a\n\n  b\n\nc\n", "- a\n\n    b\n\nc\n"),
    "code in an item": ("- a\n\n      code\n\nb\n", "- a\n\n        code\n\nb\n"),
    "a fence in an item": (
        "- a\n\n  ```python\n  if b:\n      c\n  ```\n",
        "- a\n\n    ```python\n    if b:\n        c\n    ```\n",
    ),
    "a fence": ("```python\n- a\n  - b\n```\n", "```python\n- a\n  - b\n```\n"),
    "code": ("a\n\n    - code\n      more\n", "a\n\n    - code\n      more\n"),
    "a list after a paragraph": ("a\n- b\n", "a\n\n- b\n"),
    "a list after a heading": ("# a\n- b\n", "# a\n- b\n"),
    "a dash in a paragraph": ("a\nb - c\n", "a\nb - c\n"),
}


@pytest.mark.parametrize(("text", "changed"), CASES.values(), ids=CASES)
def test_a_list_gets_the_levels_that_zensical_reads(text: str, changed: str) -> None:
    assert as_zensical_reads(text) == changed
