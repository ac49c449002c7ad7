"""A limiter as a decorator: functions and generators, sync and async."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, ParamSpec, TypeVar, cast

from headgate.lease_watch import unwatched
from headgate.validation import show

P = ParamSpec("P")
R = TypeVar("R")


Function = Callable[..., Any]


def limited(limiter: Any, function: Callable[P, R]) -> Callable[P, R]:
    if not callable(function):
        raise TypeError(
            f"Limiter {limiter.name!r} decorates functions, not {show(function)}; for a cost, use "
            "limiter.acquire(...)."
        )
    if inspect.isclass(function):
        raise TypeError(
            f"Limiter {limiter.name!r} decorates functions, not the class {function.__name__}, "
            "which would be no class any more: decorate its methods, or enter the limiter where "
            "instances are made."
        )
    kinds: tuple[tuple[Callable[[Any], bool], Function], ...] = (
        (inspect.isasyncgenfunction, limited_async_generator),
        (inspect.iscoroutinefunction, limited_coroutine),
        (inspect.isgeneratorfunction, limited_generator),
    )
    # A plain wrapper around a coroutine function returns its coroutine. So look inside wrappers
    # for the first function of one of these kinds.
    body = inspect.unwrap(
        body_of(function), stop=lambda wrapped: any(is_kind(wrapped) for is_kind, _ in kinds)
    )
    wrap = next((wrap for is_kind, wrap in kinds if is_kind(body)), limited_function)
    return cast("Callable[P, R]", functools.wraps(function)(wrap(limiter, function)))


def body_of(function: Function) -> Function:
    """The function that a call of `function` runs."""
    while isinstance(function, functools.partial):
        function = function.func
    has_body = inspect.isroutine(function) or inspect.isclass(function)
    return function if has_body else type(function).__call__


def limited_function(limiter: Any, function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        with limiter:
            return function(*args, **kwargs)

    return call


def limited_coroutine(limiter: Any, function: Function) -> Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with limiter:
            return await function(*args, **kwargs)

    return call


def limited_generator(limiter: Any, function: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        # Not `with limiter`: another task or thread may end the generator, and has no permit there.
        with limiter.acquire():
            return (yield from function(*args, **kwargs))

    return call


def limited_async_generator(limiter: Any, function: Function) -> Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with limiter.acquire() as permit, aclosing(function(*args, **kwargs)) as items:
            around_yield = unwatched(permit)
            step = items.__anext__()
            while True:
                try:
                    item = await step
                except StopAsyncIteration:
                    return
                try:
                    with around_yield:
                        sent = yield item
                    step = items.asend(sent)
                except GeneratorExit:  # `aclosing` closes the inner generator
                    raise
                except BaseException as error:  # the inner generator gets it
                    step = items.athrow(error)

    return call
