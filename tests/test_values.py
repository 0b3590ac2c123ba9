"""Classes of values do as those of the library do, whose methods are all made at once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from traceprof.values import dataclass

Decorated = Callable[..., Any]


def classes(made_by: Decorated) -> dict[str, Any]:
    """Return classes of many kinds, made by ``made_by``."""

    @made_by(frozen=True, slots=True)
    class Plain:
        """Has a docstring."""

        name: str
        size: int = 3
        tags: list[str] = field(default_factory=list)
        hidden: int = field(default=7, repr=False, compare=False)
        KIND: ClassVar[str] = "plain"

        @property
        def twice(self) -> int:
            return 2 * self.size

    @made_by(frozen=True, slots=True, eq=False)
    class ByIdentity:
        name: str

    @made_by(slots=True)
    class Changing:
        name: str
        count: int = field(default=0, init=False)
        seen: set[str] = field(default_factory=set, init=False)
        late: int = field(init=False)

        def __post_init__(self) -> None:
            self.late = len(self.name)

    @made_by
    class Open:
        name: str = "open"

    @made_by(frozen=True)
    class Base:
        name: str

    @made_by(frozen=True)
    class Derived(Base):
        more: tuple[int, ...] = ()

    class Further(Derived):
        pass

    @made_by(frozen=True, slots=True)
    class Own:  # noqa: PLW1641
        name: str

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    @made_by(frozen=True, slots=True, repr=False)
    class Nothing:
        pass

    @made_by(frozen=True, order=True)
    class Ordered:
        name: str
        size: int = 1

    own = (Plain, ByIdentity, Changing, Open, Base, Derived, Further, Own, Nothing, Ordered)
    return {one.__name__: one for one in own}


OURS, THEIRS = classes(dataclass), classes(dataclasses.dataclass)
GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("a",), {}),
    (("b",), {}),
    ((), {"name": "a"}),
    (("a", 4), {}),
    (("a",), {"size": 4, "tags": ["x"], "hidden": 1}),
    (("a", (1, 2)), {}),
    (("a",), {"nothing": 1}),
    (("a", 1, [], 2, 3), {}),
]


def told(ask: Callable[[], Any]) -> str:
    """Return what comes of ``ask``, or of which class the error is."""
    try:
        return repr(ask())
    except (TypeError, AttributeError) as error:
        return type(error).__name__


def known_of(cls: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
    """Return all that can be asked of a value of a class, and of another one."""
    try:
        one, other = (cls(*given[0], **given[1]) for _ in range(2))
    except TypeError:
        return ["TypeError"]
    nested = [cls(*given[0], **given[1])]

    def changed(name: str) -> Any:
        setattr(one, name, 9)
        return getattr(one, name)

    return [
        told(lambda: one).partition("object at")[0],
        told(lambda: (one == other, one != other, one == "a", [one] == nested)),
        told(lambda: hash(one) == hash(other)),
        told(lambda: one < other),
        told(lambda: asdict(one)),
        told(lambda: [(f.name, f.default, f.init, f.repr) for f in fields(one)]),
        told(lambda: asdict(replace(one, name="c"))),
        told(lambda: asdict(copy.deepcopy(one))),
        told(lambda: cls.__match_args__),
        told(lambda: (cls.__doc__ or "").partition("(")[0]),
        told(lambda: getattr(cls, "__slots__", None)),
        # The library refuses what is no field of slots with another error.
        *(told(lambda name=name: changed(name)) == "9" for name in ("name", "count", "unknown")),
        told(lambda: delattr(one, "name")) == "None",
    ]


@pytest.mark.parametrize("given", GIVEN, ids=repr)
@pytest.mark.parametrize("name", OURS)
def test_they_do_as_those_of_the_library(
    name: str, given: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    assert known_of(OURS[name], given) == known_of(THEIRS[name], given)


@dataclass(frozen=True, slots=True)
class Kept:
    name: str
    size: int = 1


@pytest.mark.parametrize("cls", [Kept, OURS["Base"], OURS["Further"]])
def test_what_is_frozen_says_so(cls: Any) -> None:
    value = cls("a")
    with pytest.raises(FrozenInstanceError, match="assign to field 'name'"):
        value.name = "b"
    with pytest.raises(FrozenInstanceError, match="delete field 'name'"):
        del value.name
    assert value.name == "a"


def test_they_are_pickled_and_told_apart_in_sets() -> None:
    value = Kept("a", 2)
    assert pickle.loads(pickle.dumps(value)) == value
    assert {value, Kept("a", 2), Kept("b")} == {Kept("b"), Kept("a", 2)}


def test_one_that_holds_itself_is_printed() -> None:
    value = OURS["Changing"]("a")
    value.seen = value
    assert repr(value).endswith("late=1)")
    assert "seen=..." in repr(value)


def test_nothing_is_compiled_before_the_first_value() -> None:
    compiled: list[str] = []
    is_heard = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "compile" and is_heard:
            compiled.append(str(arguments[0]))

    sys.addaudithook(hear)  # stays until the process ends

    class Plain:
        name: str
        size: int = 1

    made = dataclass(frozen=True, slots=True)(Plain)
    assert compiled == []
    made("a")
    assert len(compiled) == 1
    made("b")
    assert len(compiled) == 1
    is_heard = False
