"""The same tests elsewhere: the behaviour on Redis holds on an old server, on Valkey, by Sentinel
and in a cluster.

This module names the places; the tests are in tests/conformance, tests/classics and tests/cli. By
hand: ./run test tests/conformance --place cluster
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import missing

ROOT = Path(__file__).parents[2]
SHARED = ["tests/conformance", "tests/classics"]
COMMAND = "tests/cli"  # each test has one server
STATES = "tests/faults/test_server_states.py"
ITS_OWN = [  # of one server, which is killed, filled and made to forget
    f"{STATES}::test_a_holder_learns_of_its_lost_permit_when_the_server_restarts_empty",
    f"{STATES}::test_holders_and_waiters_keep_their_places_when_a_server_restarts_with_its_data",
    f"{STATES}::test_waiters_queue_again_at_a_server_that_restarts_empty",
    f"{STATES}::test_a_caller_waits_for_a_busy_server",
    f"{STATES}::test_a_server_with_too_many_clients_is_an_error",
]
# The result of these does not depend on the place, and their margins are those of a machine that
# does nothing else.
OF_TIME = [
    "tests/conformance/test_cancellation.py::test_reservations_move_forward_over_processes",
    "tests/classics/test_crashes.py::test_a_holder_that_lives_keeps_its_place_beyond_the_expiry",
]
TESTS = {
    "redis-6.2": [*SHARED, COMMAND, *ITS_OWN],
    "valkey": [*SHARED, COMMAND, *ITS_OWN],
    "sentinel": SHARED,
    "cluster": SHARED,
}


@pytest.mark.proof("starts test suites")
@pytest.mark.parametrize("place", [place for place in TESTS if place not in missing()])
def test_the_shared_tests_pass_at_each_place(place: str) -> None:
    """Each test says what it checks."""
    without = [f"--deselect={test}" for test in OF_TIME]
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--place",
        place,
        *without,
        *TESTS[place],
    ]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
