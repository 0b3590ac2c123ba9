"""``openmetrics``: what analyses tell about the window, as gauges in the text of OpenMetrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.export.request import Export, Exported, Request, answered
from traceprof.files import new_file
from traceprof.model.results import Column, Unit
from traceprof.render.escape import visible_text
from traceprof.render.formatting import plain
from traceprof.render.shown import ShownTable, table_of
from traceprof.session.answer import Document
from traceprof.session.run import Run
from traceprof.units import NS_PER_S

_ANALYSES: Final = ("steps", "breakdown", "idle", "phases", "collectives", "copies")
_PER_INSTANT: Final = frozenset({"step", "at_ns", "number"})
"""Keys of tables that tell what happened one after another: a gauge has one value."""

_RANK: Final = "rank"


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of a unit are called and written: ``suffix`` of names instead of our own."""

    own: str
    suffix: str
    unit: str = ""
    divisor: int = 1


_FORMS: Final[Mapping[Unit, _Form]] = {
    Unit.NS: _Form("_ns", "_seconds", "seconds", NS_PER_S),
    Unit.AT_NS: _Form("_ns", "_seconds", "seconds", NS_PER_S),
    Unit.BYTES: _Form("_bytes", "_bytes", "bytes"),
    Unit.BYTES_PER_S: _Form("_bytes_per_s", "_bytes_per_second", "bytes_per_second"),
    Unit.FLOP: _Form("_flop", "_flop"),
    Unit.FLOP_PER_S: _Form("_flop_per_s", "_flop_per_second"),
    Unit.PER_S: _Form("_per_s", "_per_second", "per_second"),
    Unit.RATIO: _Form("_ratio", "_ratio", "ratio"),
    Unit.FACTOR: _Form("_factor", "_factor"),
    # Names that end in "_count" belong to histograms and summaries.
    Unit.COUNT: _Form("_count", "_number"),
    Unit.NUMBER: _Form("", ""),
    Unit.FLAG: _Form("", ""),
}


@dataclass
class _Families:
    """Gauges with their samples, in the order in which they were found."""

    gauges: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    count: int = 0

    def labels(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return what is known of ``values`` as labels."""
        known = {key: plain(value) for key, value in values.items()}
        return {key: str(one) for key, one in known.items() if one is not None}

    def add(self, prefix: str, column: Column, value: Any, labels: Mapping[str, str]) -> None:
        """Add a value of a declared column, unless it is not known."""
        number = plain(value)
        is_number = isinstance(number, bool | int | float) and math.isfinite(number)
        form = _FORMS.get(column.unit)
        if form is None or not is_number:
            return
        name = _name(prefix, column, form)
        lines = self.gauges.setdefault(name, _head(name, form.unit, column.meaning))
        lines.append(f"{self._own(name, labels)} {_number(number, form.divisor)}")
        self.count += 1

    def _own(self, name: str, labels: Mapping[str, str]) -> str:
        """Return a sample's name with its labels; where masking made some alike, with a number."""
        sample, place = _sample(name, labels), 2
        while sample in self.seen:
            sample, place = _sample(name, {**labels, "row": str(place)}), place + 1
        self.seen.add(sample)
        return sample


def _export(run: Run, request: Request) -> Exported:
    for option, value in (("--tables", request.tables), ("--ranks", request.ranks)):
        if value is not None:
            raise UsageError(
                f"{option} cannot be used with --to openmetrics, which exports the whole run"
            )
    done = Exported(request.output)
    document = answered(run, request.results or _ANALYSES, done)
    families = _Families()
    _add_results(families, document)
    lines = [*_about(families, document)]
    lines += [line for family in families.gauges.values() for line in family]
    with new_file(request.output, force=request.force, inputs=run.paths) as target:
        target.write_text("\n".join([*lines, "# EOF"]) + "\n", "utf-8", "replace")
    done.n_rows = families.count
    return done


def _about(families: _Families, document: Document) -> Iterator[str]:
    """Yield what says of which window the gauges are."""
    about = {
        "path": document.info.path,
        "profiler": document.info.profiler,
        "window": document.selection.label,
    }
    told = families.labels(about)
    yield "# TYPE traceprof_trace info"
    yield "# HELP traceprof_trace the trace and the window of the gauges"
    yield f"{_sample('traceprof_trace_info', told)} 1"
    name = "traceprof_window_seconds"
    yield from _head(name, "seconds", "the length of the window")
    yield f"{name} {_number(document.selection.window.duration_ns, NS_PER_S)}"


def _add_results(families: _Families, document: Document) -> None:
    for name, result in document.results.items():
        for scalar in result.spec.scalars:
            families.add(name, scalar, result.scalars.get(scalar.name), {})
        table = table_of(result, document.ranks)
        if _PER_INSTANT.isdisjoint(result.spec.tables[0].keys):
            _add_table(families, name if table.name == name else f"{name}_{table.name}", table)


def _add_table(families: _Families, prefix: str, table: ShownTable) -> None:
    """Add each measure of each row, with the keys of the row (and its rank) as labels."""
    keys = [column for column in table if column.is_key or column.name == _RANK]
    for row in table.rows():
        labels = families.labels({key.name: row[key.name] for key in keys})
        for column in table:
            if column not in keys:
                families.add(prefix, column, row[column.name], labels)


def _name(prefix: str, column: Column, form: _Form) -> str:
    base = f"_{column.name}".removesuffix(form.own) if form.own else f"_{column.name}"
    words = f"traceprof_{prefix}{base}{form.suffix}"
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in words)


def _head(name: str, unit: str, meaning: str) -> list[str]:
    lines = [f"# TYPE {name} gauge"]
    if unit:
        lines.append(f"# UNIT {name} {unit}")
    return [*lines, f"# HELP {name} {_escaped(meaning)}"]


def _sample(name: str, labels: Mapping[str, str]) -> str:
    told = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{name}{{{told}}}" if told else name


def _escaped(text: str) -> str:
    """Return a text as HELP and labels have it, without what a terminal obeys."""
    for plain_letter, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n")):
        text = text.replace(plain_letter, written)
    return visible_text(text)


def _number(value: float, divisor: int) -> str:
    """Return a number as it is written; ns in seconds keep all of their digits."""
    if divisor == 1:
        return repr(value + 0)  # of a flag 0 or 1
    if not float(value).is_integer():
        return repr(value / divisor)
    whole, rest = divmod(abs(int(value)), divisor)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{rest:09}" if rest else f"{sign}{whole}"


EXPORTS: Final[Mapping[str, Export]] = {"openmetrics": _export}
