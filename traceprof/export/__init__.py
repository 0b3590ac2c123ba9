"""Passing traces and results on to other tools: one exporter for each form they read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceprof.errors import UsageError
from traceprof.registries import Registry

if TYPE_CHECKING:
    from traceprof.export.request import Export


@dataclass(frozen=True, slots=True)
class Exporter:
    """One form: ``traceprof.export.<module>`` has ``EXPORTS``, loaded when it is used."""

    name: str
    summary: str
    module: str

    def load(self) -> Export:
        """Return what writes it."""
        export: Export = import_module(f"traceprof.export.{self.module}").EXPORTS[self.name]
        return export


EXPORTERS: Final[Registry[Exporter]] = Registry(
    "export",
    (
        Exporter("perfetto", "Chrome trace-event JSON for ui.perfetto.dev", "perfetto"),
        Exporter("chrome", "the same JSON for chrome://tracing", "perfetto"),
        Exporter("parquet", "a folder of Parquet files, one per table", "tables"),
        Exporter("arrow", "a folder of Arrow (Feather) files, one per table", "tables"),
        Exporter("csv", "a folder of CSV files, or one file with --tables NAME", "tables"),
        Exporter("tensorboard", "TensorBoard scalars per step, one folder per rank", "tensorboard"),
        Exporter("openmetrics", "OpenMetrics text with gauges for the window", "openmetrics"),
    ),
)
"""The forms by name, in the order of the help."""


def exporter_called(name: str) -> Exporter:
    """Return the exporter called ``name``.

    Raises:
        UsageError: there is none.
    """
    for exporter in EXPORTERS:
        if exporter.name == name:
            return exporter
    known = ", ".join(one.name for one in EXPORTERS)
    raise UsageError(f"--to {name}: choose one of {known}")
