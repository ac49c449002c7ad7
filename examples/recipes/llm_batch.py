"""A batch of prompts for a language model: within its budgets, with progress and the time left.

Run it: `python examples/recipes/llm_batch.py prompts.txt answers.jsonl`
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TextIO

from openai import AsyncOpenAI, OpenAIError

from headgate import Concurrency, Limiter
from headgate.http.openai import limit

MODEL = "gpt-5-mini"
gpt = Limiter("gpt", "500/minute", "200k tokens/min", Concurrency(20))


class Batch:
    """Asks each prompt once; a prompt in the file of answers is not asked again."""

    def __init__(self, prompts: list[str], answers: Path) -> None:
        answered = answers.read_text().splitlines() if answers.exists() else []
        known = {json.loads(line)["prompt"] for line in answered}
        self.prompts = [prompt for prompt in dict.fromkeys(prompts) if prompt not in known]
        self.answers = answers
        self.done = self.failed = 0
        self.begun = time.monotonic()

    async def run(self) -> None:
        progress = asyncio.create_task(self.show())
        try:
            with self.answers.open("a") as file:
                async with limit(AsyncOpenAI(), gpt) as client, asyncio.TaskGroup() as tasks:
                    for prompt in self.prompts:
                        tasks.create_task(self.ask(client, prompt, file))
        finally:
            progress.cancel()
            print(await self.progress())

    async def ask(self, client: AsyncOpenAI, prompt: str, file: TextIO) -> None:
        try:
            response = await client.responses.create(
                model=MODEL,
                input=prompt,
                max_output_tokens=2000,
            )
        except OpenAIError as error:
            self.failed += 1
            print(f"{prompt[:40]!r}: {error}", file=sys.stderr)
        else:
            self.done += 1
            line = json.dumps({"prompt": prompt, "answer": response.output_text})
            print(line, file=file, flush=True)

    async def show(self) -> None:
        while True:
            await asyncio.sleep(1)
            print(await self.progress())

    async def progress(self) -> str:
        status = await gpt.astatus()
        over = self.done + self.failed
        left = max(status.retry_after or 0.0, self.by_pace(over))
        counts = f"{over} of {len(self.prompts)} over, {self.failed} failed"
        return f"{counts}, {status.waiting} waiting, {left:.0f} s left"

    def by_pace(self, over: int) -> float:
        """Seconds for the rest at the pace so far: the limits do not know how long a call takes."""
        return (time.monotonic() - self.begun) / over * (len(self.prompts) - over) if over else 0.0


if __name__ == "__main__":
    prompts, answers = map(Path, sys.argv[1:])
    asyncio.run(Batch(prompts.read_text().splitlines(), answers).run())
