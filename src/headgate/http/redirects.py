"""Which call an answer belongs to: when it left, and to which host.

After a redirect, the answer of another host says nothing about the limiters of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlsplit

from headgate.http.error_bodies import Headers, find_header

REDIRECTS = {301, 302, 303, 307, 308}


class Departure(NamedTuple):
    """When a call left, and to which host.

    `at`: on the monotonic clock. `origins`: the limiters that a redirected call has passed before,
    by their encoded names. Each has the host to which the call went when it first passed.
    """

    at: float = 0.0
    host: str = ""
    origins: Mapping[str, str] = {}

    def concerns(self, name: str) -> bool:
        """Return whether the answer says anything about the limiter with this encoded name."""
        return self.origins.get(name, self.host) == self.host


# The host to which the last answer in this context redirects, and the origins. A client follows a
# redirect in the task or thread that got it.
REDIRECT: ContextVar[tuple[str, Mapping[str, str]]] = ContextVar(
    "headgate.http.redirects.REDIRECT", default=("", {})
)


def depart(host: str) -> Departure:
    """Return the departure of a call that leaves for `host` now."""
    target, origins = REDIRECT.get()
    return Departure(monotonic(), host, origins if target == host else {})


def note_redirect(
    departure: Departure, names: Iterable[str], status: int, headers: Headers
) -> None:
    """Note where an answer sends its caller, for the limiters with these names."""
    location = find_header(headers, "location") if status in REDIRECTS else ""
    if location:
        target = urlsplit(location).hostname or departure.host
        origins = dict.fromkeys(names, departure.host)
        # In a chain of redirects, the first host of a limiter stays.
        REDIRECT.set((target, {**origins, **departure.origins}))
    elif REDIRECT.get()[0]:
        REDIRECT.set(("", {}))
