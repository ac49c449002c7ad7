"""The batch recipe, beside a local service with the API and the limits of OpenAI's."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Limiter
from tests.faults.scene import eventually
from tests.recipes.programs import RECIPES, Program

RULES = Rules(requests=500, tokens=200_000, at_once=20, per=60, call_time=0.001)
PROMPTS = [f"Say {10 + number} words." for number in range(40)]


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(RULES) as models:
        yield models


@pytest.fixture
def variables(models: Models) -> dict[str, str]:
    """The variables by which the SDK knows its service."""
    return {"OPENAI_BASE_URL": f"{models.url}/v1", "OPENAI_API_KEY": "none"}


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str) -> Iterator[Any]:
    """The module, with a limiter of this test's own."""
    monkeypatch.syspath_prepend(str(RECIPES))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    recipe = importlib.import_module("llm_batch")
    recipe.gpt = Limiter(name, *recipe.gpt.limits)
    yield recipe
    del sys.modules["llm_batch"]


def answered(answers: Path) -> list[str]:
    return sorted(json.loads(line)["prompt"] for line in answers.read_text().splitlines())


async def test_a_batch_that_is_interrupted_says_the_time_left_and_asks_the_rest_when_it_runs_again(
    recipe: Any, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given seven requests that are left, then the others would wait for a minute."""
    answers = tmp_path / "answers.jsonl"
    async with recipe.gpt:
        pass  # declares the limits
    recipe.gpt.drain(requests=7)
    batch = recipe.Batch(PROMPTS, answers)
    running = asyncio.create_task(batch.run())
    await eventually(lambda: batch.done == 7 and recipe.gpt.status().waiting == len(PROMPTS) - 7)
    left = re.fullmatch(r"7 of 40 over, 0 failed, 33 waiting, (\d+) s left", await batch.progress())
    assert left
    assert 30 < int(left[1]) <= 60
    running.cancel()
    await asyncio.wait([running])
    assert (recipe.gpt.status().waiting, len(answered(answers))) == (0, 7)

    before = models.into + models.out
    recipe.gpt.reset()
    await recipe.Batch(PROMPTS, answers).run()
    assert answered(answers) == sorted(PROMPTS)
    assert capsys.readouterr().out.endswith("33 of 33 over, 0 failed, 0 waiting, 0 s left\n")
    assert (models.calls, models.refused.total()) == (40, 0)
    assert models.most <= 20
    tokens = next(limit for limit in recipe.gpt.status().limits if limit.unit == "tokens")
    assert tokens.used == models.into + models.out - before, "each call was settled"


@pytest.mark.proof
def test_the_program_ends_at_once_when_it_is_interrupted(
    models: Models, variables: dict[str, str], tmp_path: Path
) -> None:
    prompts, answers = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    texts = [f"Say 5 words about {number}." for number in range(600)]  # 500 in the first minute
    prompts.write_text("\n".join(texts))
    with Program("llm_batch.py", str(prompts), str(answers), **variables) as program:
        program.says(r"500 of 600 over, 0 failed, 100 waiting, [1-6]?\d s left\n")
        program.signal(signal.SIGINT)
        assert program.ended() in (1, -signal.SIGINT)
        assert "KeyboardInterrupt" in program.text
    assert len(answered(answers)) == 500
    assert models.refused.total() == 0
