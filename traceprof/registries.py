"""Registries: the entries of one kind, in order, with distinct names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

_Entry = TypeVar("_Entry")
_NAME: Final[Callable[[Any], str]] = attrgetter("name")


class Registry(tuple[_Entry, ...]):
    """The entries of one kind, in order. No two entries have a name in common.

    ``kind`` names the kind in the singular, for messages. ``names_of`` returns all names of an
    entry; by default its attribute ``name``.
    """

    kind: str
    _names_of: Callable[[_Entry], Iterable[str]]

    def __new__(
        cls,
        kind: str,
        entries: Iterable[_Entry],
        names_of: Callable[[_Entry], Iterable[str]] = lambda entry: (_NAME(entry),),
    ) -> Self:
        """Create a registry of ``entries``.

        Raises:
            ValueError: two entries have the same name.
        """
        found = super().__new__(cls, entries)
        found.kind, found._names_of = kind, names_of
        check_distinct(kind, (name for entry in found for name in names_of(entry)))
        return found

    def with_more(self, *entries: _Entry) -> Self:
        """Return the registry with ``entries`` appended.

        Raises:
            ValueError: one of them has a name that is taken.
        """
        return type(self)(self.kind, (*self, *entries), self._names_of)


def check_distinct(kind: str, names: Iterable[str]) -> None:
    """Check that ``names`` are distinct; ``kind`` names the things in the message.

    Raises:
        ValueError: a name occurs twice.
    """
    known = set()
    for name in names:
        if name in known:
            raise ValueError(
                f"the {kind} {name!r} is declared twice: give one of them another name"
            )
        known.add(name)
