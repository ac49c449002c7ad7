"""The Anthropic SDK, in threads: requests, input tokens, output tokens and calls at once limited
together; streams that are left.

The service bears three calls at once, and answers 429 to the first all the same. The SDK tries
again, and that is one more request. Run it: `python examples/with_anthropic.py`
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from anthropic import Anthropic
from anthropic.types import MessageParam
from services.budgets import Rules
from services.models import Models

from headgate import Concurrency, Limiter
from headgate.http.anthropic import Estimates, limit

RULES = Rules(requests=1000, input_tokens=10_000, output_tokens=5000, at_once=3, per=3600)
claude = Limiter(
    "claude", "1000/hour", "10k input_tokens/hour", "5k output_tokens/hour", Concurrency(3)
)


def question(words: int) -> list[MessageParam]:
    return [{"role": "user", "content": f"Say {words} words."}]


def used() -> dict[str, int]:
    return {limit.unit: limit.used for limit in claude.status().limits}


def main() -> None:
    estimates = Estimates()
    with Models(RULES) as service, Anthropic(api_key="none", base_url=service.url) as client:
        limit(client, claude, estimates=estimates)
        service.moods = [429]

        def ask(words: int) -> str:
            with client.messages.stream(
                model="large", max_tokens=4000, messages=question(words)
            ) as stream:
                return stream.get_final_text()

        with ThreadPoolExecutor(8) as threads:
            texts = list(threads.map(ask, [20 + 7 * number % 20 for number in range(20)]))
        print(f"{service}; {sum(len(text.split()) for text in texts)} words")
        print(f"{used()['requests']} requests counted, {used()['permits']} under way")

        with client.messages.stream(model="large", max_tokens=50, messages=question(50)) as stream:
            next(iter(stream.text_stream))
        print(f"{used()['permits']} under way after a stream that was left")
    print(estimates)


if __name__ == "__main__":
    main()
