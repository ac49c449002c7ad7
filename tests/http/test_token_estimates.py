"""Estimates of calls: learned from calls, forgotten in time, with their errors in the open."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import pytest

from headgate.errors import StoreError
from headgate.http import token_estimates
from headgate.http.token_estimates import FIRST_OUTPUT, Estimates, Known
from headgate.stores.redis import texts
from headgate.stores.redis.texts import RedisTexts
from headgate.stores.redis.transport.questions import replies_to
from headgate.stores.registry import store_of
from tests.machine import scaled
from tests.servers import Server


def wait_until(met: Callable[[], object]) -> None:
    end = monotonic() + scaled(5.0)
    while not met():
        assert monotonic() < end
        sleep(0.001)


def test_the_first_estimate_is_a_rule_of_thumb() -> None:
    estimates = Estimates()

    assert estimates.input("m", 4000) == 1000
    assert estimates.input("m", 0) == 1
    assert estimates.output("m") == FIRST_OUTPUT
    assert repr(estimates) == "<Estimates of no model yet>"


def test_an_output_estimate_is_at_most_the_limit_of_the_call() -> None:
    estimates = Estimates()
    assert estimates.output("m", 100) == 100
    for _ in range(10):
        estimates.learn_output("m", 100, 30)

    assert estimates.output("m", 4096) == 30
    assert estimates.output("m", 20) == 20


def test_the_ratio_of_input_is_learned_within_a_few_calls() -> None:
    """With three characters to a token, the estimate is right to a tenth after 16 calls."""
    estimates = Estimates()
    for _ in range(16):
        estimates.learn_input("m", 3000, estimates.input("m", 3000), 1000)

    assert estimates.input("m", 3000) == pytest.approx(1000, rel=0.1)
    assert estimates.input("another", 3000) == 750


def test_nine_of_ten_answers_take_no_more_than_their_estimate() -> None:
    """The lengths are random and differ a hundredfold; about a tenth takes more."""
    estimates, chance = Estimates(), random.Random(1)
    more = 0
    for _ in range(2000):
        used, estimated = round(chance.lognormvariate(5, 1)), estimates.output("m")
        estimates.learn_output("m", estimated, used)
        more += used > estimated

    assert 0.06 < more / 2000 < 0.14


def test_old_calls_are_forgotten() -> None:
    estimates = Estimates()
    for used in [5000] * 100 + [10] * 64:
        estimates.learn_output("m", 0, used)

    assert estimates.output("m") == 10


def test_errors_are_reported_as_shares_of_the_used_tokens() -> None:
    """Estimates of 100 for 80 and for 120 are a fifth off, and one of two was exceeded."""
    estimates = Estimates()
    for used in (80, 120):
        estimates.learn_input("m", 400, 100, used)
        estimates.learn_output("m", 100, used)

    (learned,) = estimates.status()
    assert (learned.model, learned.calls, learned.output) == ("m", 2, 120)
    assert (learned.input_error, learned.output_error, learned.exceeded) == (0.2, 0.2, 0.5)
    assert (
        str(learned) == "m: 2 calls, input 0.25 tokens a character (20% off), "
        "output 120 tokens (20% off, 50% took more)"
    )


def test_a_model_without_outputs_has_no_output_error() -> None:
    estimates = Estimates()
    estimates.learn_input("m", 400, 100, 100)

    assert repr(estimates).endswith(
        "m: 1 call, input 0.25 tokens a character (0% off), output 512 tokens (- off, - took more)>"
    )
    assert estimates.status()[0].exceeded is None


def test_a_finalizer_may_learn() -> None:
    """The collector runs it in the middle of an estimate, and nothing is locked."""
    estimates = Estimates()

    class Late:
        def __del__(self) -> None:
            estimates.learn_output("m", 1, 1)

    for _ in range(100):
        late = Late()
        late.itself = late  # type: ignore[attr-defined]
        del late
        estimates.learn_output("m", 1, 1)
        assert estimates.output("m") == 1
    gc.collect()


def test_attachments_are_learned_by_kind() -> None:
    """A call of two kinds divides its tokens between them, in proportion to their estimates."""
    estimates = Estimates()
    for used in (700, 700, 700):
        estimates.learn_input("m", 0, 0, 2 * used, {"picture": 2})

    estimates.learn_input("m", 0, 0, 7400, {"picture": 1, "file": 1})

    (learned,) = estimates.status()
    assert learned.attachments == {"picture": 1400, "file": 6000}
    assert estimates.input("m", 0, {"sound": 1}) == 500
    assert "0.25 tokens a character, a picture 1400, a file 6000 (" in str(learned)


def test_a_call_with_hidden_context_teaches_no_ratio() -> None:
    """No text has a hundred tokens a character. A script of three is learned."""
    estimates = Estimates()
    for _ in range(100):
        estimates.learn_input("m", 10, 3, 1000)
        estimates.learn_input("script", 100, 25, 300)

    assert estimates.input("m", 4000) == 1000
    assert estimates.input("script", 4000) == pytest.approx(12_000, rel=0.01)


def test_the_rule_of_thumb_is_forgotten_whatever_the_length_of_the_texts() -> None:
    estimates = Estimates()
    for _ in range(100):
        estimates.learn_input("m", 15, estimates.input("m", 15), 3)

    assert estimates.status()[0].tokens_per_character == pytest.approx(0.2, rel=0.02)


def test_a_few_words_do_not_replace_what_long_texts_have_taught() -> None:
    """Messages of a word or two are mostly the marks between messages."""
    estimates = Estimates()
    for _ in range(16):
        estimates.learn_input("m", 3000, 750, 1000)
    for _ in range(32):
        estimates.learn_input("m", 10, 3, 15)

    assert estimates.input("m", 3000) == pytest.approx(1000, rel=0.1)


def test_attachments_of_no_tokens_are_learned() -> None:
    estimates = Estimates()
    for _ in range(3):
        estimates.learn_input("m", 4000, 1000, 100, {"picture": 3, "file": 1})

    assert estimates.status()[0].attachments == {"picture": 0, "file": 0}
    estimates.learn_input("m", 0, 0, 400, {"picture": 3, "file": 1})
    assert estimates.status()[0].attachments == {"picture": 100, "file": 100}


# Shared -------------------------------------------------------------------------------------------


def test_processes_share_their_estimates_through_the_store(
    redis_url: str, redis_server: Server, name: str
) -> None:
    """Another object stands for another process: it shares nothing else with the first."""
    first, second = Estimates(store=redis_url), Estimates(store=redis_url)
    first.learn_input(name, 4000, 1000, 3000)
    wait_until(lambda: redis_server.admin.exists(f"headgate:{{/estimates}}:{name}"))

    wait_until(lambda: second.input(name, 4000) > 2000)

    assert second.input(name, 4000) == first.input(name, 4000)


def test_a_text_has_a_key_that_expires(redis_url: str, redis_server: Server, name: str) -> None:
    estimates = Estimates(store=redis_url)
    estimates.learn_output(name, 512, 30)

    key, admin = f"headgate:{{/estimates}}:{name}", redis_server.admin
    wait_until(lambda: admin.exists(key))
    wait_until(lambda: admin.pttl(key) != -1)  # it is set by the next command

    assert 0 < admin.pttl(key) <= 86_400_000
    admin.delete(key)


@pytest.mark.parametrize("fails", [False, True])
def test_a_slow_write_of_an_older_text_does_not_replace_the_newer(
    redis_url: str, redis_server: Server, name: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the first write is slow, and may be lost."""
    written: list[str] = []
    begun: list[str] = []

    async def reply(topology: Any, kind: str, questions: Any) -> list[Any]:
        is_first = not written
        written.append(questions[0][1][-1])
        if is_first:
            await asyncio.to_thread(wait_until, lambda: len(begun) == 3)
            if fails:
                raise StoreError("the connection was lost")
        return await replies_to(topology, kind, questions)

    class Noted(dict[Any, str]):
        def __setitem__(self, key: Any, text: str) -> None:
            super().__setitem__(key, text)
            begun.append(text)

    monkeypatch.setattr(texts, "replies_to", reply)
    store = RedisTexts(store_of(redis_url).topology)  # type: ignore[attr-defined]
    store._unwritten = Noted()
    for text in ("1", "2", "3"):
        store.write_later("words", name, text)
    wait_until(lambda: written and not store._tasks)

    key, admin = f"headgate:{{/words}}:{name}", redis_server.admin
    assert admin.hget(key, "text") == "3"
    assert written == ["1", "3"]
    store.write_later("words", name, "4")
    wait_until(lambda: admin.hget(key, "text") == "4")
    admin.delete(key)


def test_a_process_writes_a_model_once_a_minute(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(token_estimates, "monotonic", lambda: now)
    estimates = Estimates(store=redis_url)
    written: list[str] = []
    monkeypatch.setattr(
        type(estimates._texts), "write_later", lambda self, kind, model, text: written.append(model)
    )

    for step in (0, 1, 58, 2):
        now += step
        estimates.learn_output(name, 512, 30)

    assert written == [name, name]


def test_an_unknown_model_is_read_once_a_minute(
    redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first call of a model, the process goes by what it has learned."""
    now = 1000.0
    monkeypatch.setattr(token_estimates, "monotonic", lambda: now)
    estimates = Estimates(store=redis_url)
    read: list[str] = []
    monkeypatch.setattr(
        type(estimates._texts), "read_later", lambda self, kind, model, on_text: read.append(model)
    )

    for step in (0, 1, 58, 2):
        now += step
        estimates.output(name)
    assert read == [name, name]

    estimates.learn_output(name, 512, 30)
    now += 100
    assert (estimates.output(name), read) == (30, [name, name])


def test_own_knowledge_is_not_replaced() -> None:
    estimates = Estimates()
    estimates.learn_input("m", 4000, 1000, 1000)

    estimates._adopt("m", token_estimates.write(Known(calls=3)))

    assert estimates.status()[0].calls == 1


def test_a_store_that_is_away_breaks_no_call() -> None:
    """And in memory there is nothing to share."""
    for store in ("redis://127.0.0.1:1", "memory://", None):
        estimates = Estimates(store=store)
        estimates.learn_input("m", 4000, 1000, 1000)
        assert estimates.input("m", 4000) == 1000


def test_knowledge_is_read_as_it_was_written() -> None:
    estimates = Estimates()
    estimates.learn_input("m", 4000, 1000, 1234)
    estimates.learn_input("m", 4000, 1000, 2234, {"picture": 1, "context": 2})
    estimates.learn_output("m", 512, 30)
    known = estimates._known["m"]

    found = token_estimates.parse(token_estimates.write(known))

    assert found is not None
    assert found._replace(attached={}) == known._replace(attached={})
    assert found.attached == {
        kind: tuple(round(size) for size in sizes) for kind, sizes in known.attached.items()
    }


KNOWN = json.loads(token_estimates.write(Known()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "{}",
        *(
            json.dumps({**KNOWN, word: value})
            for word, value in [
                ("calls", -1e400),
                ("characters", "3"),
                ("tokens", None),
                ("inputs", [[1]]),
                ("inputs", [[1, -2]]),
                ("outputs", 3),
                ("outputs", [[1, 2**60]]),
                ("attached", []),
                ("attached", {"picture": [1.5]}),
                ("attached", {"picture": 3}),
            ]
        ),
    ],
)
def test_a_text_of_another_kind_is_ignored(text: str) -> None:
    assert token_estimates.parse(text) is None


def test_a_long_text_is_cut() -> None:
    """And kinds that this version does not know are left out."""
    text = json.dumps({**KNOWN, "outputs": [[1, 2]] * 1000, "attached": {"hologram": [1]}})

    found = token_estimates.parse(text)

    assert found is not None
    assert (len(found.outputs), found.attached) == (token_estimates.RECENT, {})
