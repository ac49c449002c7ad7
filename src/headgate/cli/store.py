"""The store of the command, and limiters in it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Literal, cast

from headgate.cli.exits import STORE_AWAY, USAGE, Failure, usage_errors
from headgate.limiter import Limiter
from headgate.stores.registry import store_of

if TYPE_CHECKING:
    from headgate.stores.redis import RedisStore

OnLost = Literal["mark", "cancel"]
VARIABLE = "HEADGATE_STORE"


def url_of(args: Namespace) -> str:
    if not args.store:
        raise Failure(
            USAGE,
            f"no store is named: give --store URL, or set {VARIABLE}, such as "
            "redis://localhost:6379.",
        )
    if args.store == "memory://":
        raise Failure(
            USAGE,
            "the store memory:// is in this process alone: name the Redis store of the fleet, such "
            "as redis://localhost:6379.",
        )
    return str(args.store)


def redis_store_of(args: Namespace) -> RedisStore:
    """The store itself, for an operator's questions."""
    url = url_of(args)
    try:
        with usage_errors():
            return cast("RedisStore", store_of(url))
    except ImportError as missing:
        raise Failure(STORE_AWAY, str(missing)) from missing


def attach(args: Namespace) -> Limiter:
    """The limiter of the argument NAME. It declares nothing."""
    return make_limiter(args, ())


def attach_key(args: Namespace) -> Limiter:
    """The limiter of NAME, or that of its key if --key names one."""
    whole = attach(args)
    if args.key is None:
        return whole
    with usage_errors():
        return whole[args.key]


def make_limiter(args: Namespace, limits: tuple[str, ...], on_lost: OnLost = "mark") -> Limiter:
    """As `attach`, but if there are `limits`, its first acquire declares them."""
    redis_store_of(args)  # raises for a bad URL
    with usage_errors():
        if limits:
            return Limiter(args.name, *limits, store=args.store, on_lost=on_lost)
        return Limiter.attach(args.name, store=args.store, on_lost=on_lost)
