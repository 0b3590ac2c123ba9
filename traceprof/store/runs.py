"""The runs that are kept: added whole, found by name, labelled, removed."""

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
    """Return ``name``, which a run may bear.

    Raises:
        UsageError: it may not: it would be mistaken for something else, or cannot be written.
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
    """Return a name that a run may bear, made of ``text`` that nobody chose to be one."""
    shown = "".join(c if c.isprintable() else " " for c in storable(text))
    name = " ".join(shown.split()).removeprefix("label:").lstrip("- ")
    if not name:
        return "run"
    return f"run-{name.lstrip('#')}" if _NUMBER.fullmatch(name) else name


def _find(
    database: Database | None, text: str, path: Path, *, exactly: bool = False
) -> tuple[int, str]:
    """Return the number and the name of the run that ``text`` means in the database ``path``.

    That is its name, its number, or, unless ``exactly`` is asked for, how its name and no other
    begins.
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
        raise UsageError(f"{text!r} matches several runs: {_some(found)}; type more of the name")
    close = get_close_matches(text, known, n=3)
    hint = f"did you mean {_some(close)}?" if close else f"stored runs: {_some([*known])}"
    there = f"no run with this name in {path}; {hint}" if known else f"{path} contains no runs"
    raise StoreError(f"no run {text!r}: no such file, and {there}")


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" … ({len(names)} in total)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_COLUMNS: Final = (
    *("origin", "command", "workload", "started_utc_ns", "window", "window_ns"),
    *("steps_count", "devices_count"),
)


class Measure(NamedTuple):
    """A measure of a run, with the unit that columns of results have; None: not known."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What a list of runs tells of one; ``measures`` are those of its table, by name.

    ``environment`` has what recorded it and how its program ended, where that is known; ``ended``
    is how each start of a rank did (finished, killed, failed).
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
        """Return a label; else the cell of the row it was typed in, by the column's first words."""
        if name in self.labels:
            return self.labels[name]
        plain = _plain(name)
        for every in (self.labels, self.typed):
            for own, text in every.items():
                if f"{_plain(own)}_".startswith(f"{plain}_"):
                    return text
        return ""

    def is_such(self, wanted: Mapping[str, str]) -> bool:
        """Return whether it tells all of ``wanted``; * and ? stand for any letters."""
        told = ((self.text_of(name), text) for name, text in wanted.items())
        return all(own and (own == text or fnmatchcase(own, text)) for own, text in told)


@dataclass(frozen=True, slots=True)
class Store:
    """The database of runs in one file, which is made when the first run is added.

    Every call opens the file, does one thing wholly or not at all, and closes it: any number of
    processes may use it at once. A run is named by its name, by its number (``12`` or ``#12``), or
    by how its name, and no other, begins.
    """

    path: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> Store:
        """Return the database in ``path``; None: where TRACEPROF_RUNS says, else the user's."""
        return cls(default_path() if path is None else Path(path).expanduser())

    def add(self, run: Summary, *, numbered: bool = False, replaces: bool = False) -> str:
        """Keep ``run`` and return its name.

        Where the name is taken, ``replaces`` drops the run that bears it, and ``numbered`` calls
        this one ``name-2``, ``name-3`` …

        Raises:
            UsageError: the name is taken, or cannot be one.
            StoreError: the database cannot be written.
        """
        return self.add_all([run], numbered=numbered, replaces=replaces)[0]

    def add_all(
        self, runs: Sequence[Summary], *, numbered: bool = False, replaces: bool = False
    ) -> list[str]:
        """Keep all of ``runs`` or none, as `add` does, and return their names."""
        for run in runs:
            check_name(run.name)
        with writing(self.path) as database:
            return [_add(database, run, numbered, replaces) for run in runs]

    def get(self, text: str) -> Summary:
        """Return the run that ``text`` names.

        Raises:
            StoreError: there is none.
            UsageError: there are several.
        """
        with reading(self.path) as database:
            number, _ = _find(database, text, self.path)
            assert database is not None
            return read_summary(database, number)

    def listed(self, labels: Mapping[str, str] | None = None) -> list[Kept]:
        """Return what there is, as it was added: the runs that have all of ``labels``.

        In these * and ? stand for any letters.
        """
        with reading(self.path) as database:
            every = [] if database is None else _listed(database)
        return [run for run in every if run.is_such(labels or {})]

    def names(self, labels: Mapping[str, str] | None = None) -> list[str]:
        """Return the names of the runs that have all of ``labels``, as they were added."""
        return [run.name for run in self.listed(labels)]

    def label(
        self, text: str, labels: Mapping[str, str], dropped: Sequence[str] = ()
    ) -> Mapping[str, str]:
        """Give a run ``labels``, take those called ``dropped``, and return all that it has then.

        Raises:
            StoreError: there is no such run.
            UsageError: there are several, or it has no label that is to go.
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
        """Remove the runs that are named, all or none, and return their names.

        A name counts as a whole: how it begins is not enough to lose a run.

        Raises:
            StoreError: there is no such run.
        """
        if not self.path.exists():
            _find(None, texts[0], self.path)
        with writing(self.path) as database:
            found = dict(_find(database, text, self.path, exactly=True) for text in texts)
            for number in found:
                database.execute("DELETE FROM runs WHERE id = ?", [number])
        return list(found.values())


def _add(database: Database, run: Summary, numbered: bool, replaces: bool) -> str:
    name = storable(run.name)
    taken = {name for (name,) in database.execute("SELECT name FROM runs").fetchall()}
    if name in taken and replaces:
        database.execute("DELETE FROM runs WHERE name = ?", [name])
    elif name in taken and numbered:
        others = (f"{name}-{number}" for number in count(2))
        name = next(one for one in others if one not in taken)
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


def _listed(database: Database) -> list[Kept]:
    labels: dict[int, dict[str, str]] = {}
    for number, label, value in database.execute("SELECT * FROM labels").fetchall():
        labels.setdefault(number, {})[label] = value
    measures: dict[int, dict[str, Measure]] = {}
    for number, name, *told in database.execute(
        "SELECT run_id, measure, value, unit FROM measures"
    ).fetchall():
        measures.setdefault(number, {})[name] = Measure(*told)
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


def _plain(name: str) -> str:
    return re.sub(r"[^\w]+", "_", name.lower()).strip("_")
