"""What of an nsys export is not passed on: environments, outputs of programs, and secrets."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import field
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.shared.told_secrets import sought
from traceprof.formats.sqlite.cut_strings import codec_of, text_by
from traceprof.formats.sqlite.table_names import quoted
from traceprof.model.cutting import REMOVED
from traceprof.secrets import MASK, masked_text, secrets_of
from traceprof.values import dataclass

__all__ = ["Passing", "passing_in", "passing_of", "told_secrets"]

_ARGUMENT: Final = re.compile(r"(.*):ARGUMENT_(\d+)")


@dataclass(frozen=True, slots=True)
class Passing:
    """How texts are passed on.

    ``whole`` are arguments of the program that are masked, ``parts`` the secrets in them and in
    the environment, wherever they stand. ``encoding`` is how the database writes texts.
    """

    encoding: str
    whole: dict[str, str] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def register(self, connection: sqlite3.Connection) -> None:
        """Give SQL the functions ``system_text`` and ``event_text``, of and to bytes."""
        for name, function in (("system_text", self._system), ("event_text", self._event)):
            connection.create_function(name, 1, function, deterministic=True)

    def _system(self, value: bytes) -> bytes:
        text = value.decode(self.encoding, "surrogateescape")
        if _is_environment(text):
            return REMOVED.encode(self.encoding)
        shown = masked_text(self._without_parts(self.whole.get(text, text)))
        return value if shown == text else shown.encode(self.encoding, "surrogateescape")

    def _event(self, value: bytes) -> bytes:
        text = value.decode(self.encoding, "surrogateescape")
        if _is_environment(text):
            return REMOVED.encode(self.encoding)
        shown = self._without_parts(text)
        return value if shown == text else shown.encode(self.encoding, "surrogateescape")

    def _without_parts(self, text: str) -> str:
        for part in self.parts:
            text = text.replace(part, MASK)
        return text

    def shown(self, table: str, column: str) -> str:
        """Return the SQL of a text about machine and processes, in place of the column."""
        text = text_by("system_text", quoted(column))
        if table == "META_DATA_CAPTURE" and column == "value":
            return f"CASE WHEN name LIKE '%ENVIRONMENT%' THEN '{REMOVED}' ELSE {text} END"
        if table == "TARGET_INFO_SYSTEM_ENV" and column == "value":
            return f"CASE WHEN name = 'DeviceEnvironment' THEN '{REMOVED}' ELSE {text} END"
        return text

    @property
    def removed(self) -> str:
        """The SQL of what stands in place of what a program printed."""
        return f"'{REMOVED}'"

    def shown_string(self, *, is_event: bool) -> str:
        """Return the SQL of a string that events refer to, or what is about the machine."""
        return text_by("event_text" if is_event else "system_text", "t.value")


def _is_environment(text: str) -> bool:
    """Return whether it is a whole environment: nsys writes NULs between the variables."""
    return "\0" in text and "=" in text


def passing_of(connection: sqlite3.Connection, schema: str) -> Passing:
    """Return how the texts of an export are passed on, by what it says of its program."""
    codec = codec_of(connection)
    rows: list[tuple[str, str]] = []
    with suppress(sqlite3.OperationalError):  # not every version has that table
        rows = [
            (_text(name), _text(value))
            for name, value in connection.execute(
                "SELECT CAST(name AS BLOB), CAST(value AS BLOB)"
                f" FROM {schema}.META_DATA_CAPTURE ORDER BY rowid"
            )
        ]
    commands: dict[str, list[tuple[int, str]]] = {}
    for name, value in rows:
        if found := _ARGUMENT.fullmatch(name):
            commands.setdefault(found[1], []).append((int(found[2]), value))
    found_secrets = [
        secret
        for arguments in commands.values()
        for secret in secrets_of([value for _, value in sorted(arguments)])
    ]
    variables = [value for name, value in rows if "ENVIRONMENT" in name.upper()]
    parts = {part for secret in found_secrets for part in secret.hidden}
    for variable in variables:
        for line in variable.split("\0"):
            parts |= {part for secret in secrets_of([line]) for part in secret.hidden}
    return Passing(
        codec,
        {secret.argument: secret.shown for secret in found_secrets},
        sought(parts),
    )


def passing_in(database: Path) -> Passing:
    """Return how the texts of the export ``database`` are passed on.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        with closing(sqlite3.connect(database)) as connection:
            return passing_of(connection, "main")
    except sqlite3.Error as error:
        raise TraceError(f"{database}: cannot be cleaned of secrets ({error})") from error


def told_secrets(path: Path) -> Sequence[str]:
    """Return the secrets that the environments and arguments in an export tell.

    Raises:
        TraceError: it is damaged.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        ) as c:
            return passing_of(c, "main").parts
    except sqlite3.Error as error:
        raise TraceError(f"{path}: a damaged SQLite database ({error})") from error


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
