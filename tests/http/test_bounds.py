"""No answer of a service holds callers for longer than the user allows, or lets them call more."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from headgate import Limiter, Quota, Rate, Window
from headgate.http import adoption, backoff, feedback, redirects
from headgate.http.adoption import scale
from headgate.http.feedback import HEED_AT_MOST, Feedback, FeedbackOptions
from headgate.http.rate_limit_headers import Answer, Budget, read
from headgate.http.redirects import Departure, depart
from headgate.internals import queue_of
from headgate.log_writer import flush
from headgate.permit import Permit
from headgate.stores.memory.store import MemoryStore
from tests.http.clients import LIMITS
from tests.http.sdks import LIMITS as SDKS
from tests.http.service import Service
from tests.virtual import VirtualClock
from tests.world import LONG, soon

Clients = Callable[..., Any]
Headers = Mapping[str, str]
FOR_EVER = {"Retry-After": "99999999"}


class Client:
    """A limiter and a limited client of it, in virtual time."""

    def __init__(
        self,
        clock: VirtualClock,
        name: str,
        *limits: Any,
        other: Limiter | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock
        store = MemoryStore(clock)
        self.limiter = Limiter(name, *limits, store=store) if other is None else other
        self.reader = FeedbackOptions(**options).make_feedback("limit") or Feedback()

    def leave(self, host: str = "host") -> tuple[Permit, Departure]:
        """A call leaves, which the limits must allow now."""
        permit = self.limiter.try_acquire()
        assert isinstance(permit, Permit)
        return permit, depart(host)

    def hear(self, call: tuple[Permit, Departure], status: int, headers: Headers) -> None:
        permit, departure = call
        self.reader.apply([(self.limiter, permit)], departure, status, headers)

    def get(self, status: int, headers: Headers) -> None:
        """A call that is answered at once."""
        self.hear(self.leave(), status, headers)

    @property
    def held(self) -> float:
        """For how many seconds no new call leaves."""
        return self.limiter.status().retry_after or 0.0

    @property
    def program(self) -> str:
        return queue_of(self.limiter).declared.program


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    clock = VirtualClock()
    for module in (adoption, backoff, feedback, redirects):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now() / 1_000_000)
    return clock


async def paused(limiter: Limiter) -> float:
    """For how long the limiter is paused, after all that this process has sent."""
    await limiter.aflush()
    return (await limiter.astatus()).paused


# Pauses ----------------------------------------------------------------------------------------


async def test_a_pause_of_any_length_ends_after_heed_at_most(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """A1, T3, F60. The next call leaves then. Its refusal begins a pause of the same length."""
    limiter = Limiter(name, "1000/hour", store=store)
    client = clients(limiter, heed_at_most=0.3)
    service.answers = [(429, FOR_EVER)] * 2

    start = time.monotonic()
    for _ in range(2):
        assert await soon(client.get(f"{service.url}/says")) == 429
        assert await paused(limiter) <= 0.3
    assert await soon(client.get(f"{service.url}/says")) == 200

    assert time.monotonic() - start >= 0.5
    await limiter.aflush()


def test_refusals_of_calls_that_left_before_a_pause_do_not_renew_it(
    clock: VirtualClock, name: str
) -> None:
    """A1, F60: all of them left before the pause, so it ends `heed_at_most` after the last.

    A call that leaves after the pause may begin another one.
    """
    client = Client(clock, name, "100/minute", heed_at_most=60)
    calls = [client.leave() for _ in range(5)]

    for call in calls:
        client.hear(call, 429, FOR_EVER)
        assert client.held <= 60 - 10 * calls.index(call)
        clock.advance(10)
    clock.advance(10)

    assert client.held == 0
    client.get(429, FOR_EVER)
    assert client.held == 60


def test_a_call_that_took_longer_than_heed_at_most_pauses_nothing(
    clock: VirtualClock, name: str
) -> None:
    client = Client(clock, name, "100/minute", heed_at_most=5)
    call = client.leave()
    clock.advance(6)

    client.hear(call, 429, FOR_EVER)

    assert client.held == 0


# Drains ----------------------------------------------------------------------------------------


async def test_callers_wait_until_the_reset_and_no_longer(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """A1, F60: a limit of a day, whose service says that more may be used in a moment."""
    limiter = Limiter(name, "100/day", store=store)
    client = clients(limiter)
    service.answers = [(200, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "0.3"})]

    start = time.monotonic()
    assert await soon(client.get(f"{service.url}/says")) == 200
    assert await soon(client.get(f"{service.url}/says")) == 200

    assert 0.3 <= time.monotonic() - start < LONG
    await limiter.aflush()
    assert (await limiter.astatus()).limits[0].left == 98


@pytest.mark.parametrize(
    ("limit", "reset", "held"),
    [
        (Window(100, per=60), 10, 10),
        (Window(100, per=60), 50, 60),  # not well below the period: the limit is drained
        (Window(100, per=60), None, 60),
        (Window(100, per=60), 86_400, 60),
        (Window(100, per=86_400), 1, 1),
        (Window(100, per=86_400), 86_400, HEED_AT_MOST),
        (Window(100, per=86_400), None, HEED_AT_MOST),
        (Rate(100, per=86_400), 1, 1),
        (Quota(100, per=86_400), 1, 1),
    ],
)
def test_a_used_up_budget_holds_until_its_reset(
    clock: VirtualClock, name: str, limit: Any, reset: int | None, held: float
) -> None:
    """A1, F60."""
    client = Client(clock, name, limit)
    headers = {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "0"}
    if reset is not None:
        headers["x-ratelimit-reset"] = str(reset)

    client.get(200, headers)

    assert client.held == pytest.approx(held, abs=0.001)


def test_a_budget_that_fills_up_gradually_holds_until_its_next_unit(
    clock: VirtualClock, name: str
) -> None:
    """OpenAI's reset is the time until all of it is back."""
    client = Client(clock, name, "100/minute")

    client.get(
        200,
        {
            "x-ratelimit-limit-requests": "100",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "60s",
        },
    )

    assert client.held == pytest.approx(0.6, abs=0.001)


@pytest.mark.parametrize("limit", [Window(3, per=60), Rate(3, per=60), Quota(3, per=3600)])
def test_a_budget_that_resets_soon_gives_no_tokens_back(
    clock: VirtualClock, name: str, limit: Any
) -> None:
    """A2, T1: after the reset, the limit counts all calls as before."""
    client = Client(clock, name, limit)
    for left in (9, 0):
        client.get(200, {"x-ratelimit-remaining": str(left), "x-ratelimit-reset": "1"})
    clock.advance(1)

    client.get(200, {"x-ratelimit-remaining": "9", "x-ratelimit-reset": "1"})

    assert client.limiter.status().limits[0].left == 0


def test_the_time_that_a_refusal_states_comes_before_the_reset_of_its_budget(
    clock: VirtualClock, name: str
) -> None:
    """RFC 9110 and the drafts for RateLimit."""
    client = Client(clock, name, "100/day")

    client.get(429, {"Retry-After": "2", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "900"})

    assert client.held == 2


# Refusals without a time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (429, {}),
        (503, {}),
        (429, {"Retry-After": "0"}),
        (429, {"Retry-After": "1, 2"}),
        (429, {"Retry-After": "-5", "RateLimit": '"a";r=', "x-ratelimit-reset": "1e400"}),
    ],
)
def test_a_refusal_without_a_time_backs_off(
    clock: VirtualClock, name: str, status: int, headers: Headers
) -> None:
    client = Client(clock, name, "1000/hour")
    client.get(status, headers)
    assert 0.375 <= client.held <= 0.5


async def test_a_back_off_is_kept_in_the_store(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """So it holds the whole fleet."""
    limiter = Limiter(name, "1000/hour", store=store)
    service.answers = [(429, {})]

    start = time.monotonic()
    client = clients(limiter)
    assert await soon(client.get(f"{service.url}/says")) == 429
    assert await soon(client.get(f"{service.url}/says")) == 200

    assert time.monotonic() - start >= 0.375
    await limiter.aflush()


def test_the_back_off_doubles_up_to_half_a_minute_and_ends_with_a_success(
    clock: VirtualClock, name: str
) -> None:
    """A failure of the service, such as 500, is no success, and ends nothing."""
    client = Client(clock, name, "1000/minute")
    for wait in (0.5, 1, 2, 4, 8, 16, 30, 30):
        client.get(429, {})
        assert 0.75 * wait <= client.held <= wait
        clock.advance(wait)
        client.get(500, {})

    client.get(200, {})
    client.get(429, {})

    assert client.held <= 0.5


def test_calls_that_were_refused_together_back_off_once(clock: VirtualClock, name: str) -> None:
    """And a success among them does not end it: that call left before the refusal."""
    client = Client(clock, name, "1000/minute")
    calls = [client.leave() for _ in range(20)]
    for call in calls[1:]:
        client.hear(call, 429, {})
        clock.advance(0.001)
    assert client.held <= 0.5
    client.hear(calls[0], 200, {})
    clock.advance(1)

    client.get(429, {})

    assert 0.75 <= client.held <= 1


def test_a_back_off_is_bounded_by_heed_at_most(clock: VirtualClock, name: str) -> None:
    """A1, F60."""
    client = Client(clock, name, "1000/minute", heed_at_most=3)
    for _ in range(20):
        client.get(503, {})
        assert 0 < client.held <= 3
        clock.advance(3)


def test_the_back_off_of_many_keys_takes_bounded_memory() -> None:
    counted = backoff.Backoff()

    for number in range(backoff.MOST_NAMES * 3):
        assert counted.refuse(str(number), time.monotonic()) > 0

    assert len(counted._refused) <= backoff.MOST_NAMES


# Limits that are adopted -----------------------------------------------------------------------


async def test_a_limit_of_nine_years_is_not_adopted(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """A1, F60."""
    limiter = Limiter(name, "100/second", store=store)
    client = clients(limiter, adopt=True)
    service.answers = [(200, {"RateLimit-Policy": '"a";q=1;w=300000000'})]

    for _ in range(3):
        assert await soon(client.get(f"{service.url}/says")) == 200

    assert queue_of(limiter).declared.program == "window requests 100 1000000"
    await limiter.aflush()


MINUTE = "window requests 100 60000000"


@pytest.mark.parametrize(
    ("status", "headers", "program"),
    [
        # Groq's limit of a day, and GitHub's of an hour.
        (200, {"RateLimit-Policy": '"a";q=14400;w=86400'}, MINUTE),
        (
            200,
            {"RateLimit-Policy": '"a";q=5000;w=3600'},
            f"{MINUTE};window requests 5000 3600000000",
        ),
        (
            200,
            {"x-ratelimit-limit": "50", "x-ratelimit-reset": "1800"},
            f"{MINUTE};window requests 50 3600000000",
        ),
        (
            200,
            {"x-ratelimit-limit": "50", "x-ratelimit-reset": "40"},
            "window requests 50 60000000",
        ),
        (200, {"x-ratelimit-limit": "50"}, "window requests 50 60000000"),
        # It may be of a second, or the end of a minute.
        (200, {"x-ratelimit-limit": "50", "x-ratelimit-reset": "1"}, MINUTE),
        # A bucket that is full again in a minute.
        (
            200,
            {
                "x-ratelimit-limit-requests": "50",
                "x-ratelimit-remaining-requests": "49",
                "x-ratelimit-reset-requests": "1.2s",
            },
            "window requests 50 60000000",
        ),
        # Years.
        (200, {"x-ratelimit-limit": "50", "x-ratelimit-reset": "90000000"}, MINUTE),
        (200, {"x-ratelimit-limit": "999999999999999"}, MINUTE),
        (200, {"x-ratelimit-limit": "0"}, MINUTE),
        (404, {"x-ratelimit-limit": "50"}, MINUTE),
        (503, {"x-ratelimit-limit": "50"}, MINUTE),
        (429, {"x-ratelimit-limit": "50"}, "window requests 50 60000000"),
    ],
)
def test_adopt_true_only_lowers_and_knows_the_period(
    clock: VirtualClock, name: str, status: int, headers: Headers, program: str
) -> None:
    """A2, F60: beside a limit with another period, the declared one stays in force."""
    client = Client(clock, name, "100/minute", adopt=True)

    client.get(status, headers)

    assert client.program == program


@pytest.mark.parametrize(
    ("stated", "program"),
    [
        ('"a";q=1;w=60', "window requests 10 60000000"),
        ('"a";q=150;w=60', "window requests 150 60000000"),
        ('"a";q=9999;w=60', "window requests 200 60000000"),
        ('"a";q=1;w=3600', "window requests 200 60000000;window requests 600 3600000000"),
        ('"a";q=9999;w=3600', "window requests 200 60000000;window requests 9999 3600000000"),
        ('"a";q=9999;w=86400', MINUTE),
    ],
)
def test_adopt_with_factors_clamps_the_limit_between_them(
    clock: VirtualClock, name: str, stated: str, program: str
) -> None:
    """A1, A2, F60."""
    client = Client(clock, name, "100/minute", adopt=(0.1, 2.0))

    client.get(200, {"RateLimit-Policy": stated})

    assert client.program == program


def test_a_limit_without_a_period_raises_nothing(clock: VirtualClock, name: str) -> None:
    """The service may count over a longer period."""
    client = Client(clock, name, "100/minute", adopt=(0.1, 2.0))

    client.get(200, {"x-ratelimit-limit": "150"})

    assert client.program == MINUTE


TEN = {"RateLimit-Policy": '"a";q=10;w=60'}


def test_an_adopted_limit_follows_the_next_statement(clock: VirtualClock, name: str) -> None:
    """A service that states as much as was declared, or more, brings the declared limit back."""
    client = Client(clock, name, "100/minute", adopt=True)

    programs = []
    for limit in (10, 20, 5, 5000):
        client.get(200, {"RateLimit-Policy": f'"a";q={limit};w=60'})
        programs.append(client.program)

    assert programs == [f"window requests {limit} 60000000" for limit in (10, 20, 5, 100)]


def test_an_adopted_limit_ends_when_the_service_states_none_for_heed_at_most(
    clock: VirtualClock, name: str
) -> None:
    """A1, F60."""
    client = Client(clock, name, "100/minute", adopt=True, heed_at_most=600)
    client.get(200, TEN)
    for _ in range(3):
        clock.advance(599)
        client.get(200, {})
        assert client.program == "window requests 10 60000000"
        client.get(200, TEN)

    clock.advance(600)
    client.get(404, {})
    assert client.program == "window requests 10 60000000"
    client.get(200, {})

    assert client.program == MINUTE


def test_the_adopted_limits_of_many_keys_take_bounded_memory(
    clock: VirtualClock, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are forgotten: they hold until the next statement."""
    monkeypatch.setattr(adoption, "MOST_NAMES", 3)
    adopted = adoption.Adoption((0.0, 1.0), HEED_AT_MOST)
    limiter = Limiter(name, "100/minute", store=MemoryStore(clock))

    for key in "abcabd":
        adopted.apply(limiter[key], 200, read(200, {"X-RateLimit-Limit": "50"}))

    assert [each.rpartition(":")[2] for each in adopted._adopted] == ["a", "b", "d"]


def test_an_adopted_limit_that_an_update_has_replaced_does_not_end(
    clock: VirtualClock, name: str
) -> None:
    """An update of the user comes after the service's statement, and stays."""
    client = Client(clock, name, "100/minute", adopt=True, heed_at_most=600)
    client.get(200, TEN)
    Limiter(name, "100/minute", store=client.limiter._store).update("50/minute")
    clock.advance(600)

    client.get(200, {})

    assert client.program == "window requests 50 60000000"


# Redirects and clocks --------------------------------------------------------------------------


async def test_an_answer_of_another_host_after_a_redirect_changes_nothing(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """F60. The same answer without a redirect pauses the limiter."""
    limiter = Limiter(name, "1000/hour", store=store)
    client = clients(limiter)
    elsewhere = service.url.replace("127.0.0.1", "localhost")
    busy = (503, {"Retry-After": "600"})
    service.answers = [
        (302, {"Location": f"{elsewhere}/says"}),
        (307, {"Location": "/says"}),
        busy,
        (302, {"Location": f"{elsewhere}/says"}),
        (302, {"Location": f"{service.url}/says"}),
        busy,
    ]

    assert await soon(client.get(f"{service.url}/says")) == 503
    assert await paused(limiter) == 0

    assert await soon(client.get(f"{service.url}/says")) == 503
    assert await paused(limiter) > 0


async def test_a_redirect_from_another_host_says_nothing_about_later_calls(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """A call that goes to that host by itself is heard. With a key for each host, all are."""
    limiter, keyed = (Limiter(f"{name}{n}", "1000/hour", store=store) for n in (1, 2))
    elsewhere = service.url.replace("127.0.0.1", "localhost")
    client, by_host = clients(limiter), clients(keyed, key="host")
    moved, busy = (302, {"Location": f"{elsewhere}/says"}), (503, {"Retry-After": "600"})

    service.answers = [moved, (200, {}), busy]
    assert await soon(client.get(f"{service.url}/says")) == 200
    assert await soon(client.get(f"{elsewhere}/says")) == 503
    assert await paused(limiter) > 0

    service.answers = [moved, busy]
    assert await soon(by_host.get(f"{service.url}/says")) == 503
    assert await paused(keyed["localhost"]) > 0
    assert await paused(keyed["127.0.0.1"]) == 0


def test_a_redirect_that_was_not_followed_concerns_its_target_alone(
    clock: VirtualClock, name: str
) -> None:
    client = Client(clock, name, "100/minute")
    client.get(302, {"Location": "//localhost/"})

    client.hear(client.leave("third"), 429, {"Retry-After": "60"})

    assert client.held == 60


async def test_a_clock_of_the_server_that_is_years_behind_prolongs_nothing(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """A1, F60. The moment of the reset is right, and the Date beside it is not."""
    limiter = Limiter(name, "100/day", store=store)
    reset = str(int(time.time()) + 600)
    service.answers = [
        (
            429,
            {
                "Date": "Mon, 01 Jan 2018 00:00:00 GMT",
                "x-ratelimit-remaining": "0",
                "x-ratelimit-reset": reset,
            },
        )
    ]

    assert await soon(clients(limiter).get(f"{service.url}/says")) == 429

    assert 0 < await paused(limiter) <= 600


# A hook on answers -----------------------------------------------------------------------------


def read_acme(status: int, headers: Any, body: bytes) -> Answer | None:
    if status == 420:
        return Answer("throttled", retry_after=float(headers["X-Wait"]))
    if b"busy" in body:
        return Answer("overloaded", retry_after=600.0)
    return None


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        ((420, {"X-Wait": "600"}), 600),
        ((400, {}, '{"state": "busy"}'), 600),
        ((429, {"Retry-After": "300"}), 300),
        ((420, {"X-Wait": "1e9"}), HEED_AT_MOST),
        ((420, {"X-Wait": "inf"}), HEED_AT_MOST),
        ((420, {"X-Wait": "nan"}), 0),
        ((420, {"X-Wait": "-5"}), 0),
        ((420, {}), 0),
    ],
)
async def test_a_hook_reads_the_answers_of_a_provider(
    clients: Clients, service: Service, kind: str, name: str, store: Any, answer: Any, held: float
) -> None:
    """None: headgate reads the answer by itself, also when the hook fails or returns nonsense.

    aiohttp has not read the body.
    """
    limiter = Limiter(name, "1000/hour", store=store)
    client = clients(limiter, on_answer=read_acme)
    service.answers = [answer]

    assert await soon(client.get(f"{service.url}/says")) == answer[0]

    expected = 0 if kind == "aiohttp" and len(answer) == 3 else held
    assert max(0, expected - LONG) <= await paused(limiter) <= expected


NONSENSE: list[Any] = [
    "fail",
    7,
    *(Answer("throttled", wait) for wait in cast("Any", [-1.0, "9", True, float("nan")])),
    *(Answer("throttled", 9, left) for left in cast("Any", [[7], 7])),
    *(
        Answer("throttled", 9, (Budget(**{field: value}),))
        for field in ("remaining", "limit")
        for value in cast("Any", ["3", 2.5, -1, 2**60, True])
    ),
    *(Answer("throttled", 9, (Budget(per=per),)) for per in cast("Any", ["60", -1])),
    Answer(cast("Any", "throtled"), 9),
    Answer("throttled", 9, scope=cast("Any", "all")),
]


@pytest.mark.parametrize("result", NONSENSE, ids=repr)
def test_a_hook_that_fails_is_logged_once_in_a_while_and_does_no_harm(
    clock: VirtualClock,
    name: str,
    caplog: pytest.LogCaptureFixture,
    result: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headgate.log_writer._logged", {})

    def hook(*answer: Any) -> Any:
        if result == "fail":
            raise LookupError("on purpose")
        return result

    client = Client(clock, name, "100/minute", on_answer=hook)
    with caplog.at_level(logging.WARNING, "headgate"):
        for call in [client.leave() for _ in range(3)]:
            client.hear(call, 429, {"Retry-After": "7"})
        assert flush()

    assert client.held == 7
    assert client.limiter.status().limits[0].used == 3
    [record] = [each for each in caplog.records if "on_answer" in each.message]
    assert record.exc_info is not None


def test_a_hook_can_add_to_the_reading_of_headgate(clock: VirtualClock, name: str) -> None:
    """It states a limit that headgate drains by."""

    def hook(status: int, headers: Any, body: bytes) -> Answer:
        return Answer("passed", None, (Budget(remaining=int(headers["x-left"])),))

    client = Client(clock, name, "100/minute", on_answer=hook)
    client.get(200, {"x-left": "12"})

    assert client.limiter.status().limits[0].left == 12
    assert read(200, {"x-left": "12"}) == Answer()


# Bad options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted({*LIMITS, *SDKS}))
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"heed_at_most": 0}, ValueError, "heed_at_most must be"),
        ({"heed_at_most": -1}, ValueError, "heed_at_most must be"),
        ({"heed_at_most": float("nan")}, ValueError, "heed_at_most must be finite"),
        ({"heed_at_most": float("inf")}, ValueError, "heed_at_most must be finite"),
        ({"heed_at_most": None}, TypeError, "heed_at_most must be an int or a float"),
        ({"heed_at_most": "60"}, TypeError, "feedback=False"),
        ({"adopt": 2}, TypeError, "two factors"),
        ({"adopt": (0.1,)}, TypeError, "two factors"),
        ({"adopt": (0.1, "2")}, TypeError, "two factors"),
        ({"adopt": (0.1, float("inf"))}, TypeError, "two factors"),
        ({"adopt": (-0.1, 2.0)}, ValueError, "from 0 to 1"),
        ({"adopt": (2.0, 0.1)}, ValueError, "from 0 to 1"),
        ({"adopt": True, "feedback": False}, ValueError, "leave feedback=False out"),
        ({"on_answer": read_acme, "feedback": False}, ValueError, "leave feedback=False out"),
        ({"on_answer": 7}, TypeError, "plain function"),
        ({"on_answer": asyncio.sleep}, TypeError, "plain function"),
        ({"feedback": "no"}, TypeError, "feedback must be a bool"),
    ],
)
def test_bad_options_are_an_error_before_any_call(
    name: str, kind: str, options: Any, error: type[Exception], words: str
) -> None:
    limit = {**LIMITS, **SDKS}[kind]

    with pytest.raises(error, match=words):
        limit(object(), Limiter(name, "100/minute"), **options)


# A thousand hostile answers --------------------------------------------------------------------


SAMPLES: list[dict[str, str]] = [
    {"Retry-After": "7"},
    {"retry-after-ms": "700"},
    {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "3", "x-ratelimit-reset": "20"},
    {
        "x-ratelimit-limit-requests": "50",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "6m0s",
    },
    {"RateLimit-Policy": '"a";q=10;w=60', "RateLimit": '"a";r=3;t=9'},
    {"RateLimit-Policy": '"a";q=10;w=1, "b";q=100;w=3600', "RateLimit": '"b";r=3;t=9'},
    {"ratelimit-limit": "100", "ratelimit-remaining": "0", "ratelimit-reset": "5"},
    {"x-ratelimit-remaining": "4", "Date": "Sat, 21 Nov 2026 18:30:00 GMT"},
]
NUMBERS = ["0", "1", "5", "10", "100", "3600", "86400", "99999999", "300000000", "999999999999999"]
JUNK = ["", "-1", "nan", "inf", "1e400", "\u0663", "1,2", "soon", "9" * 4000, "1_0", "1767225600"]
LIVES = 120  # of a client, with about a thousand answers in all
STATUSES = [200, 200, 200, 201, 302, 403, 404, 429, 429, 500, 503, 529]
DECLARED: list[list[Any]] = [
    [Window(5, per=1)],
    [Window(100, per=60)],
    [Window(100, per=86_400)],
    [Rate(10, per=60)],
    [Rate(100, per=3600, capacity=10)],
    [Quota(100, per=3600)],
    [Window(5, per=1), Quota(1000, per=86_400)],
]


def mutate(chance: random.Random) -> dict[str, str]:
    """Headers of a provider, with other numbers or nonsense in place of some values."""
    headers = dict(chance.choice(SAMPLES))
    for name, value in headers.items():
        if chance.random() < 0.5:
            digits = [index for index, character in enumerate(value) if character.isdigit()]
            at = chance.choice(digits)
            new = chance.choice(NUMBERS if chance.random() < 0.7 else JUNK)
            headers[name] = value[:at] + new + value[at + 1 :]
    return headers


@pytest.mark.parametrize("heed", [2.0, 60.0, 3600.0])
@pytest.mark.parametrize("adopt", [False, True, (0.1, 2.0)], ids=str)
def test_mutated_answers_neither_hold_nor_unleash_callers(
    clock: VirtualClock, name: str, heed: float, adopt: Any
) -> None:
    """A1, A2, T1, F60. Answers come late and out of order.

    `free` has the declared limits, hears no answer and makes the same calls. Where it may call, the
    client waits for `heed` seconds at most. `fastest` has the largest limits that the user allows:
    it may make each call that the client makes.
    """
    for seed in range(LIVES):
        chance = random.Random(seed)
        limits = chance.choice(DECLARED)
        client = Client(clock, f"{name}{seed}", *limits, heed_at_most=heed, adopt=adopt)
        high = adopt[1] if isinstance(adopt, tuple) else 1.0
        free, fastest = (
            Limiter(f"{name}{seed}", *those, store=MemoryStore(clock))
            for those in (limits, [scale(limit, high) for limit in limits])
        )
        calls, held_since = [], None
        for _ in range(chance.randrange(2, 20)):
            if client.held == 0:
                calls, held_since = [*calls, client.leave()], None
                assert fastest.try_acquire(), (seed, "faster than declared")
                free.try_acquire()
            if calls and chance.random() < 0.8:
                call = calls.pop(chance.randrange(len(calls)))
                client.hear(call, chance.choice(STATUSES), mutate(chance))
            if client.held == 0 or free.status().retry_after:
                held_since = None
            else:
                held_since = clock.now() if held_since is None else held_since
                longest = (clock.now() - held_since) / 1_000_000 + client.held
                assert longest <= heed + 0.001, (seed, "held for too long")
            clock.advance(chance.choice([0, 0.01, 0.5, min(client.held, 1e6), heed / 3]))
