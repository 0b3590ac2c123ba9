"""Registries: what there is of a kind, in its order, and nothing under a name that is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

_Entry = TypeVar("_Entry")
_NAME: Final[Callable[[Any], str]] = attrgetter("name")


class Registry(tuple[_Entry, ...]):
    """The entries of one kind, in their order; no two of them are found under the same name.

    ``kind`` is what an entry is, in the singular. ``names_of`` returns all names under which an
    entry is found; by default that is its ``name``.
    """

    kind: str
    _names_of: Callable[[_Entry], Iterable[str]]

    def __new__(
        cls,
        kind: str,
        entries: Iterable[_Entry],
        names_of: Callable[[_Entry], Iterable[str]] = lambda entry: (_NAME(entry),),
    ) -> Self:
        """Make a registry of ``entries``.

        Raises:
            ValueError: two entries are found under the same name.
        """
        found = super().__new__(cls, entries)
        found.kind, found._names_of = kind, names_of
        check_distinct(kind, (name for entry in found for name in names_of(entry)))
        return found

    def with_more(self, *entries: _Entry) -> Self:
        """Return the registry with ``entries`` after those that it has.

        Raises:
            ValueError: one of them is found under a name that is taken.
        """
        return type(self)(self.kind, (*self, *entries), self._names_of)


def check_distinct(kind: str, names: Iterable[str]) -> None:
    """Check that no two things of a kind have the same name.

    Raises:
        ValueError: two have.
    """
    known = set()
    for name in names:
        if name in known:
            raise ValueError(
                f"the {kind} {name!r} is declared twice: give one of them another name"
            )
        known.add(name)
