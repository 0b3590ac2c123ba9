"""``--save`` of commands that have a run in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from traceprof.cli.options import labels_of
from traceprof.errors import TraceprofError, UsageError

if TYPE_CHECKING:
    from traceprof.session.run import Run
    from traceprof.store import Store

__all__ = ["RunName", "Save", "Saving", "keep_each"]

Save: TypeAlias = Annotated[
    bool, typer.Option("--save", help="Keep the results in the database of runs.")
]
RunName: TypeAlias = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Keep them under this name (--save).")
]


@dataclass(frozen=True, slots=True)
class Saving:
    """Whether and how a run is kept: it is where it gets a name or a label, too."""

    is_wanted: bool
    name: str | None
    labels: dict[str, str]
    db: Path | None

    @classmethod
    def of(
        cls, save: bool, name: str | None, label: Sequence[str] | None, db: Path | None
    ) -> Saving:
        """Return what the options say.

        Raises:
            UsageError: they make no sense.
        """
        if name is not None:
            from traceprof.store import check_name

            check_name(name)
        return cls(save or name is not None or bool(label), name, labels_of(label), db)

    def keep(self, run: Run, paths: Sequence[Path], *, numbered: bool = False) -> None:
        """Keep ``run``, which lies in ``paths``, and say so.

        ``numbered``: a name that is taken gets a number, even where the user chose it.

        Raises:
            UsageError: the name is taken.
            StoreError: the database cannot be written.
        """
        from traceprof.comparison.runs_named import name_of_files, summary_of, with_places
        from traceprof.store import Store

        store = Store.at(self.db)
        summary = summary_of(run, self.name or name_of_files(paths), self.labels)
        numbered = numbered or self.name is None
        _say_kept(store, store.add(with_places(summary), numbered=numbered))


def keep_each(
    store: Store,
    files: Sequence[Path | str],
    keep: Callable[[Path | str], Iterable[str]],
    name: str | None,
) -> None:
    """Keep what is in each of ``files``, and say so; those that cannot be read are said last.

    Raises:
        UsageError: several runs would bear one ``name``.
        TraceprofError: the only one cannot be read or kept.
        typer.Exit: one of several cannot.
    """
    from traceprof.cli.output import message

    if len(files) > 1 and name is not None:
        raise UsageError(f"--name {name}: these are several runs, and a name is of one")
    kept: list[str] = []
    failed: list[TraceprofError] = []
    for file in files:
        try:
            kept += keep(file)
        except TraceprofError as error:
            if len(files) == 1:
                raise
            failed.append(error)
    if len(kept) == 1:
        _say_kept(store, kept[0])
    else:
        message(f"{len(kept)} runs kept in {store.path}: traceprof runs list")
    for problem in failed:
        message(str(problem))
    if failed:
        raise typer.Exit(failed[-1].exit_code)


def _say_kept(store: Store, name: str) -> None:
    """Say that a run was kept, and how to see it."""
    from shlex import quote

    from traceprof.cli.output import message

    message(f"kept as {name} in {store.path}: traceprof runs show {quote(name)}")
