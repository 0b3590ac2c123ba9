"""The programs whose logs can be read: their lines, and who reads what these do not say."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.logs.source import LogReader, LogSource, source_of
from traceprof.registries import Registry

_LINES: Final = Path(__file__).with_name("lines.toml")

SOURCES: Final[Registry[LogSource]] = Registry(
    "source of logs",
    (source_of(name, table) for name, table in tomllib.loads(_LINES.read_text("utf-8")).items()),
)
"""Those first whose lines are the more telling."""


def reader_of(source: LogSource) -> type[LogReader]:
    """Return who reads the lines of a source."""
    if not source.reader:
        return LogReader
    module, _, name = source.reader.partition(":")
    found: type[LogReader] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
