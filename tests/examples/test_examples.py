"""Every example runs, as a reader would run it: a program of its own, quiet on stderr, over in a
moment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import scaled_now

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 20.0  # seconds, for a machine that is busy; the examples themselves take less than two

# program: its output, as patterns
SAID = {
    "one_process": [
        r"^12 calls in 0\.\d s, at most [123] at once$",
        r"0 of 3 permits used \(Concurrency\), 0 waiting",
    ],
    "fleet": [r"^20 jobs in 4 processes, at most [12] at once, 20 different fences$"],
    "llm_budgets": [r"^10 calls asked for 4000 tokens and took 140; 8\d\d of 1000 are left$"],
    "keyed_tenants": [
        r"^ann: 3 x found$",
        r"^ann: 2 x 429, retry after 20 minutes$",
        r"^bob: 1 x found$",
        r"^bob: 1 x not found$",
    ],
    "threads": [
        r"^20 calls of threads and 20 of tasks, at most [123] at once, the same digests: True$"
    ],
    "decorators": [r"^6400 bytes became \d\d; permits in use now: 0$"],
    "classics": [
        r"^Semaphore: 10 digests, two at a time$",
        r"^TokenBucket: three entries, .*: True$",
        r"^TokenBucket: refused at once, the next token is (60|59) minutes away$",
        r"^RateLimiter: passed$",
    ],
    "testing": [
        r"^2400 calls, at most 5 at once, took 23\.1 hours$",
        r"^the next call after 3600 s$",
    ],
    "web_server": [
        r"^10 answers$",
        r"^a request that waited at the end: 503$",
        r"^a request that came later: 503$",
        r"0 of 2 permits used \(Concurrency\), 0 waiting",
    ],
    "with_aiohttp": [
        r"^20 calls, at most [123] at once, 0 refused; 90 lines$",
        r"^RateLimiter: 5 calls, at most 1 at once, 0 refused$",
    ],
    "with_httpx": [
        r"^21 calls, at most [123] at once, 0 refused; 20 of 20 answered$",
        r"0 of 3 permits used \(Concurrency\), .*, 0 waiting",
    ],
    "with_httpx2": [
        r"^8 calls, at most [12] at once, 0 refused; 80 lines$",
        r"0 of 2 permits used \(Concurrency\), .*, 0 waiting",
        r"^10 lines by a transport$",
    ],
    "with_langchain": [r"^10 answers in 0\.\d s$", r"\d of 5 requests used \(Rate\), 0 waiting"],
    "with_pydantic_ai": [
        r"^10 runs, the model asked by [12] at once$",
        r"0 of 3 permits used \(Concurrency\), 0 waiting",
    ],
    "with_retries": [r"^4 calls took [23] and [234] attempts$"],
    "with_openai": [
        r"^100 calls, at most [123] at once, 0 refused; 4850 words$",
        r"^5150 tokens counted here, 5150 there$",
        r"^<Estimates of small: 100 calls, input 0\.20 tokens a character \(\d% off\), "
        r"output 6\d tokens \(\d\d% off, .*>$",
    ],
    "with_anthropic": [
        r"^21 calls, at most [123] at once, 1 refused; 590 words$",
        r"^21 requests counted, 0 under way$",
        r"^0 under way after a stream that was left$",
        r"^<Estimates of large: 21 calls, .*>$",
    ],
    "with_requests": [
        r"^20 calls, at most [123] at once, 0 refused; 20 of 20 answered$",
        r"^22 of 22 attempts counted, 0 under way$",
    ],
}
ELSEWHERE = {"with_litellm"}  # tests/frameworks/test_litellm.py, where LiteLLM is
WITH_A_SERVER = ["fleet", "classics"]
SLOW = {
    "with_anthropic",
    "with_langchain",
    "with_openai",
    "with_pydantic_ai",
}  # their libraries take seconds to import
WITHOUT = [
    pytest.param(each, marks=[pytest.mark.proof] * (each in SLOW))
    for each in sorted(SAID.keys() - {"fleet"})
]


def run(example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The example in a Python that shows every warning, and finds this one's modules."""
    command = [sys.executable, "-W", "default", str(EXAMPLES / f"{example}.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=scaled_now(PATIENCE),
        env=environment,
        check=False,
    )


def check(done: subprocess.CompletedProcess[str], example: str) -> None:
    assert (done.stderr, done.returncode) == ("", 0)
    missing = [
        pattern for pattern in SAID[example] if not re.search(pattern, done.stdout, re.MULTILINE)
    ]
    assert missing == [], done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAID) | ELSEWHERE


@pytest.mark.parametrize("example", WITHOUT)
def test_the_example_runs_without_a_server(example: str) -> None:
    check(run(example), example)


@pytest.mark.parametrize("example", WITH_A_SERVER)
def test_the_example_runs_on_a_server(example: str, redis_url: str) -> None:
    check(run(example, redis_url), example)


def test_the_fleet_example_needs_a_server_url() -> None:
    done = run("fleet")
    assert done.returncode == 1
    assert "redis://localhost:6379" in done.stderr


@pytest.mark.proof
@pytest.mark.parametrize("example", WITH_A_SERVER)
def test_a_missing_server_is_reported_in_one_sentence(example: str) -> None:
    done = run(example, "redis://:canary@127.0.0.1:1")
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "canary" not in done.stdout + done.stderr
