"""For tests of limited code: a clock that the test moves, and assertions about calls.

Limiters on Redis use the server's time. The fixtures for pytest are in headgate_pytest.py.
"""

from headgate.testing.assertions import Call, Recorder, assert_at_rest, assert_never_over
from headgate.testing.clock import ManualClock
from headgate.testing.virtual_loop import Standstill

__all__ = ["Call", "ManualClock", "Recorder", "Standstill", "assert_at_rest", "assert_never_over"]
