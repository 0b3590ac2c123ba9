"""Add, find, label, and remove the runs of the database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from traceprof.errors import StoreError, UsageError
from traceprof.model.summary import Summary
from traceprof.secrets import storable
from traceprof.store.database import default_path, reading, writing
from traceprof.store.summaries import add_labels, masked_run, read_summary, write_parts
from traceprof.version import __version__

if TYPE_CHECKING:
    from sqlite_utils import Database

_NUMBER: Final = re.compile(r"#?(\d+)")


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a run.

    Raises:
        UsageError: the name could be confused with something else, or cannot be written.
    """
    name = storable(name)
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise UsageError(f"invalid run name {name!r}: expected one line of text")
    if _NUMBER.fullmatch(name) or name.startswith(("-", "label:")):
        raise UsageError(
            f"invalid run name {name!r}: a name cannot be a number, or start with - or label:"
        )
    return name


def as_name(text: str) -> str:
    """Return a valid run name made from ``text``, which was not chosen as a name."""
    shown = "".join(c if c.isprintable() else " " for c in storable(text))
    name = " ".join(shown.split()).removeprefix("label:").lstrip("- ")
    if not name:
        return "run"
    return f"run-{name.lstrip('#')}" if _NUMBER.fullmatch(name) else name


def _find(
    database: Database | None, text: str, path: Path, *, exactly: bool = False
) -> tuple[int, str]:
    """Return number and name of the run that ``text`` identifies in the database ``path``.

    ``text`` is its name, its number, or, unless ``exactly`` is set, a unique prefix of its name.

    Raises:
        UsageError: the prefix matches several runs.
        StoreError: no run matches.
    """
    query = "SELECT name, id FROM runs ORDER BY id"
    known: dict[str, int] = {} if database is None else dict(database.execute(query).fetchall())
    if text in known:
        return known[text], text
    by_number = {number: name for name, number in known.items()}
    match = _NUMBER.fullmatch(text)
    if match and int(match[1]) in by_number:
        return int(match[1]), by_number[int(match[1])]
    found = [name for name in known if text and not exactly and name.startswith(text)]
    if len(found) == 1:
        return known[found[0]], found[0]
    if found:
        raise UsageError(
            f"{text!r} matches several runs: {_list_some(found)}; type more of the name"
        )
    close = get_close_matches(text, known, n=3)
    hint = f"did you mean {_list_some(close)}?" if close else f"stored runs: {_list_some([*known])}"
    reason = f"no run with this name in {path}; {hint}" if known else f"{path} contains no runs"
    raise StoreError(f"no run {text!r}: no such file, and {reason}")


def _list_some(names: Sequence[str], most: int = 5) -> str:
    more = f" … ({len(names)} in total)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_COLUMNS: Final = (
    *("origin", "command", "workload", "started_utc_ns", "window", "window_ns"),
    *("steps_count", "devices_count"),
)


class Measure(NamedTuple):
    """A measure of a run, with its unit; a value of None is unknown."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A run in a list of runs; ``measures`` contains its single numbers by name.

    ``environment`` contains the recorder and the exit code of the program, if known. ``ended`` is
    the outcome of each start of each rank: finished, killed, or failed. ``typed`` contains the
    cells of the table row from which the run was read, by heading.
    """

    number: int
    name: str
    added: str
    origin: str
    started_utc_ns: int | None
    steps_count: int | None
    devices_count: int | None
    command: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    ended: Sequence[str]
    measures: Mapping[str, Measure]
    typed: Mapping[str, str]

    def text_of(self, name: str) -> str:
        """Return a label, or the typed cell of the first column whose heading begins with ``name``.

        The result is "" if the run has neither. Names are compared by their words, without case.
        """
        if name in self.labels:
            return self.labels[name]
        plain = _plain_name(name)
        for texts in (self.labels, self.typed):
            for key, text in texts.items():
                if f"{_plain_name(key)}_".startswith(f"{plain}_"):
                    return text
        return ""

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Return whether labels or typed cells match all of ``wanted``; * and ? are wildcards."""
        pairs = ((self.text_of(name), pattern) for name, pattern in wanted.items())
        return all(
            text and (text == pattern or fnmatchcase(text, pattern)) for text, pattern in pairs
        )


@dataclass(frozen=True, slots=True)
class Store:
    """The run database in one file, which is created when the first run is added.

    Each call opens the file, executes one transaction, and closes it; any number of processes can
    use the file at the same time. A run is identified by its name, its number (``12`` or ``#12``),
    or a unique prefix of its name.
    """

    path: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> Store:
        """Return the database in ``path``.

        None selects TRACEPROF_RUNS or the user's default file.
        """
        return cls(default_path() if path is None else Path(path).expanduser())

    def add(self, run: Summary, *, numbered: bool = False, replaces: bool = False) -> str:
        """Add ``run`` and return its name.

        If the name is taken, ``replaces`` deletes the run with this name, and ``numbered`` names
        the new run ``name-2``, ``name-3`` …

        Raises:
            UsageError: the name is taken or invalid.
            StoreError: the database cannot be written.
        """
        return self.add_all([run], numbered=numbered, replaces=replaces)[0]

    def add_all(
        self, runs: Sequence[Summary], *, numbered: bool = False, replaces: bool = False
    ) -> list[str]:
        """Add all of ``runs``, or none of them, as `add` does; return their names."""
        for run in runs:
            check_name(run.name)
        with writing(self.path) as database:
            return [_add_run(database, run, numbered, replaces) for run in runs]

    def get(self, text: str) -> Summary:
        """Return the run that ``text`` identifies.

        Raises:
            StoreError: no run matches.
            UsageError: several runs match.
        """
        with reading(self.path) as database:
            number, _ = _find(database, text, self.path)
            assert database is not None
            return read_summary(database, number)

    def listed(self, labels: Mapping[str, str] | None = None) -> list[Kept]:
        """Return the runs that have all of ``labels``, in the order in which they were added.

        The values of ``labels`` may contain the wildcards * and ?.
        """
        with reading(self.path) as database:
            runs = [] if database is None else _list_runs(database)
        return [run for run in runs if run.has_labels(labels or {})]

    def names(self, labels: Mapping[str, str] | None = None) -> list[str]:
        """Return the names of the runs with all of ``labels``, in the order of `listed`."""
        return [run.name for run in self.listed(labels)]

    def label(
        self, text: str, labels: Mapping[str, str], dropped: Sequence[str] = ()
    ) -> Mapping[str, str]:
        """Add ``labels`` to a run, remove the labels ``dropped``, and return all its labels.

        Raises:
            StoreError: no run matches.
            UsageError: several runs match, or the run lacks a label of ``dropped``.
        """
        if not self.path.exists():
            _find(None, text, self.path)
        with writing(self.path) as database:
            number, name = _find(database, text, self.path)
            for label in dropped:
                gone = database.execute(
                    "DELETE FROM labels WHERE run_id = ? AND label = ?", [number, label]
                )
                if gone.rowcount == 0:
                    raise UsageError(f"{name} has no label {label!r}")
            add_labels(database, number, labels)
            rows = database.execute("SELECT label, value FROM labels WHERE run_id = ?", [number])
            return dict(rows.fetchall())

    def remove(self, texts: Sequence[str]) -> list[str]:
        """Remove the given runs, or none of them; return their names.

        Names must be complete: a prefix is not sufficient to delete a run.

        Raises:
            StoreError: no run matches.
        """
        if not self.path.exists():
            _find(None, texts[0], self.path)
        with writing(self.path) as database:
            found = dict(_find(database, text, self.path, exactly=True) for text in texts)
            for number in found:
                database.execute("DELETE FROM runs WHERE id = ?", [number])
        return list(found.values())


def _add_run(database: Database, run: Summary, numbered: bool, replaces: bool) -> str:
    """Insert a run with all its parts; return its name."""
    name = storable(run.name)
    taken = {name for (name,) in database.execute("SELECT name FROM runs").fetchall()}
    if name in taken and replaces:
        database.execute("DELETE FROM runs WHERE name = ?", [name])
    elif name in taken and numbered:
        others = (f"{name}-{number}" for number in count(2))
        name = next(candidate for candidate in others if candidate not in taken)
    elif name in taken:
        raise UsageError(
            f"run {name!r} already exists: choose another name, or replace it with --force"
        )
    clean = masked_run(replace(run, name=name))
    added = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    texts = {column: getattr(clean, column) for column in _COLUMNS}
    row = {"name": name, "added": added, "traceprof": __version__, **texts}
    names = ", ".join(f'"{column}"' for column in row)
    cursor = database.execute(
        f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * len(row))})",
        [storable(value) if isinstance(value, str) else value for value in row.values()],
    )
    assert cursor.lastrowid is not None
    try:
        write_parts(database, cursor.lastrowid, clean)
    except OverflowError as error:
        raise StoreError(f"{name}: contains a number that is too large for SQLite") from error
    return name


def _list_runs(database: Database) -> list[Kept]:
    """Return all runs, in the order in which they were added."""
    labels: dict[int, dict[str, str]] = {}
    for number, label, value in database.execute("SELECT * FROM labels").fetchall():
        labels.setdefault(number, {})[label] = value
    measures: dict[int, dict[str, Measure]] = {}
    for number, name, *fields in database.execute(
        "SELECT run_id, measure, value, unit FROM measures"
    ).fetchall():
        measures.setdefault(number, {})[name] = Measure(*fields)
    rows = database.query(
        "SELECT id AS number, name, added, origin, started_utc_ns, steps_count, devices_count, "
        "command FROM runs ORDER BY id"
    )
    environment: dict[int, dict[str, str]] = {}
    for number, name, value in database.execute(
        "SELECT run_id, name, value FROM environment "
        "WHERE name IN ('profiler', 'recorder', 'exit_code')"
    ).fetchall():
        environment.setdefault(number, {})[name] = value
    ended: dict[int, list[str]] = {}
    if "attempts" in database.table_names():
        for number, text in database.execute("SELECT run_id, ended FROM attempts").fetchall():
            ended.setdefault(number, []).append(str(text or ""))
    typed: dict[int, dict[str, str]] = {}
    if "typed" in database.table_names():
        for number, heading, cell in database.execute(
            'SELECT run_id, heading, cell FROM typed ORDER BY run_id, "row"'
        ).fetchall():
            typed.setdefault(number, {})[str(heading)] = str(cell or "")
    return [
        Kept(
            **row,
            labels=labels.get(row["number"], {}),
            environment=environment.get(row["number"], {}),
            ended=ended.get(row["number"], []),
            measures=measures.get(row["number"], {}),
            typed=typed.get(row["number"], {}),
        )
        for row in rows
    ]


def _plain_name(name: str) -> str:
    return re.sub(r"[^\w]+", "_", name.lower()).strip("_")
