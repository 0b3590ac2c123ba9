"""Classes of values: what `dataclasses.dataclass` makes of a class, made when it is first used.

The library writes and compiles the text of six functions for each class, which takes half a
millisecond; a command imports more than a hundred classes, and uses few of them. Here a class
compares, prints and protects its values by functions that all share, and ``__init__`` is compiled
for the first value. `dataclasses.fields`, ``replace``, ``asdict`` and pickling work as with those
of the library; there is no ``InitVar`` and no field by name alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _dataclass(
    plain: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 (the name in the library)
    order: bool = False,
) -> Any:
    """Return the class as one of values, with the options of `dataclasses.dataclass`."""
    if plain is None:

        def decorated(one: type) -> type:
            made: type = _dataclass(one, frozen=frozen, slots=slots, eq=eq, repr=repr, order=order)
            return made

        return decorated
    if order:  # there is one of those
        return dataclasses.dataclass(
            plain, frozen=frozen, slots=slots, eq=eq, repr=repr, order=order
        )
    own = {name for name, value in vars(plain).items() if value is not None}
    plain.__doc__ = plain.__doc__ or plain.__name__  # else the library asks for the signature
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(plain)
    methods: dict[str, Any] = {"__init__": _first_init(made, is_frozen=frozen)}
    methods |= {"__repr__": _repr} if repr else {}
    methods |= _comparing(made, is_hashed=frozen) if eq else {}
    methods |= _protecting(made) if frozen else {}
    methods |= {"__getstate__": _state, "__setstate__": _set_state} if frozen and slots else {}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass


def _first_init(made: Any, *, is_frozen: bool) -> Callable[..., None]:
    """Return the ``__init__`` of the first value, which puts the one of all others in its place."""

    def init(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = compiled = _compiled_init(made, is_frozen=is_frozen)
        compiled(self, *given, **named)

    return init


def _compiled_init(made: Any, *, is_frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    parameters, lines = ["self"], ["pass"]
    for one in dataclasses.fields(made):
        known |= {f"_default_{one.name}": one.default, f"_make_{one.name}": one.default_factory}
        parameters += [one.name + _default_of(one)] if one.init else []
        if one.init or _default_of(one):
            name, value = one.name, _value_of(one)
            lines.append(
                f"_set(self, '{name}', {value})" if is_frozen else f"self.{name} = {value}"
            )
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n ".join(lines)
    exec(f"def __init__({', '.join(parameters)}):\n {body}", known)
    compiled: Callable[..., None] = known["__init__"]
    compiled.__qualname__ = f"{made.__qualname__}.__init__"
    return compiled


def _default_of(one: Field[Any]) -> str:
    if one.default is not MISSING:
        return f"=_default_{one.name}"
    return "=_missing" if one.default_factory is not MISSING else ""


def _value_of(one: Field[Any]) -> str:
    if one.default_factory is MISSING:
        return one.name if one.init else f"_default_{one.name}"
    made = f"_make_{one.name}()"
    return f"{made} if {one.name} is _missing else {one.name}" if one.init else made


def _comparing(made: Any, *, is_hashed: bool) -> dict[str, Any]:
    values_of = _getter([one.name for one in dataclasses.fields(made) if one.compare])

    def equals(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values_of(self) == values_of(other)

    def hashed(self: Any) -> int:
        return hash(values_of(self))

    return {"__eq__": equals, "__hash__": hashed if is_hashed else None}


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the attributes ``names`` of a value."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _protecting(made: Any) -> dict[str, Any]:
    names = {one.name for one in dataclasses.fields(made)}

    def set_attribute(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


@recursive_repr()
def _repr(self: Any) -> str:
    shown = [one.name for one in dataclasses.fields(self) if one.repr]
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{self.__class__.__qualname__}({values})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
