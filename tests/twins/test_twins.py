"""The script on a real server answers what the Python gate answers: every grant, wait, refusal, number left and letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import redis
from hypothesis import HealthCheck, given, note, settings

from tests.twins.driver import Player, Story, promises
from tests.twins.stories import stories
from tests.twins.wire import Wire

deterministic = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


@deterministic
@given(story=stories())
def test_both_twins_tell_the_same_story(client: redis.Redis, made: Callable[[], Wire], story: Story) -> None:
    """S1-S9, T1-T12 hold of both twins alike, because both give the same answers."""
    note(f"tests/seeds: {story!r}")
    wire = made()
    player = Player(wire, story)
    player.play(story["steps"])
    wire.forget()
