"""Export results of the window as gauges in the ``openmetrics`` text format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.export.request import Export, Exported, Request, answer_analyses
from traceprof.files import new_file
from traceprof.model.results import Column, Unit
from traceprof.render.escape import visible_text
from traceprof.render.formatting import plain
from traceprof.render.shown import ShownTable, table_of
from traceprof.session.answer import Document
from traceprof.session.run import Run
from traceprof.units import NS_PER_S

_DEFAULT_ANALYSES: Final = ("steps", "breakdown", "idle", "phases", "collectives", "copies")
_SEQUENCE_KEYS: Final = frozenset({"step", "at_ns", "number"})
"""Keys of tables with a row per instant. Such tables are omitted: a gauge has only one value."""

_RANK: Final = "rank"


@dataclass(frozen=True, slots=True)
class _UnitForm:
    """How to name and scale values of a unit.

    ``suffix`` replaces ``column_suffix`` in the name. ``unit`` is the unit of OpenMetrics.
    """

    column_suffix: str
    suffix: str
    unit: str = ""
    divisor: int = 1


_UNIT_FORMS: Final[Mapping[Unit, _UnitForm]] = {
    Unit.NS: _UnitForm("_ns", "_seconds", "seconds", NS_PER_S),
    Unit.AT_NS: _UnitForm("_ns", "_seconds", "seconds", NS_PER_S),
    Unit.BYTES: _UnitForm("_bytes", "_bytes", "bytes"),
    Unit.BYTES_PER_S: _UnitForm("_bytes_per_s", "_bytes_per_second", "bytes_per_second"),
    Unit.FLOP: _UnitForm("_flop", "_flop"),
    Unit.FLOP_PER_S: _UnitForm("_flop_per_s", "_flop_per_second"),
    Unit.PER_S: _UnitForm("_per_s", "_per_second", "per_second"),
    Unit.RATIO: _UnitForm("_ratio", "_ratio", "ratio"),
    Unit.FACTOR: _UnitForm("_factor", "_factor"),
    # OpenMetrics reserves the suffix "_count" for histograms and summaries.
    Unit.COUNT: _UnitForm("_count", "_number"),
    Unit.NUMBER: _UnitForm("", ""),
    Unit.FLAG: _UnitForm("", ""),
}


@dataclass
class _Families:
    """Gauges with their lines (header and samples) by name, in the order of addition.

    ``seen`` contains the samples with labels, ``count`` is the number of values.
    """

    gauges: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    count: int = 0

    def labels(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the known ``values`` as texts of labels."""
        plain_values = {key: plain(value) for key, value in values.items()}
        return {key: str(value) for key, value in plain_values.items() if value is not None}

    def add(self, prefix: str, column: Column, value: Any, labels: Mapping[str, str]) -> None:
        """Add a sample with the value of a declared column, if the value is a known number."""
        number = plain(value)
        is_number = isinstance(number, bool | int | float) and math.isfinite(number)
        form = _UNIT_FORMS.get(column.unit)
        if form is None or not is_number:
            return
        name = _metric_name(prefix, column, form)
        lines = self.gauges.setdefault(name, _metric_header(name, form.unit, column.meaning))
        lines.append(f"{self._unique_sample(name, labels)} {_number(number, form.divisor)}")
        self.count += 1

    def _unique_sample(self, name: str, labels: Mapping[str, str]) -> str:
        """Return the name of a sample with its labels.

        Masking of secrets can make labels equal. A label "row" distinguishes these samples.
        """
        sample, row = _sample(name, labels), 2
        while sample in self.seen:
            sample, row = _sample(name, {**labels, "row": str(row)}), row + 1
        self.seen.add(sample)
        return sample


def _export(run: Run, request: Request) -> Exported:
    for option, value in (("--tables", request.tables), ("--ranks", request.ranks)):
        if value is not None:
            raise UsageError(
                f"{option} cannot be used with --to openmetrics, which exports the whole run"
            )
    exported = Exported(request.output)
    document = answer_analyses(run, request.results or _DEFAULT_ANALYSES, exported)
    families = _Families()
    _add_results(families, document)
    lines = [*_describe_source(families, document)]
    lines += [line for family in families.gauges.values() for line in family]
    with new_file(request.output, force=request.force, inputs=run.paths) as target:
        target.write_text("\n".join([*lines, "# EOF"]) + "\n", "utf-8", "replace")
    exported.n_rows = families.count
    return exported


def _describe_source(families: _Families, document: Document) -> Iterator[str]:
    """Yield the lines that describe the trace and the window of the gauges."""
    labels = families.labels(
        {
            "path": document.info.path,
            "profiler": document.info.profiler,
            "window": document.selection.label,
        }
    )
    yield "# TYPE traceprof_trace info"
    yield "# HELP traceprof_trace the trace and the window of the gauges"
    yield f"{_sample('traceprof_trace_info', labels)} 1"
    name = "traceprof_window_seconds"
    yield from _metric_header(name, "seconds", "the length of the window")
    yield f"{name} {_number(document.selection.window.duration_ns, NS_PER_S)}"


def _add_results(families: _Families, document: Document) -> None:
    """Add the scalars and the main table of each result."""
    for name, result in document.results.items():
        for scalar in result.spec.scalars:
            families.add(name, scalar, result.scalars.get(scalar.name), {})
        table = table_of(result, document.ranks)
        if _SEQUENCE_KEYS.isdisjoint(result.spec.tables[0].keys):
            _add_table(families, name if table.name == name else f"{name}_{table.name}", table)


def _add_table(families: _Families, prefix: str, table: ShownTable) -> None:
    """Add each measure of each row, with the keys of the row (and its rank) as labels."""
    keys = [column for column in table if column.is_key or column.name == _RANK]
    for row in table.rows():
        labels = families.labels({key.name: row[key.name] for key in keys})
        for column in table:
            if column not in keys:
                families.add(prefix, column, row[column.name], labels)


def _metric_name(prefix: str, column: Column, form: _UnitForm) -> str:
    """Return the name of the gauge for a column: ``traceprof_steps_duration_seconds``."""
    base = f"_{column.name}".removesuffix(form.column_suffix)
    name = f"traceprof_{prefix}{base}{form.suffix}"
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)


def _metric_header(name: str, unit: str, meaning: str) -> list[str]:
    lines = [f"# TYPE {name} gauge"]
    if unit:
        lines.append(f"# UNIT {name} {unit}")
    return [*lines, f"# HELP {name} {_escaped(meaning)}"]


def _sample(name: str, labels: Mapping[str, str]) -> str:
    label_text = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{name}{{{label_text}}}" if label_text else name


def _escaped(text: str) -> str:
    """Return a text escaped for HELP lines and labels, with visible control characters."""
    for plain_letter, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain_letter, written)
    return visible_text(text)


def _number(value: float, divisor: int) -> str:
    """Return ``value / divisor`` as text; integers of ns keep all digits in seconds."""
    if divisor == 1:
        return repr(value + 0)  # a flag becomes 0 or 1
    if not float(value).is_integer():
        return repr(value / divisor)
    whole, remainder = divmod(abs(int(value)), divisor)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{remainder:09}" if remainder else f"{sign}{whole}"


EXPORTS: Final[Mapping[str, Export]] = {"openmetrics": _export}
