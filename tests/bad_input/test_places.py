"""The place of the state: a text that names no store is refused at once, and a missing server is a
StoreError in time.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
import valkey.asyncio
from redis.exceptions import ResponseError

from headgate import Concurrency, HeadgateError, Limiter, Semaphore, StoreError, TokenBucket
from headgate.internals import queue_of, store_of
from headgate.stores.redis.transport.failures import failure_text
from tests.bad_input.values import CANARY, INF, Hostile, Listener, assert_sentence, shown
from tests.machine import scaled
from tests.processes import finished
from tests.servers import Server, as_user

NO_SCHEME = [
    "",
    " ",
    "localhost",
    "localhost:6379",
    "memory",
    "redis",
    "redis:",
    "redis:/localhost",
    f"user:{CANARY}@localhost:6379",
    f"redis:user:{CANARY}@h",
]
NO_STORE = [
    *[
        "http://localhost",
        "redis+sentinels://h:26379/mymaster",
        "unix+cluster://h",
        "valkey://localhost",
        "REDIS://localhost",
        "memory://x",
        "sqlite:///x",
    ],
    *[
        "://localhost",
        f"http://user:{CANARY}@h",
        f"{CANARY}@redis://localhost",
        f" redis://:{CANARY}@localhost",
        f"tcp://:{CANARY}@h",
        f"redsi://h/0?password={CANARY[:3]}@{CANARY[3:]}",
    ],
    *[f"redsi://user:{CANARY[:3]}{special}{CANARY[3:]}@localhost:6379/0" for special in "/?#["],
]
NO_URL = [
    *[
        "redis://localhost:port",
        "redis://localhost:99999",
        "redis://localhost:-1",
        "redis://localhost:0",
        "redis://[::1",
        "redis://h/db",
        "redis://h/1.5",
    ],
    *[
        "redis://h?db=x",
        "redis://h?socket_connect_timeout=soon",
        "redis://h?socket_connect_timeout=nan",
        "redis://h?socket_connect_timeout=-1",
    ],
    *[
        "redis://h?socket_connect_timeout=0",
        "redis://h?socket_connect_timeout=inf",
        "rediss://h?ssl_cert_reqs=perhaps",
    ],
    *["unix://", f"unix://user:{CANARY}@"],
    # A password that was not encoded: each of these characters ends it early, or begins something
    # else.
    *[f"redis://user:{CANARY[:3]}{special}{CANARY[3:]}@localhost:6379/0" for special in "/?#["],
    *[
        f"redis://default:12345{special}{CANARY}@localhost:6379/0" for special in "?#"
    ],  # the text before it could be a port
    *[
        f"redis://:{CANARY}@localhost:{CANARY}",
        f"redis://:{CANARY}@localhost:99999/0",
        f"redis://:{CANARY}@localhost/{CANARY}",
    ],
]
UNKNOWN = [
    (
        "redis://h?socket_connect_timout=1",
        "'socket_connect_timout'",
        "did you mean 'socket_connect_timeout'?",
    ),
    ("redis://h?db=1&tls=true", "'tls'", "it knows client_name, db, "),
    ("redis://h?ssl_ca_certs=ca.crt", "'ssl_ca_certs'", "begin the URL with rediss"),
    ("rediss://h?ssl_ca_cert=ca.crt", "'ssl_ca_cert'", "did you mean 'ssl_ca_certs'?"),
    ("unix:///run/redis.sock?dbb=1", "'dbb'", "did you mean 'db'?"),
    (
        "redis+sentinel://h/mymaster?sentinel_pasword=x",
        "'sentinel_pasword'",
        "did you mean 'sentinel_password'?",
    ),
    ("redis+sentinel://h/mymaster?pasword=x", "'pasword'", "did you mean 'password'?"),
    ("redis+cluster://h?nodes=3", "'nodes'", "it knows client_name, "),
    ("redis+cluster://h?sentinel_password=x", "'sentinel_password'", "did you mean 'password'?"),
    (f"redis://h?{'x' * 300}=1", "'xxxx", "it knows "),
]
NO_FLEET = [
    "redis+sentinel://h:26379",
    "redis+sentinel://h:26379/",
    "redis+sentinel:///mymaster",
    "redis+sentinel://h,,i/mymaster",
    "redis+sentinel://h:0/mymaster",
    "redis+sentinel://h:port/mymaster",
    "redis+sentinel://h/mymaster/db",
    "rediss+sentinel://h/mymaster?ssl_cert_reqs=perhaps",
    "redis+cluster://",
    "redis+cluster://h/1",
    "redis+cluster://h?db=1",
    "redis+cluster://h, i",
    "redis+cluster://h,i:0",
    "redis+cluster://h?socket_connect_timeout=nan",
    *[f"redis+cluster://user:12345{special}{CANARY}@h:6379" for special in "?#"],
    *[f"redis+cluster://user:{CANARY[:3]}{special}{CANARY[3:]}@h:6379" for special in "/?#["],
    *[
        f"redis+sentinel://user:{CANARY[:3]}{special}{CANARY[3:]}@h:6379/mymaster"
        for special in "/?#["
    ],
]
NO_CLIENT = [
    5,
    1.5,
    True,
    INF,
    b"redis://localhost",
    ["redis://localhost"],
    {"url": "redis://localhost"},
    object(),
    Hostile(),
    pytest.param(Mock(), id="Mock"),  # its repr ends with a number of its own
]

Visit = Callable[[str], Any]


def made(store: Any) -> list[Callable[[], object]]:
    """Every class that takes the place of its state."""
    return [
        lambda: Limiter("x", "5/second", store=store),
        lambda: Semaphore("x", 1, store=store),
        lambda: TokenBucket("x", 1, 1, 1, store=store),
        *(
            [
                lambda: Semaphore("x", 1, redis_url=store),
                lambda: TokenBucket("x", 1, 1, 1, redis_url=store),
            ]
        ),
    ]


@pytest.mark.parametrize(("url", "parameter", "way"), UNKNOWN, ids=lambda said: said[:60])
def test_a_parameter_that_is_not_known_is_refused(url: str, parameter: str, way: str) -> None:
    """It would be dropped without a word: one that was misspelled, or that other clients read."""
    for make in made(url):
        with pytest.raises(ValueError, match="which headgate does not know") as caught:
            make()
        assert_sentence(caught.value, parameter, way)


@pytest.mark.parametrize(
    "words",
    [
        "db=3",
        "client_name=x",
        "socket_timeout=3&socket_keepalive=yes&health_check_interval=30",
        "max_connections=5&protocol=3",
    ],
)
def test_url_parameters_of_redis_py_are_accepted(words: str) -> None:
    """One URL serves all clients of a program; a setting of their pools has no meaning here."""
    for each in ("redis://h", "rediss://h", "redis+sentinel://h/mymaster"):
        Limiter("x", "5/second", store=f"{each}?{words}")


def secrets_in(error: BaseException) -> list[str]:
    """Where the password can be seen: in the error, its notes, or any error that it came from."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is not None and each not in seen:
            seen.append(each)
            todo += [each.__cause__, each.__context__]
    said = [f"{each!r} {each} {getattr(each, '__notes__', '')}" for each in seen]
    return [text for text in said if any(part in text for part in (CANARY, CANARY[:3], CANARY[3:]))]


# Places that name no store ------------------------------------------------------------------------


@pytest.mark.parametrize("where", [*NO_SCHEME, *NO_STORE])
def test_an_unknown_scheme_is_refused_with_those_that_are_known(where: str) -> None:
    for make in made(where):
        with pytest.raises(ValueError, match="memory://") as caught:
            make()
        assert_sentence(caught.value, "store=", "redis://", "rediss://", "unix://")
        assert secrets_in(caught.value) == []


def test_a_mistyped_url_is_shown() -> None:
    with pytest.raises(ValueError, match=r"store='redis:/localhost' names no store"):
        Limiter("x", "5/second", store="redis:/localhost")


@pytest.mark.parametrize("where", NO_URL)
def test_a_malformed_url_is_refused_before_any_server_is_asked(where: str) -> None:
    """The error does not show the wrong part: it may be half of a password."""
    for make in made(where):
        with pytest.raises(ValueError, match="store=") as caught:
            make()
        assert not isinstance(caught.value, HeadgateError)
        assert_sentence(caught.value, "URL", "redis://user:password@host:6379/0", "percent")
        assert secrets_in(caught.value) == []


@pytest.mark.parametrize("where", NO_FLEET)
def test_a_malformed_url_of_sentinels_or_a_cluster_is_refused_as_well(where: str) -> None:
    form = where.partition("+")[2].partition(":")[0]
    for make in made(where):
        with pytest.raises(ValueError, match="store=") as caught:
            make()
        assert_sentence(caught.value, "URL", f"redis+{form}://user:password@host", "percent")
        assert secrets_in(caught.value) == []


@pytest.mark.parametrize("where", NO_CLIENT, ids=shown)
def test_a_store_that_is_neither_a_url_nor_a_client_is_refused(where: Any) -> None:
    for make in made(where):
        with pytest.raises(TypeError) as caught:
            make()
        assert_sentence(caught.value, "store=", type(where).__name__, "URL", "redis.asyncio.Redis")


class FakeConnection(redis.asyncio.Connection):
    """As fakeredis has it: a connection to no server."""

    __module__ = "fakeredis._clients._async"


class FakeRedis(redis.asyncio.Redis):
    """As fakeredis has it."""

    __module__ = "fakeredis._clients._async"


@pytest.mark.parametrize(
    "client",
    [
        FakeRedis(),
        redis.asyncio.Redis(
            connection_pool=redis.asyncio.ConnectionPool(connection_class=FakeConnection)
        ),
    ],
    ids=["client", "connection"],
)
def test_a_client_of_fakeredis_is_refused(client: redis.asyncio.Redis) -> None:
    """Its host is made up, so every acquire would say that it cannot be resolved."""
    for make in made(client):
        with pytest.raises(TypeError) as caught:
            make()
        assert_sentence(caught.value, "store=", "fakeredis", "ManualClock", "redis-server")


def test_a_client_of_replicas_is_refused() -> None:
    """Nothing can be written there."""
    sentinel = redis.Sentinel([("127.0.0.1", 1)]).slave_for("mymaster", password=CANARY)
    with pytest.raises(TypeError) as caught:
        Limiter("x", "5/second", store=sentinel)
    assert_sentence(caught.value, "store=", "replicas", "master_for")


def test_an_error_does_not_repeat_the_login_that_a_server_repeats() -> None:
    """A server that knows no AUTH repeats the words that it was sent."""
    said = failure_text(
        ResponseError(f"unknown command 'AUTH', with args beginning with: 'user' '{CANARY}'")
    )
    assert said == "unknown command 'AUTH'"


@pytest.mark.parametrize("library", [redis.asyncio.RedisCluster, valkey.asyncio.ValkeyCluster])
def test_a_cluster_whose_addresses_are_mapped_is_refused(
    library: Any, listener: Listener, nowhere: str
) -> None:
    """We would go where its servers say they are, and not where the user's client goes."""
    client = library(
        host="127.0.0.1",
        port=listener.port,
        password=CANARY,
        address_remap=lambda address: ("elsewhere", 1),
    )
    with pytest.raises(TypeError) as caught:
        Limiter("x", "5/second", store=client)
    assert_sentence(caught.value, "store=", "address_remap", "cluster-announce-ip")


@pytest.mark.parametrize("library", [redis.Sentinel, redis.asyncio.Sentinel])
def test_a_primary_whose_address_is_forced_is_refused(
    library: Any, listener: Listener, nowhere: str
) -> None:
    """The same for Sentinels."""
    sentinel = library([("127.0.0.1", listener.port)], force_master_ip="10.0.0.1", password=CANARY)
    with pytest.raises(TypeError) as caught:
        Limiter("x", "5/second", store=sentinel.master_for("mymaster"))
    assert_sentence(caught.value, "store=", "force_master_ip", "sentinel announce-ip")


def test_a_client_with_a_certificate_check_that_headgate_lacks_is_refused() -> None:
    client = redis.Redis(port=1, ssl=True, ssl_validate_ocsp=True, password=CANARY)
    with pytest.raises(TypeError) as caught:
        Limiter("x", "5/second", store=client)
    assert_sentence(caught.value, "store=", "ssl_validate_ocsp", "rediss://")


@pytest.mark.parametrize(
    "make",
    [
        lambda **place: Semaphore("x", 1, **place),
        lambda **place: TokenBucket("x", 1, 1, 1, **place),
    ],
)
def test_a_redis_url_and_a_store_together_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError) as caught:
        make(redis_url=f"redis://:{CANARY}@127.0.0.1:1/0", store="memory://")
    assert_sentence(caught.value, "redis_url", "store", "one of them")


@pytest.mark.parametrize(
    "make",
    [
        lambda url: Limiter("x", "5/second", url),
        lambda url: TokenBucket("x", 1, 1, 60, None, url),
        lambda url: Semaphore("x", 1, url),
        lambda url: Semaphore("x", 1, 60, url),
        lambda url: Limiter("x", "5/second").acquire(url),
        lambda url: Limiter("x", "5/second").acquire(max_sleep=url),
        lambda url: Limiter("x", "5/second")(url),
    ],
)
def test_a_url_in_the_wrong_argument_is_not_shown_in_the_error(make: Callable[[str], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make(f"redis://user:{CANARY}@localhost:6379/0")
    assert_sentence(caught.value)
    assert secrets_in(caught.value) == []


# redis is not installed ---------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["redis", "hiredis", "redis,hiredis"])
def test_without_redis_the_error_says_which_extra(missing: str) -> None:
    """And memory needs none of it."""
    urls = [f"redis://:{CANARY}@127.0.0.1:1/0", "rediss://127.0.0.1:1", "unix:///nowhere"]
    *refusals, in_memory, imported = finished("without", missing, *urls).splitlines()

    assert len(refusals) == 6
    for refusal in refusals:
        assert refusal.startswith("ImportError ")
        assert "pip install 'headgate[redis]'" in refusal
        assert CANARY not in refusal
    assert (in_memory, imported) == ("in memory True", "imported []")


# A server that is not there -----------------------------------------------------------------------


def by_status(url: str) -> object:
    return Limiter("x", "5/second", store=url).status()


def by_try(url: str) -> object:
    return Limiter("x", "5/second", store=url).try_acquire()


def by_thread(url: str) -> object:
    return Limiter("x", "5/second", store=url).acquire_sync()


def by_with(url: str) -> None:
    with Limiter("x", "5/second", Concurrency(2), store=url)["tenant-7"]:
        pass


def by_function(url: str) -> None:
    Limiter("x", "5/second", store=url)(lambda: None)()


def awaited(visit: Callable[[str], Any]) -> Visit:
    """In an event loop that tells of everything that goes wrong behind its back."""

    async def main(url: str) -> None:
        asyncio.get_running_loop().set_debug(True)
        await visit(url)

    return lambda url: asyncio.run(main(url))


async def entered(entrance: Any) -> None:
    async with entrance:
        pass


VISITS: dict[str, Visit] = {
    "async with": awaited(lambda url: entered(Limiter("x", "5/second", Concurrency(2), store=url))),
    "acquire": awaited(lambda url: Limiter("x", "5/second", store=url).acquire(max_sleep=60)),
    "atry_acquire": awaited(lambda url: Limiter("x", "5/second", store=url).atry_acquire()),
    "astatus": awaited(lambda url: Limiter("x", "5/second", store=url).astatus()),
    "Semaphore": awaited(lambda url: entered(Semaphore("x", 1, redis_url=url))),
    "TokenBucket": awaited(lambda url: entered(TokenBucket("x", 1, 1, 1, redis_url=url))),
    "a client": awaited(
        lambda url: entered(Limiter("x", "5/second", store=redis.Redis.from_url(url)))
    ),
    "an asyncio client": awaited(
        lambda url: entered(Limiter("x", "5/second", store=redis.asyncio.Redis.from_url(url)))
    ),
    "status": by_status,
    "try_acquire": by_try,
    "acquire_sync": by_thread,
    "with": by_with,
    "decorator": by_function,
}
TIMEOUT = 0.05
BUSY = scaled(2.0)  # a busy machine may add so much; five seconds is the default


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that answers nothing at all: its queue of connections is full, and accepts no more."""
    with ExitStack() as stack:
        hole = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        yield hole.getsockname()[1]


@pytest.fixture
def silence() -> Iterator[int]:
    """A port that accepts every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


def assert_raises_in_time(
    visit: Visit, url: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A StoreError in time, that says where and how to go on, and does not show the password."""
    with caplog.at_level("DEBUG"):
        began = time.monotonic()
        with pytest.raises(StoreError) as caught:
            visit(url)
        took = time.monotonic() - began

    assert took < TIMEOUT + BUSY
    assert_sentence(caught.value, place, "Check that it runs")
    assert secrets_in(caught.value) == []
    assert CANARY not in caplog.text
    assert [
        record.message for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")
    ] == []


@pytest.mark.parametrize("visit", VISITS)
def test_a_refused_connection_raises_at_once(visit: str, caplog: pytest.LogCaptureFixture) -> None:
    assert_raises_in_time(
        VISITS[visit], f"redis://user:{CANARY}@127.0.0.1:1/0", "127.0.0.1:1/0", caplog
    )


@pytest.mark.parametrize("visit", VISITS)
def test_an_unreachable_server_raises_within_the_connect_timeout(
    visit: str, black_hole: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://user:{CANARY}@127.0.0.1:{black_hole}/2?socket_connect_timeout={TIMEOUT}"
    assert_raises_in_time(VISITS[visit], url, f"127.0.0.1:{black_hole}/2", caplog)


@pytest.mark.parametrize("visit", ["async with", "with", "an asyncio client", "a client"])
def test_a_silent_server_raises_within_the_connect_timeout(
    visit: str, silence: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Logging in is part of connecting: a port that accepts and never answers is no server."""
    url = f"redis://user:{CANARY}@127.0.0.1:{silence}/0?socket_connect_timeout={TIMEOUT}"
    assert_raises_in_time(VISITS[visit], url, f"127.0.0.1:{silence}/0", caplog)


class Parrot(Server):
    """It knows no AUTH, and repeats the words that it was sent."""

    def _words(self) -> list[str]:
        return [*super()._words(), "--rename-command", "AUTH", ""]


@pytest.fixture(scope="module")
def parrot() -> Iterator[Server]:
    server = Parrot().start()
    yield server
    server.stop()


@pytest.mark.parametrize("visit", ["async with", "with", "an asyncio client", "a client"])
def test_the_error_of_a_server_that_repeats_the_login_does_not_show_it(
    visit: str, parrot: Server, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"127.0.0.1:{parrot.port}/0"
    with redis.Redis(port=parrot.port) as client, pytest.raises(ResponseError, match=CANARY):
        client.execute_command("AUTH", CANARY)
    assert_raises_in_time(VISITS[visit], f"redis://user:{CANARY}@{place}", place, caplog)


def test_a_missing_socket_raises_at_once(caplog: pytest.LogCaptureFixture) -> None:
    assert_raises_in_time(
        VISITS["async with"],
        f"unix://user:{CANARY}@/nowhere/redis.sock?db=1",
        "/nowhere/redis.sock/1",
        caplog,
    )


def test_a_port_that_does_not_speak_tls_raises_in_time(
    silence: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Something listens and does not speak TLS: a wrong scheme, the commonest of mistakes."""
    url = f"rediss://user:{CANARY}@127.0.0.1:{silence}/0?socket_connect_timeout={TIMEOUT}"
    assert_raises_in_time(VISITS["async with"], url, f"127.0.0.1:{silence}/0", caplog)


def test_a_password_of_special_characters_is_percent_encoded(own_server: Server, name: str) -> None:
    """The refusal of such a URL advises this, and docs/redis.md too: with a password of all special
    characters the login succeeds.
    """
    password = "p/#?@:[]% &=+\\é" + CANARY
    with redis.Redis.from_url(own_server.url) as admin:
        admin.config_set("requirepass", password)

    limiter = Limiter(
        name, "5/second", store=own_server.url.replace("://", f"://:{quote(password, safe='')}@")
    )

    assert limiter.try_acquire()


def test_no_repr_shows_the_password(redis_url: str, name: str) -> None:
    """No printed object shows it, neither before nor after the server was asked."""
    url = as_user(redis_url, "nobody", CANARY)
    limiter, semaphore, bucket = (
        Limiter(name, "5/second", store=url),
        Semaphore(name, 1, redis_url=url),
        TokenBucket(name, 1, 1, 1, redis_url=url),
    )

    with pytest.raises(StoreError) as caught:
        limiter.status()  # this server has no such user

    assert secrets_in(caught.value) == []
    shows = [
        limiter,
        limiter["tenant-7"],
        semaphore,
        bucket,
        store_of(limiter),
        *(queue_of(each) for each in (limiter, semaphore, bucket)),
    ]
    assert [text for text in map(repr, shows) if CANARY in text] == []
    assert [text for text in map(str, shows) if CANARY in text] == []
