"""The script on a real server answers what the Python gate answers: every grant, wait, refusal, number left and letter.

A story that fails is cut short and printed; saved as a JSON file in tests/seeds it is played ever after.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.twins.driver import Player, Story
from tests.twins.stories import Author, cut
from tests.twins.wire import Wire

SEEDS = sorted((Path(__file__).parent.parent / "seeds").glob("*.json"))
STORIES, LENGTH = 5, 120


def told(wire: Wire, story: Story) -> str:
    """What was different, and what went before; nothing when both twins agree."""
    player = Player(wire, story)
    try:
        player.play(story["steps"])
    except (AssertionError, redis.ResponseError) as difference:
        return str(difference) or "\n".join(player.trace)
    finally:
        wire.forget()
    return ""


def agree(made: Callable[[], Wire], story: Story) -> None:
    """Fail with the shortest story that shows the difference."""
    if told(made(), story):
        story = cut(story, lambda shorter: bool(told(made(), shorter)))
        pytest.fail(f"{told(made(), story)}\n\nfor tests/seeds: {json.dumps(story)}")


@pytest.mark.parametrize("seed", range(60))
def test_both_twins_tell_the_same_story(made: Callable[[], Wire], seed: int) -> None:
    """S1-S7, T1-T9: given any limits and any talk of three sessions at any times, when both twins hear it, they say the same."""
    for number in range(STORIES):
        agree(made, Author(f"{seed}.{number}").story(LENGTH))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: path.stem)
def test_what_differed_once_is_the_same_ever_after(made: Callable[[], Wire], seed: Path) -> None:
    agree(made, json.loads(seed.read_text()))
