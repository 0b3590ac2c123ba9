"""Mask or remove secrets of an nsys export: environments, arguments, and program output."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.shared.redaction import secrets_to_search, without_secrets
from traceprof.formats.sqlite.columns import decoded
from traceprof.formats.sqlite.schema import codec_of, quoted, register_text, text_by
from traceprof.model.cutting import REMOVED
from traceprof.secrets import masked_text, secrets_of

_ARGUMENT: Final = re.compile(r"(.*):ARGUMENT_(\d+)")
_ERROR_TEXT: Final = "secrets cannot be removed"
_REMOVED: Final = "[environment removed by traceprof]"
_INSTR_OF_BYTES: Final = "instr(CAST(value AS BLOB)"
_NAMED_ENVIRONMENTS: Final = {
    "TARGET_INFO_SYSTEM_ENV": "name = 'DeviceEnvironment'",
    "META_DATA_CAPTURE": "name LIKE '%ENVIRONMENT%'",
}
"""Table of names and values → SQL condition for rows whose value is an environment."""
_ENVIRONMENTS: Final = {
    "StringIds": f"{_INSTR_OF_BYTES}, x'00') > 0 AND {_INSTR_OF_BYTES}, CAST('=' AS BLOB)) > 0",
    **_NAMED_ENVIRONMENTS,
}
"""Table that contains environments → SQL condition for these rows."""
_NAMES: Final = (("NVTX_EVENTS", "text"), ("StringIds", "value"))
_TABLE_EXISTS: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_SYSTEM_TABLES: Final = (
    *("StringIds", "META_DATA_", "TARGET_INFO_", "PROCESSES", "ThreadNames", "EXPORT_META_DATA"),
    *("DIAGNOSTIC_EVENT", "ANALYSIS_"),
)


@dataclass(frozen=True, slots=True)
class Redaction:
    """The rules for masking texts of one export.

    ``whole`` maps arguments of the program to their masked form. ``parts`` are the secrets in
    arguments and environment, which are masked anywhere in a text.
    """

    whole: dict[str, str] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def register(self, connection: sqlite3.Connection) -> None:
        """Register the SQL functions ``system_text`` and ``event_text``, from bytes to bytes."""

        def system(text: str) -> str:
            """Return the masked form of a text about machine and processes."""
            plain = without_secrets(self.whole.get(text, text), self.parts)
            return REMOVED if _is_environment(text) else masked_text(plain)

        def event(text: str) -> str:
            """Return the masked form of a text of an event."""
            return REMOVED if _is_environment(text) else without_secrets(text, self.parts)

        register_text(connection, "system_text", system)
        register_text(connection, "event_text", event)

    def shown(self, table: str, column: str) -> str:
        """Return the SQL of the masked value of a column with texts about machine and processes."""
        text = text_by("system_text", quoted(column))
        if column == "value" and table in _NAMED_ENVIRONMENTS:
            return f"CASE WHEN {_NAMED_ENVIRONMENTS[table]} THEN '{REMOVED}' ELSE {text} END"
        return text


def _is_environment(text: str) -> bool:
    """Return whether a text is a whole environment: nsys writes NULs between the variables."""
    return "\0" in text and "=" in text


def redaction_of(connection: sqlite3.Connection, schema: str) -> Redaction:
    """Return the masking rules of an export, from its arguments and environment."""
    rows: list[tuple[str, str]] = []
    texts = f"CAST(name AS BLOB), CAST(value AS BLOB) FROM {schema}.META_DATA_CAPTURE"
    with suppress(sqlite3.OperationalError):  # some versions lack the table
        raw = connection.execute(f"SELECT {texts} ORDER BY rowid")
        rows = [(decoded(name or b""), decoded(value or b"")) for name, value in raw]
    commands: dict[str, list[tuple[int, str]]] = {}
    for name, value in rows:
        if found := _ARGUMENT.fullmatch(name):
            commands.setdefault(found[1], []).append((int(found[2]), value))
    argument_lists = ([value for _, value in sorted(command)] for command in commands.values())
    arguments = [secret for texts_of in argument_lists for secret in secrets_of(texts_of)]
    environments = (value for name, value in rows if "ENVIRONMENT" in name.upper())
    lines = (line for environment in environments for line in environment.split("\0"))
    secrets = [*arguments, *(secret for line in lines for secret in secrets_of([line]))]
    return Redaction(
        {secret.argument: secret.shown for secret in arguments},
        secrets_to_search(part for secret in secrets for part in secret.hidden),
    )


def redaction_in(database: Path) -> Redaction:
    """Return the masking rules of the export ``database``.

    Raises:
        TraceError: the export cannot be read.
    """
    with edited(database, _ERROR_TEXT) as connection:
        return redaction_of(connection, "main")


def find_secrets(path: Path) -> Sequence[str]:
    """Return the secrets in the environments and arguments of an export.

    Raises:
        TraceError: the export is damaged.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as connection:
            return redaction_of(connection, "main").parts
    except sqlite3.Error as error:
        raise TraceError(f"{path}: damaged SQLite database ({error})") from error


def remove_environments(path: Path) -> int:
    """Remove the environments from the nsys export at ``path``; return the number of rows.

    The file is changed in place. nsys stores whole environments, also of processes of other users,
    as strings with NULs between the variables. ``length`` and ``LIKE`` of SQLite stop at the first
    NUL, so the rows are found by their bytes. The freed space is overwritten.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _ERROR_TEXT, overwrites=True) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return sum(
            connection.execute(
                f"UPDATE {table} SET value = ? WHERE {condition}", (_REMOVED,)
            ).rowcount
            for table, condition in _ENVIRONMENTS.items()
            if table in tables
        )


def replace_system_texts(
    path: Path, whole: Sequence[tuple[str, str]], parts: Sequence[tuple[str, str]]
) -> None:
    """Replace texts about machine and processes in the nsys export at ``path``, in place.

    Since 2023 nsys stores each argument of the program as a row; process names and diagnostics may
    contain arguments too. Names of ranges and kernels stay unchanged (see `rename_events`), except
    if they are in the table of strings that they share with the other texts. The freed space is
    overwritten. ``whole`` and ``parts`` are pairs (text, replacement): ``whole`` replaces values
    that are equal to the text, ``parts`` every occurrence of the text in a value.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _ERROR_TEXT, overwrites=True) as connection:
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
    """Rename the events in the nsys export at ``path``, in place; ``shown`` maps each name.

    Raises:
        TraceError: the export cannot be changed.
    """
    with edited(path, _ERROR_TEXT) as connection:
        changes = list(_changed_names(connection, shown))
    if changes:
        with edited(path, _ERROR_TEXT, overwrites=True) as connection:
            for update, names in changes:
                connection.execute(update, names)


def _changed_names(
    connection: sqlite3.Connection, shown: Callable[[str], str]
) -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield the UPDATE statement and its parameters for each name that ``shown`` changes."""
    codec = codec_of(connection)
    for table, column in _NAMES:
        if not connection.execute(_TABLE_EXISTS, (table,)).fetchone():
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
    """Yield (table, column), quoted, for the texts about machine and processes."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if table.startswith(_SYSTEM_TABLES):
            for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({quoted(table)})"):
                if kind.upper() == "TEXT":
                    yield quoted(table), quoted(column)


@contextmanager
def edited(path: Path, complaint: str, *, overwrites: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an export to change it; an SQLite error becomes a `TraceError` with ``complaint``.

    ``overwrites``: changed and deleted data is overwritten in the file.
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
