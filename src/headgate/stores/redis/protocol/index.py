"""The index of names and of the processes that use them: its keys, members and calls.

This is the only encoder and the only parser. docs/wire-format.md has the text. No encoded name
begins with "/", so these keys are the keys of no name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from headgate.stores.members import Label
from headgate.stores.redis.protocol.script import Script, library

# Seconds for which a member lives after its last refresh.
LIFETIME = 300
# A sorted set of encoded names, without the keys of limiters.
NAMES = "headgate:{/index}:names"
# Each label is in one of these sorted sets: the first that had room. So even thousands of labels
# are in sets that are small enough for a short form (index.lua).
LABELS = tuple(f"headgate:{{/index}}:clients:{number:x}" for number in range(64))
# A call carries so many members at most: the server does nothing else meanwhile.
MOST = 500
# The characters of a client's id that a label has: 48 random bits tell clients apart.
ID_LENGTH = 12
# The most characters of an encoded host and program. With id and process, a label has 64 at most:
# a set with a longer member has no short form.
HOST, PROGRAM = 28, 14


class Refresh(NamedTuple):
    """A call that refreshes members of one of these keys of the index. The transport sends it as it
    sends a `Command`.
    """

    keys: tuple[str, ...]
    members: tuple[str, ...]
    for_others: bool = False  # as in `Command`: it grants nothing

    @property
    def script(self) -> Script:
        return library().index

    @property
    def words(self) -> tuple[str, ...]:
        return (str(len(self.keys)), *self.keys, str(LIFETIME), *self.members)

    def unnotified(self) -> Refresh:
        return self


def write_names(names: list[str]) -> list[Refresh]:
    """The calls that refresh encoded names."""
    return [
        Refresh((NAMES,), tuple(names[start : start + MOST]))
        for start in range(0, len(names), MOST)
    ]


def write_label(session_id: str, label: Label, keys: tuple[str, ...] = LABELS) -> Refresh:
    """The call that refreshes the label of a client, or of any session of it. `keys`: the one that
    has the label, or those of which one gets it.
    """
    # Of a long name with a domain, the first part tells hosts apart.
    host = label.host if len(label.host) <= HOST else label.host.partition(".")[0]
    host, program = shortened(host, HOST, from_end=True), shortened(label.program, PROGRAM)
    member = f"{session_id[:ID_LENGTH]} {host} {label.pid} {program}"
    return Refresh(keys, (member,))


def shortened(text: str, most: int, from_end: bool = False) -> str:
    """`text` percent-encoded, and cut to `most` characters. Hosts of a fleet differ at the end."""
    encoded = quote(text, safe="", errors="replace")
    while len(encoded) > most:
        text = text[1:] if from_end else text[:-1]
        encoded = quote(text, safe="", errors="replace")
    return encoded


def parse_label(member: str) -> tuple[str, Label] | None:
    """The beginning of a client's id, and its label. None: it comes from another program."""
    match member.split(" "):
        case beginning, host, pid, program if pid.isdecimal():
            return beginning, Label(unquote(host), int(pid), unquote(program))
    return None


def living(reply: Sequence[bytes], now: int) -> list[str]:
    """The members of a reply WITHSCORES that have not expired at `now`, in seconds.

    Encoded names and labels are ASCII. Another member comes from another program.
    """
    return [
        member.decode()
        for member, end in zip(reply[::2], reply[1::2], strict=True)
        if int(float(end)) > now and member.isascii()
    ]
