"""What of an nsys export is not passed on, or removed from it: environments, outputs, secrets."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.shared.redaction import without_secrets, worth_seeking
from traceprof.formats.sqlite.columns import decoded
from traceprof.formats.sqlite.schema import codec_of, quoted, register_text, text_by
from traceprof.model.cutting import REMOVED
from traceprof.secrets import masked_text, secrets_of

_ARGUMENT: Final = re.compile(r"(.*):ARGUMENT_(\d+)")
_COMPLAINT: Final = "secrets cannot be removed"
_REMOVED: Final = "[environment removed by traceprof]"
_BYTES: Final = "instr(CAST(value AS BLOB)"
_ENVIRONMENTS: Final = (
    ("StringIds", f"{_BYTES}, x'00') > 0 AND {_BYTES}, CAST('=' AS BLOB)) > 0"),
    ("TARGET_INFO_SYSTEM_ENV", "name = 'DeviceEnvironment'"),
    ("META_DATA_CAPTURE", "name LIKE '%ENVIRONMENT%'"),
)
"""Tables that hold environments, and the SQL that tells their rows."""
_NAMES: Final = (("NVTX_EVENTS", "text"), ("StringIds", "value"))
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_SYSTEM_TABLES: Final = (
    *("StringIds", "META_DATA_", "TARGET_INFO_", "PROCESSES", "ThreadNames", "EXPORT_META_DATA"),
    *("DIAGNOSTIC_EVENT", "ANALYSIS_"),
)


@dataclass(frozen=True, slots=True)
class Redaction:
    """How texts are passed on.

    ``whole`` are arguments of the program that are masked, ``parts`` the secrets in them and in
    the environment, wherever they stand.
    """

    whole: dict[str, str] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def register(self, connection: sqlite3.Connection) -> None:
        """Give SQL the functions ``system_text`` and ``event_text``, of and to bytes."""

        def system(text: str) -> str:
            plain = without_secrets(self.whole.get(text, text), self.parts)
            return REMOVED if _is_environment(text) else masked_text(plain)

        def event(text: str) -> str:
            return REMOVED if _is_environment(text) else without_secrets(text, self.parts)

        register_text(connection, "system_text", system)
        register_text(connection, "event_text", event)

    def shown(self, table: str, column: str) -> str:
        """Return the SQL of a text about machine and processes, in place of the column."""
        text = text_by("system_text", quoted(column))
        if table == "META_DATA_CAPTURE" and column == "value":
            return f"CASE WHEN name LIKE '%ENVIRONMENT%' THEN '{REMOVED}' ELSE {text} END"
        if table == "TARGET_INFO_SYSTEM_ENV" and column == "value":
            return f"CASE WHEN name = 'DeviceEnvironment' THEN '{REMOVED}' ELSE {text} END"
        return text


def _is_environment(text: str) -> bool:
    """Return whether it is a whole environment: nsys writes NULs between the variables."""
    return "\0" in text and "=" in text


def redaction_of(connection: sqlite3.Connection, schema: str) -> Redaction:
    """Return how the texts of an export are passed on, by what it says of its program."""
    rows: list[tuple[str, str]] = []
    texts = f"CAST(name AS BLOB), CAST(value AS BLOB) FROM {schema}.META_DATA_CAPTURE"
    with suppress(sqlite3.OperationalError):  # not every version has that table
        told = connection.execute(f"SELECT {texts} ORDER BY rowid")
        rows = [(decoded(name or b""), decoded(value or b"")) for name, value in told]
    commands: dict[str, list[tuple[int, str]]] = {}
    for name, value in rows:
        if found := _ARGUMENT.fullmatch(name):
            commands.setdefault(found[1], []).append((int(found[2]), value))
    lists = ([value for _, value in sorted(told)] for told in commands.values())
    arguments = [secret for one in lists for secret in secrets_of(one)]
    variables = (value for name, value in rows if "ENVIRONMENT" in name.upper())
    lines = (line for variable in variables for line in variable.split("\0"))
    secrets = [*arguments, *(secret for line in lines for secret in secrets_of([line]))]
    return Redaction(
        {secret.argument: secret.shown for secret in arguments},
        worth_seeking(part for secret in secrets for part in secret.hidden),
    )


def redaction_in(database: Path) -> Redaction:
    """Return how the texts of the export ``database`` are passed on.

    Raises:
        TraceError: it cannot be read.
    """
    with edited(database, _COMPLAINT) as connection:
        return redaction_of(connection, "main")


def told_secrets(path: Path) -> Sequence[str]:
    """Return the secrets that the environments and arguments in an export tell.

    Raises:
        TraceError: it is damaged.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as c:
            return redaction_of(c, "main").parts
    except sqlite3.Error as error:
        raise TraceError(f"{path}: damaged SQLite database ({error})") from error


def remove_environments(path: Path) -> int:
    """Remove the environments from the nsys export at ``path``, in place; return how many.

    nsys keeps whole environments, of other users' processes too, as strings with NULs between
    the variables: ``length`` and ``LIKE`` of SQLite stop at the first NUL, so the rows are found
    by their bytes. The space is overwritten.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _COMPLAINT, overwrites=True) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return sum(
            connection.execute(f"UPDATE {table} SET value = ? WHERE {told}", (_REMOVED,)).rowcount
            for table, told in _ENVIRONMENTS
            if table in tables
        )


def replace_system_texts(
    path: Path, whole: Sequence[tuple[str, str]], parts: Sequence[tuple[str, str]]
) -> None:
    """Replace texts about machine and processes in the nsys export at ``path``, in place.

    From 2023 on nsys keeps each argument of the program as a row; a name of a process or a
    diagnosis may hold some, too. Names of ranges and kernels stay as they are (see
    `rename_events`), except that they share their table of strings with the others. The space of
    what is replaced is overwritten. ``whole`` and ``parts`` are (text, replacement) for values that
    are equal to the text, and for every place where it stands within one.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _COMPLAINT, overwrites=True) as connection:
        for table, column in list(_text_columns(connection)):
            for pair in whole:
                connection.execute(f"UPDATE {table} SET {column} = ?2 WHERE {column} = ?1", pair)
            for pair in parts:
                connection.execute(
                    f"UPDATE {table} SET {column} = replace({column}, ?1, ?2)"
                    f" WHERE instr({column}, ?1)",
                    pair,
                )


def rename_events(path: Path, shown: Callable[[str], str]) -> None:
    """Have the events of the nsys export at ``path`` bear their names as ``shown`` has them.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _COMPLAINT) as connection:
        changes = list(_changed_names(connection, shown))
    if changes:
        with edited(path, _COMPLAINT, overwrites=True) as connection:
            for update, names in changes:
                connection.execute(update, names)


def _changed_names(
    connection: sqlite3.Connection, shown: Callable[[str], str]
) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield the SQL that changes a name, and what it takes, of each that is shown otherwise."""
    codec = codec_of(connection)
    for table, column in _NAMES:
        if not connection.execute(_IS_THERE, (table,)).fetchone():
            continue
        update = f"UPDATE {table} SET {column} = ?2 WHERE CAST({column} AS BLOB) = ?1"
        for (raw,) in connection.execute(
            f"SELECT DISTINCT CAST({column} AS BLOB) FROM {table} WHERE typeof({column}) = 'text'"
        ):
            before = raw.decode(codec, "replace")
            after = shown(before)
            if after != before:
                yield update, (raw, after)


def _text_columns(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield (table, column), quoted, of the texts about machine and processes."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if table.startswith(_SYSTEM_TABLES):
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({quoted(table)})"):
                if kind.upper() == "TEXT":
                    yield quoted(table), quoted(column)


@contextmanager
def edited(path: Path, complaint: str, *, overwrites: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an export to change it; what goes wrong becomes a `TraceError` with ``complaint``.

    ``overwrites``: nothing of what is changed stays in free pages.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            if overwrites:
                connection.execute("PRAGMA secure_delete = ON")
            with connection:
                yield connection
            if overwrites:
                connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise TraceError(f"{path}: {complaint} ({error})") from error
