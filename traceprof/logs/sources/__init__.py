"""Registry of the programs whose logs can be read: their declared lines and their readers."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.logs.source import LogReader, LogSource, make_source
from traceprof.registries import Registry

_LINES: Final = Path(__file__).with_name("lines.toml")

SOURCES: Final[Registry[LogSource]] = Registry(
    "source of logs",
    (make_source(name, table) for name, table in tomllib.loads(_LINES.read_text("utf-8")).items()),
)
"""All sources; those with the more distinctive lines come first."""


def reader_of(source: LogSource) -> type[LogReader]:
    """Return the class that reads the lines of a source."""
    if not source.reader:
        return LogReader
    module, _, name = source.reader.partition(":")
    found: type[LogReader] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
