"""The verbs that change a limiter for its fleet: set, pause, resume, drain, reset and forget.

They look first, so an unknown name is an error and the question shows what holds now.
"""

from __future__ import annotations

from argparse import Namespace

from headgate.cli.confirm import check_may_change, confirm
from headgate.cli.exits import NOT_NOW, UNKNOWN, USAGE, Failure, is_count, usage_errors
from headgate.cli.output import emit, shown
from headgate.cli.store import attach, attach_key, redis_store_of
from headgate.internals import status_in_use
from headgate.keys import encoded
from headgate.limit_parser import parse_limit
from headgate.limiter import Limiter
from headgate.stores.status import Status
from headgate.validation import check_pause, duration


async def set_limits(args: Namespace) -> None:
    check_may_change(args)
    limiter = attach(args)
    with usage_errors():
        limits = [parse_limit(text) for text in args.limits]
    status = await limiter.astatus()
    before = ", ".join(str(each.limit) for each in status.limits)
    after = ", ".join(map(str, limits))
    confirm(args, f"Replace the limits of {shown(args.name)}, {before}, by {after}?")
    with usage_errors():
        await limiter.aupdate(*limits)
    report(args, f"{shown(args.name)} has the limits {after}.")


async def pause(args: Namespace) -> None:
    check_may_change(args)
    limiter, title = pausable(args)
    with usage_errors():
        seconds = check_pause("headgate pause", args.seconds)
    status = await status_in_use(limiter)
    for_time = f"for {duration(seconds)}"
    others = ", without those of keys" if args.key is None else ""
    confirm(args, f"Pause {title} {for_time}? Callers that wait now{others}: {status.waiting:,}.")
    await limiter.apause(seconds)
    report(args, f"{title} is paused {for_time}.", key=args.key)


async def resume(args: Namespace) -> None:
    check_may_change(args)
    limiter, title = pausable(args)
    paused = (await status_in_use(limiter)).paused
    left = f" It is paused for {duration(paused)} more." if paused else ""
    confirm(args, f"End the pause of {title}?{left}")
    await limiter.aresume()
    report(args, f"{title} is not paused.", key=args.key)


def pausable(args: Namespace) -> tuple[Limiter, str]:
    """The whole limiter, or the key of --key, and its name in a message."""
    limiter = attach_key(args)
    if args.key is None:
        return limiter, f"{shown(args.name)} with all its keys"
    return limiter, f"{shown(args.name)}[{shown(args.key)}]"


async def drain(args: Namespace) -> None:
    check_may_change(args)
    limiter, left = attach(args), units_left(args.left)
    check_units(args.name, left, await limiter.astatus())
    budgets = ", ".join(f"{number:,} {unit}" for unit, number in left.items())
    confirm(args, f"Lower the budgets of {shown(args.name)} to {budgets}?")
    with usage_errors():
        limiter.drain(**left)
    await limiter.aflush()
    report(args, f"{shown(args.name)} has at most {budgets} left.")


async def reset(args: Namespace) -> None:
    check_may_change(args)
    limiter = attach(args)
    status = await limiter.astatus()
    counted = ", ".join(
        f"{each.used:,} {each.unit} used" for each in status.limits if each.kind != "Concurrency"
    )
    confirm(args, f"Forget the counts of {shown(args.name)}: {counted or 'it has none'}?")
    await limiter.areset()
    report(args, f"{shown(args.name)} has forgotten its counts.")


async def forget(args: Namespace) -> None:
    check_may_change(args)
    with usage_errors():
        key = attach(args)[args.key]
    title = f"{shown(args.name)}[{shown(args.key)}]"
    confirm(args, f"Forget what {title} has counted, and the limits of its own?")
    forgotten = await redis_store_of(args).forget(encoded(key.name, key.key))
    if forgotten.held or forgotten.waiting:
        raise Failure(
            NOT_NOW,
            f"{title} is in use, with held permits: {forgotten.held:,}, and waiting callers: "
            f"{forgotten.waiting:,}. Nothing was forgotten; try again when it is idle.",
        )
    if not forgotten.known:
        raise Failure(UNKNOWN, f"the store has nothing to forget about {title}.")
    report(args, f"{title} is forgotten.", key=args.key)


def units_left(words: list[str]) -> dict[str, int]:
    """The units of `requests=12 tokens=0`."""
    left: dict[str, int] = {}
    for word in words:
        unit, _, number = word.partition("=")
        if not is_count(number) or unit in left:
            raise Failure(
                USAGE,
                f"drain {shown(word)}: write each unit once, with a whole number from 0, such as "
                "requests=12.",
            )
        left[unit] = int(number)
    return left


def check_units(name: str, left: dict[str, int], status: Status) -> None:
    counted = {each.unit for each in status.limits if each.kind != "Concurrency"}
    if unknown := left.keys() - counted:
        raise Failure(
            USAGE,
            f"drain of {shown(name)}: no rate, window or quota of it counts "
            f"{shown(min(unknown))}; they count {', '.join(sorted(counted)) or 'nothing'}.",
        )


def report(args: Namespace, text: str, key: str | None = None) -> None:
    emit(args, "change", {"change": args.verb, "name": args.name, "key": key}, text)
