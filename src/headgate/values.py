"""The base of the package's values: frozen objects that are equal when their fields are.

A value works as `@dataclass(frozen=True, slots=True)` makes it. That decorator generates the code
of six methods for each class, which took a quarter of the time of `import headgate`. So these
methods stand here, once, and `with_fields` only describes the fields.
"""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

V = TypeVar("V", bound="Value")


@dataclass_transform(frozen_default=True)
class Value:
    """A subclass annotates its fields, lists them in `__slots__`, and sets them in `__init__`."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def _set(self, **fields: object) -> None:
        """For `__init__` alone: a value is frozen from then on."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _compared(self) -> tuple[Any, ...]:
        """The fields that `==` compares."""
        return tuple(self._fields().values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value) or type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields().items())
        return f"{type(self).__qualname__}({fields})"

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dataclass_fields__:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    # Without these, pickle and copy would set the attributes, which `__setattr__` refuses.

    def __getstate__(self) -> list[Any]:
        return list(self._fields().values())

    def __setstate__(self, state: list[Any]) -> None:
        self._set(**dict(zip(self.__dataclass_fields__, state, strict=True)))


def with_fields(kind: type[V]) -> type[V]:
    """List the fields of `kind`, in the order of the arguments of its `__init__`.

    `match`, `dataclasses.replace` and a user's subclass that is a dataclass read the list. So do
    libraries that build values from a configuration, such as pydantic. They take the defaults from
    it, and set the fields without `__init__`.
    """
    init = kind.__init__
    listed: Any = dataclass(init=False, repr=False, eq=False)(kind)
    fields, defaults = listed.__dataclass_fields__, init.__defaults__ or ()
    for field, default in zip(reversed(fields.values()), reversed(defaults), strict=False):
        field.default = default
    listed.__dataclass_params__.frozen = True  # the option itself would generate two methods
    # Code that builds a value without `__init__` calls `__post_init__`, which checks the fields.
    listed.__post_init__ = lambda value: init(value, *[getattr(value, name) for name in fields])
    return kind
