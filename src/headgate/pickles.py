"""How limiters are pickled: by the arguments from which another process makes the same one.

The `__init__` of a subclass may take other arguments, so it is not called again: its attributes
travel in the pickle.
"""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any


def remade(
    kind: type[Any], base: type[Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """An object of `kind`, made by the `__init__` of `base`."""
    made: Any = object.__new__(kind)
    base.__init__(made, *arguments, **options)
    return made


def attributes(
    of: object, kind: type[Any], base: type[Any]
) -> tuple[dict[str, Any] | None, dict[str, Any]] | None:
    """The attributes that `kind`, a subclass of `base`, has added, as pickle restores them."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    names = [
        name
        for each in between
        for name, slot in vars(each).items()
        if isinstance(slot, MemberDescriptorType)
    ]
    slots = {name: getattr(of, name) for name in names if hasattr(of, name)}
    own = dict(getattr(of, "__dict__", {}))
    return (own or None, slots) if own or slots else None
