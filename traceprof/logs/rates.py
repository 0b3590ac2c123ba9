"""Tables of rates: CSV files with one run in a row, such as people keep of their benchmarks."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.logs.gathered import Gathered
from traceprof.logs.lines import RawLines
from traceprof.logs.summary import kept_rows
from traceprof.model.results import Unit
from traceprof.model.summary import SourceFile, Summary

_NAMES: Final = ("name", "run")
_MOST_COLUMNS: Final = 500
_DELIMITERS: Final = ",;\t|"
_UNITS: Final = (
    (re.compile(r"^(.*)_(?:in_)?(?:ms|msec|milliseconds)$"), "ns", Unit.NS, 1e6),
    (re.compile(r"^(.*)_(?:in_)?(?:us|usec)$"), "ns", Unit.NS, 1e3),
    (re.compile(r"^(.*)_(?:in_)?ns$"), "ns", Unit.NS, 1.0),
    (re.compile(r"^(.*(?<!_per))_(?:in_)?(?:s|sec|secs|seconds)$"), "ns", Unit.NS, 1e9),
    (re.compile(r"^(.*)_(?:in_)?(?:min|minutes)$"), "ns", Unit.NS, 60e9),
    (re.compile(r"^(.*(?<!_per))_(?:in_)?(?:h|hours)$"), "ns", Unit.NS, 3600e9),
    (re.compile(r"^(.*)_(?:in_)?(?:gb|gbytes)$"), "bytes", Unit.BYTES, 1e9),
    (re.compile(r"^(.*)_(?:in_)?(?:mb|mbytes)$"), "bytes", Unit.BYTES, 1e6),
)
_SIZES: Final = {
    "devices_count": "gpus|n_gpus|num_gpus|gpu_count|gpus_count|devices|n_devices|num_devices"
    "|devices_count|accelerators|number_of_gpus|gpu",
    "world_size": "world_size|ranks|n_ranks|workers|n_workers|np|processes|procs|ranks_count",
    "nodes_count": "nodes|n_nodes|num_nodes|nnodes|hosts|machines|nodes_count",
    "global_batch_count": "global_batch|global_batch_size|total_batch|total_batch_size"
    "|batch_global",
    "batch_per_device_count": "batch|batch_size|bs|local_batch|local_batch_size|batch_per_device"
    "|batch_per_gpu|per_device_batch_size",
}
_RATE: Final = re.compile(
    r"(?:throughput_?)?(?P<what>images?|imgs?|samples?|examples?|sequences?|seqs?|tokens?|words?"
    r"|frames?|steps?|iterations?|iters?|it)_?(?:per_?s(?:ec(?:ond)?)?|/s(?:ec)?|_s|ps)"
    r"(?P<each>_per_(?:gpu|device|rank|worker|node))?"
)
_RATE_NAMES: Final = {
    "samples": r"image|img|sample|example|sequence|seq",
    "tokens": r"token|word",
    "frames": r"frame",
    "steps": r"step|iter|it$",
}
_PRINTED: Final = frozenset(
    {"speedup", "speed_up", "speedup_factor", "efficiency", "scaling_efficiency"}
)
_EACH: Final = {"gpu": "device", "worker": "rank"}
_UNKNOWN: Final = frozenset({"", "-", "–", "—", "na", "n/a", "nan", "none", "null", "?"})


class _Measure(NamedTuple):
    """What a column of numbers is."""

    name: str
    unit: Unit
    scope: str = "run"
    better: str = ""
    factor: float = 1.0


def read_table(path: Path) -> list[Summary]:
    """Return the runs that the rows of a CSV file tell of, in their order.

    Columns are recognised by name: how many GPUs, ranks or nodes, rates (images_per_s, tokens/s …),
    lengths of time and batch sizes become measures, "printed_…" a measure as it was printed, every
    column with a text in it a label, "name" or "run" the name of the run.

    Raises:
        TraceError: the file cannot be read, or is no table in which a column is a rate or a size.
    """
    rows = _rows(path)
    if len(rows) < 2:
        raise TraceError(f"{path}: no table of rates: it has no rows below a heading")
    names = [_plain(name) for name in rows[0]]
    body = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    named = {i: found for i, name in enumerate(names) if name and (found := _measure_of(name))}
    measures = {
        i: own for i, own in named.items() if all(_number(row[i]) is not None for row in body)
    }
    is_told = any(
        own.name in _SIZES or own.name.split("_per_s")[0] in _RATE_NAMES
        for own in measures.values()
    )
    if not is_told or "" in names or len(set(names)) < len(names):
        raise TraceError(
            f"{path}: no table of rates: no column such as images_per_s, samples_per_s or gpus"
        )
    return [_run_of(path, i, row, names, measures) for i, row in enumerate(body)]


def _rows(path: Path) -> list[list[str]]:
    lines = [line for line in RawLines(path, limit=1 << 24) if not line.startswith("#")]
    lines = [line for line in lines if line.strip()]
    if not lines or len(lines[0]) > 20_000:
        return []
    delimiter = max(_DELIMITERS, key=lines[0].count)
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []
    width = len(rows[0])
    if not 2 <= width <= _MOST_COLUMNS or any(len(row) > width for row in rows):
        return []
    return [row + [""] * (width - len(row)) for row in rows]


def _plain(name: str) -> str:
    """Return the name of a column as all are written here: small letters and underscores."""
    name = re.sub(r"[\[(](.*?)[\])]", r"_\1", name.strip().lower())
    name = name.replace("%", "percent").replace("/s", "_per_s").replace("#", "n_")
    name = re.sub(r"_per_s(?:ec|econd)?s?\b", "_per_s", name)
    return re.sub(r"_+", "_", re.sub(r"[^\w]+", "_", name)).strip("_")


def _measure_of(name: str) -> _Measure | None:
    """Return which measure a column of that name is; None: it is none that is known."""
    if name.startswith("printed_"):
        return _Measure(name, Unit.NUMBER)
    for measure, names in _SIZES.items():
        if name in names.split("|"):
            scope = "device" if measure.startswith("batch_per") else "run"
            return _Measure(measure, Unit.COUNT, scope)
    rate = _RATE.fullmatch(name)
    return _rate_of(rate) if rate is not None else _length_or_quality(name)


def _length_or_quality(name: str) -> _Measure | None:
    for pattern, suffix, unit, factor in _UNITS:
        if (match := pattern.match(name)) is not None and match[1]:
            better = "lower" if unit is Unit.NS else ""
            return _Measure(f"{match[1]}_{suffix}", unit, better=better, factor=factor)
    if name.endswith(("_percent", "_ratio", "_count", "accuracy", "top1", "top5", "loss")):
        return _Measure(name, Unit.NUMBER)
    return _Measure(f"printed_{name}", Unit.NUMBER) if name in _PRINTED else None


def _rate_of(rate: re.Match[str]) -> _Measure:
    what = next(name for name, words in _RATE_NAMES.items() if re.match(words, rate["what"]))
    name = f"{what}_per_s"
    if not rate["each"]:
        return _Measure(name, Unit.PER_S, "run", "higher")
    each = rate["each"].removeprefix("_per_")
    each = _EACH.get(each, each)
    return _Measure(f"{name}_per_{each}", Unit.PER_S, each, "higher")


def _number(cell: str) -> float | None:
    """Return a cell as a number; NaN where it says that it is not known, None: it is a text."""
    text = cell.strip().lower()
    if text in _UNKNOWN:
        return math.nan
    text = text.removesuffix("%").removesuffix("x").strip()
    if re.fullmatch(r"\d{1,3}(?:[, ']\d{3})+(?:\.\d+)?", text):
        text = re.sub(r"[, ']", "", text)
    try:
        return float(text)
    except ValueError:
        return None


def _run_of(
    path: Path, i: int, row: Sequence[str], names: Sequence[str], measures: dict[int, _Measure]
) -> Summary:
    run = Gathered()
    for column, own in measures.items():
        value = (_number(row[column]) or 0.0) * own.factor
        run.measure(own.name, value, unit=own.unit, scope=own.scope, better=own.better)
    cells = [(name, cell.strip()) for name, cell in zip(names, row, strict=True) if cell.strip()]
    known = {names[column] for column in measures} | set(_NAMES)
    labels = {name: cell for name, cell in cells if name not in known}
    return Summary(
        next((cell for name, cell in cells if name in _NAMES), f"{path.stem}:{i + 1}"),
        origin="table",
        labels=labels,
        sources=(SourceFile(str(path), "table", path.stat().st_size),),
        tables={"measures": kept_rows("measures", [*run.measures.values()])},
    )
