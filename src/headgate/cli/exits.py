"""The exit codes of the command, and the errors that lead to them. From 64 on, they are those of
sysexits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import (
    HeadgateError,
    LeaseLostError,
    MaxSleepExceededError,
    StoreError,
    UnknownLimiterError,
)

OK = 0
FAILED = 1  # `doctor` found something serious, or the user did not confirm a change
USAGE = 64
UNKNOWN = 66
STORE_AWAY = 69
LEASE_LOST = 71
NO_INPUT_OUTPUT = 74  # stdin cannot be read, or stdout cannot be written
NOT_NOW = 75
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # of a command, as a shell reports it
SIGNALLED = 128  # and the number of the signal
INTERRUPTED, BROKEN_PIPE = SIGNALLED + 2, SIGNALLED + 13

CODES: dict[type[HeadgateError], int] = {
    UnknownLimiterError: UNKNOWN,
    StoreError: STORE_AWAY,
    LeaseLostError: LEASE_LOST,
    MaxSleepExceededError: NOT_NOW,
}


class Failure(Exception):
    """The command ends with this exit code, and says why on stderr."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: HeadgateError) -> int:
    """The exit code of an error. A cost that can never pass is an error of usage."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), USAGE)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn the error of a call that checks arguments into a Failure with the code USAGE."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise Failure(USAGE, str(error)) from error


def is_count(word: str) -> bool:
    """Whether `word` is a whole number of at most 16 digits, as numbers below 2**53 are."""
    return word.isdecimal() and len(word) <= 16
