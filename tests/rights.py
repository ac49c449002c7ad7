"""The user of docs/redis.md: the tests' servers grant it only the rights that the document names.

This module reads the document, and adds nothing to it.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "redis.md"
USER = "headgate"
PASSWORD = "the-tests-password"


def rights() -> str:
    """The rules of the documented user, as a server's configuration has them; the password
    is ours.
    """
    line = re.search(rf"<!-- acl -->\s+ACL SETUSER {USER} on >password (.+)", DOCUMENT.read_text())
    assert line is not None, f"{DOCUMENT.name} says it in other words now"
    return line[1]


def rights_without_functions() -> str:
    """The same on a server that has none, in the words of the document."""
    functions, scripts = "+fcall +function|load", "+evalsha +eval"
    sharded = ["+ssubscribe", "+sunsubscribe", "+spublish"]
    assert f"`{scripts}` instead of `{functions}`" in DOCUMENT.read_text()
    assert f"does not know `{' '.join(sharded)}`" in DOCUMENT.read_text()
    return " ".join(
        word for word in rights().replace(functions, scripts).split() if word not in sharded
    )
