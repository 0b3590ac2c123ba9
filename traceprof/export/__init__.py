"""Export traces and results to files for other tools, with one exporter for each format."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from traceprof.errors import UsageError, missing_extra
from traceprof.registries import Registry

if TYPE_CHECKING:
    from traceprof.export.request import Export


@dataclass(frozen=True, slots=True)
class Exporter:
    """One format. ``traceprof.export.<module>`` has its function in ``EXPORTS``, by name."""

    name: str
    summary: str
    module: str

    def load(self) -> Export:
        """Import the module, and return the function that writes this format.

        Raises:
            UsageError: the format needs a library that is not installed.
        """
        try:
            export: Export = import_module(f"traceprof.export.{self.module}").EXPORTS[self.name]
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"--to {self.name} needs", "arrow", "pyarrow") from None
        return export


EXPORTERS: Final[Registry[Exporter]] = Registry(
    "export",
    (
        Exporter("perfetto", "Chrome trace-event JSON for ui.perfetto.dev", "perfetto"),
        Exporter("chrome", "the same JSON for chrome://tracing", "perfetto"),
        Exporter("parquet", "a folder of Parquet files, one per table", "tables"),
        Exporter("arrow", "a folder of Arrow (Feather) files, one per table", "tables"),
        Exporter("csv", "a folder of CSV files, or one file with --tables NAME", "csv_files"),
        Exporter("tensorboard", "TensorBoard scalars per step, one folder per rank", "tensorboard"),
        Exporter("openmetrics", "OpenMetrics text with gauges for the window", "openmetrics"),
    ),
)
"""The formats in the order of the help."""


def exporter_called(name: str) -> Exporter:
    """Return the exporter called ``name``.

    Raises:
        UsageError: the format does not exist.
    """
    for exporter in EXPORTERS:
        if exporter.name == name:
            return exporter
    known = ", ".join(exporter.name for exporter in EXPORTERS)
    raise UsageError(f"--to {name}: choose one of {known}")
