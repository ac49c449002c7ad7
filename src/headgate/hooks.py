"""The hooks of `headgate.telemetry`, which get the events.

A hook is the user's code: it may take its time, raise or call a limiter. No caller waits for it. So
`emit` queues the event, and the thread of log_writer.py calls the hooks.

Code that emits imports the type of its event only if there are hooks. Otherwise `import headgate`
would have to import all types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.log_writer import run_soon, shown_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.events import AnyEvent, Hook

# Replaced as a whole, so a thread that reads it needs no lock.
_hooks: tuple[Hook, ...] = ()
# Called after a hook was added or removed.
ON_CHANGE: list[Callable[[], None]] = []


def add_hook(hook: Hook) -> None:
    """Call `hook` with each later event, in a thread of headgate.

    The hooks of an event run in the order of their registration. A hook that raises does no harm:
    its traceback goes to stderr. If hooks are too slow, events are dropped, and the log says how
    many. Raises TypeError for an object that cannot be called.
    """
    global _hooks
    if not callable(hook):
        raise TypeError(
            f"add_hook({hook!r:.64}): a hook is a function of one argument, the event; pass one."
        )
    _hooks = (*_hooks, hook)
    for note_change in ON_CHANGE:
        note_change()


def remove_hook(hook: Hook) -> None:
    """Call `hook` no more. Raises ValueError if it is no hook."""
    global _hooks
    if hook not in _hooks:
        raise ValueError(f"remove_hook({hook!r:.64}): it is no hook; pass one that was added.")
    left = list(_hooks)
    left.remove(hook)
    _hooks = tuple(left)
    for note_change in ON_CHANGE:
        note_change()


def has_hooks() -> bool:
    return bool(_hooks)


def emit(event: AnyEvent) -> None:
    """Give `event` to the hooks. Never blocks and never raises.

    A signal handler, a finalizer or a thread that has a lock may call it.
    """
    run_soon(_call_hooks, event)


def _call_hooks(event: AnyEvent) -> None:
    for hook in _hooks:
        with shown_errors():  # the other hooks get the event all the same
            hook(event)
