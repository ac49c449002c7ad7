"""What is done about an answer: what its server says of its limits holds for all who use the limiters that the call has passed.

Here lives the choice of what to do, and that it never stands in the way of a call. What was said is answers.py's to know; how all
are told of it, the limiters'.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headgate.checks import flag
from headgate.http.answers import Answer, Headers, read
from headgate.http.calls import Heard
from headgate.limiter import Limiter

LONGEST = 3600.0  # seconds of a pause: who says more is asked again after that
LOG = logging.getLogger("headgate")


def heeding(call: str, heed: bool) -> Heard | None:
    """What to do with each answer, if anything."""
    return listen if flag(call, "heed", heed) else None


def listen(limiters: Sequence[Limiter], status: int, headers: Headers) -> None:
    """Tell `limiters` what an answer says. Whatever goes wrong with that is no matter of the call's."""
    try:
        obey(limiters, read(status, headers))
    except Exception:
        LOG.debug("An answer could not be heeded.", exc_info=True)


def obey(limiters: Sequence[Limiter], answer: Answer) -> None:
    """A refusal for a time is a pause. One that no waiting helps has no time, nor have answers that are none."""
    if answer.retry_after:
        for limiter in limiters:
            limiter.pause(min(answer.retry_after, LONGEST))
