"""Read samples of GPUs: CSV of nvidia-smi and rocm-smi, and nvidia-smi dmon and dcgmi dmon."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.logs.lines import LogClock, RawLines
from traceprof.logs.summary import summary_table
from traceprof.model.results import Note, Unit
from traceprof.model.summary import SourceFile, Summary

_MAX_SAMPLES: Final = 2_000_000
_MAX_POINTS_PER_SERIES: Final = 2_000
_MAX_HEAD_LINES: Final = 200
_NUMBER: Final = re.compile(
    r"\(?(?P<number>[-+]?\d[\d.]{0,30}+)\s?(?P<unit>%|[A-Za-z]{1,5}+)?\)?", re.ASCII
)
_UNIT_IN_NAME: Final = re.compile(r"[\[(](?P<unit>%|[A-Za-z/]{1,6}+)[\])]$")
_STAMP: Final = re.compile(r"(?:\d{4}[/-]\d\d[/-]\d\d|\d{8})[ T]\d\d:\d\d:\d\d")
_TIME_OF_DAY: Final = re.compile(r"\d\d:\d\d:\d\d")
_DMON_MARK: Final = re.compile(r"#\s*+(?:Date\s++|Time\s++)*gpu\s")
_BYTES: Final = {"MiB": 2.0**20, "MB": 2.0**20, "GiB": 2.0**30, "B": 1.0, "": 2.0**20}

CLOCK: Final = "sm_clock_mhz"
HEAT: Final = "throttled_by_heat"
POWER: Final = "throttled_by_power"
LOAD: Final = "utilization_percent"
_NAMES: Final = {
    CLOCK: (
        *("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr", "pclk", "gclk"),
        *("smclk", "sclk clock speed:", "gfx_clk", "gfx_clock"),
    ),
    "memory_clock_mhz": (
        "clocks.current.memory",
        "clocks.mem",
        "mclk",
        "mmclk",
        "mclk clock speed:",
    ),
    "power_watts": (
        *("power.draw", "power.draw.instant", "power.draw.average", "pwr", "power", "power_usage"),
        *("average graphics package power", "current socket graphics package power", "pwrdr"),
    ),
    "temperature_celsius": (
        *("temperature.gpu", "gtemp", "temp", "tmptr", "temperature (sensor junction)"),
        *("hotspot_temperature", "temperature (sensor edge)"),
    ),
    LOAD: ("utilization.gpu", "sm", "gputl", "gpu use", "gfx"),
    "memory_utilization_percent": ("utilization.memory", "mem", "mcutl", "gpu memory use"),
    "memory_used_bytes": ("memory.used", "fb", "fbusd"),
    POWER: (
        *("clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap", "pviol"),
        *("clocks_event_reasons.hw_power_brake_slowdown",),
        *("clocks_throttle_reasons.hw_power_brake_slowdown",),
    ),
    HEAT: (
        *(
            "clocks_event_reasons.sw_thermal_slowdown",
            "clocks_throttle_reasons.sw_thermal_slowdown",
        ),
        *(
            "clocks_event_reasons.hw_thermal_slowdown",
            "clocks_throttle_reasons.hw_thermal_slowdown",
        ),
        *("clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown", "tviol"),
    ),
}
_METRICS: Final = {name: metric for metric, names in _NAMES.items() for name in names}
_REASONS: Final = frozenset({"clocks_event_reasons.active", "clocks_throttle_reasons.active"})
_BY_POWER: Final = 0x4 | 0x80
_BY_HEAT: Final = 0x20 | 0x40 | 0x8
_DEVICE_COLUMNS: Final = ("index", "gpu", "device", "entity", "idx")


@dataclass(slots=True)
class GpuSamples:
    """Samples by GPU and metric; ``program`` printed them.

    ``times`` are seconds on the clock of the file; without time stamps they are NaN.
    """

    program: str
    clock: LogClock = field(default_factory=LogClock)
    times: dict[tuple[int, str], array[float]] = field(
        default_factory=lambda: defaultdict(lambda: array("d"))
    )
    values: dict[tuple[int, str], array[float]] = field(
        default_factory=lambda: defaultdict(lambda: array("d"))
    )
    unknown: int = 0
    count: int = 0

    def add(self, seconds: float, gpu: int, metric: str, value: float) -> None:
        """Add a sample; several reasons for throttling in one sample count once."""
        if self.count >= _MAX_SAMPLES:
            return
        times, values = self.times[gpu, metric], self.values[gpu, metric]
        if metric in (HEAT, POWER) and len(times) and times[-1] == seconds:
            values[-1] = max(values[-1], value)
            return
        times.append(seconds)
        values.append(value)
        self.count += 1

    def series(self, gpu: int, metric: str) -> npt.NDArray[np.float64]:
        """Return the values of a metric of a GPU; an empty array if there are none."""
        return np.asarray(self.values.get((gpu, metric), ()), np.float64)

    @property
    def first_s(self) -> float:
        """The time of the first sample; NaN if the samples have no times."""
        return min((times[0] for times in self.times.values()), default=math.nan)

    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs, ascending."""
        return sorted({gpu for gpu, _ in self.values})


def samples_in(path: Path) -> GpuSamples | None:
    """Return the samples in a file; None if no program for GPU samples printed it.

    Raises:
        TraceError: the file cannot be read, or its columns cannot be recognized.
    """
    head = []
    for line in RawLines(path):
        head.append(line)
        if len(head) >= _MAX_HEAD_LINES:
            break
    kind, heading = _kind_of(head)
    if not kind:
        return None
    lines = (line for line in RawLines(path) if line.strip())
    found = GpuSamples(kind)
    rows = _csv_rows(lines, heading) if kind in ("nvidia-smi", "rocm-smi") else _aligned_rows(lines)
    for names, cells in rows:
        _add_row(found, names, cells)
    if not found.count:
        raise TraceError(f"{path}: samples of {kind} without a known column")
    return found


def _kind_of(head: Sequence[str]) -> tuple[str, list[str]]:
    """Return the program that printed the samples, and the names of its columns, if known."""
    for line in head:
        cells = _cells(line)
        names = [_plain_name(cell)[0] for cell in cells]
        if len(set(names) & {*_METRICS, *_REASONS}) and "timestamp" in names:
            return "nvidia-smi", cells
        if names[0] in ("device", "gpu") and len(names) > 1 and {*names[1:]} & {*_METRICS}:
            return "rocm-smi", cells
        if names[0] in ("index", "name") and {*names} & {*_METRICS}:
            return "nvidia-smi", cells
        if _DMON_MARK.match(line):
            return "dmon", []
        if line.startswith(("#Entity", "# Entity")):
            return "dcgmi", []
    rows = [_cells(line) for line in head if _STAMP.match(line)]
    if len(rows) >= 2 and len({len(row) for row in rows}) == 1 and len(rows[0]) > 2:
        heading = _names_by_units(rows)
        return ("nvidia-smi", heading) if heading else ("", [])
    return "", []


def _names_by_units(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return column names of nvidia-smi CSV without a heading; an empty list if there is no unit.

    The order of a query is free. Only columns whose units identify them are named.
    """
    by_unit = {
        "%": [LOAD, ""],
        "W": ["power_watts"],
        "MHz": [CLOCK, ""],
        "MiB": ["memory_used_bytes"],
    }
    names = ["timestamp"]
    for place in range(1, len(rows[0])):
        cells = [row[place] for row in rows]
        units = {match["unit"] or "" for cell in cells if (match := _NUMBER.fullmatch(cell))}
        texts = {cell for cell in cells if _NUMBER.fullmatch(cell) is None}
        unit = units.pop() if len(units) == 1 and not texts else None
        free = by_unit.get(unit or "", [])
        if unit and free:
            metric = free.pop(0)
            names.append(next(iter(_NAMES.get(metric, ("",)))))
        elif unit == "" and "index" not in names and _are_indices(cells):
            names.append("index")
        elif texts and texts <= {"Active", "Not Active"}:
            names.append("clocks_event_reasons.hw_slowdown")
        else:
            names.append("")
    return names if {*names} & {*_METRICS} else []


def _are_indices(cells: Sequence[str]) -> bool:
    """Return whether cells count the GPUs of each sample: 0, 1, 0, 1."""
    numbers = [int(cell) if cell.isdigit() else -1 for cell in cells]
    n = max(numbers) + 1
    return 0 < n <= 64 and all(number == i % n for i, number in enumerate(numbers))


def _cells(line: str) -> list[str]:
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        cells = []
    return [cell.strip() for cell in cells] or [""]


def _plain_name(cell: str) -> tuple[str, str]:
    """Return a column name in lower case without its unit, and the unit."""
    match = _UNIT_IN_NAME.search(cell)
    unit = "" if match is None else match["unit"]
    return (cell if match is None else cell[: match.start()]).strip().lower(), unit


def _csv_rows(
    lines: Iterable[str], heading: Sequence[str]
) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """Yield names with units and the cells of each row; repeated headings are skipped."""
    names = [_plain_name(cell) for cell in heading]
    for line in lines:
        cells = _cells(line)
        if len(cells) == len(names) and [_plain_name(cell) for cell in cells] != names:
            yield names, cells


def _aligned_rows(
    lines: Iterable[str],
) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """Yield names with units and the cells of each row of a table with # headings."""
    names: list[tuple[str, str]] = []
    for line in lines:
        parts = line.lstrip("#").split()
        if line.startswith("#") or (parts and parts[0] == "ID"):
            if not names or {"gpu", "entity"} & {part.lower() for part in parts}:
                names = [(part.lower(), "") for part in parts]
            continue
        if parts and parts[0] == "GPU":  # dcgmi prints "GPU 0"
            parts = parts[1:]
        if len(parts) == len(names):
            yield names, parts


def _add_row(found: GpuSamples, names: Sequence[tuple[str, str]], cells: Sequence[str]) -> None:
    by_name = {name: cell for (name, _), cell in zip(names, cells, strict=True)}
    stamp = by_name.get("timestamp", "")
    if "date" in by_name and re.fullmatch(r"\d{8}", by_name["date"]):
        date = by_name["date"]
        stamp = f"{date[:4]}-{date[4:6]}-{date[6:]} {by_name.get('time', '')}"
    elif _TIME_OF_DAY.fullmatch(by_name.get("time", "")):
        stamp = f"2000-01-01 {by_name['time']}"
    seconds = found.clock.read(stamp) if stamp else None
    place = next((by_name[name] for name in _DEVICE_COLUMNS if name in by_name), "0")
    digits = re.search(r"\d{1,4}", place)
    gpu = int(digits[0]) if digits is not None else 0
    at_s = math.nan if seconds is None else seconds
    for (name, unit), cell in zip(names, cells, strict=True):
        if name in _REASONS and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
            bits = int(cell, 16)
            found.add(at_s, gpu, POWER, float(bool(bits & _BY_POWER)))
            found.add(at_s, gpu, HEAT, float(bool(bits & _BY_HEAT)))
        elif name in _METRICS:
            _add_cell(found, at_s, gpu, _METRICS[name], cell, unit)


def _add_cell(found: GpuSamples, at_s: float, gpu: int, metric: str, cell: str, unit: str) -> None:
    if metric in (HEAT, POWER) and cell in ("Active", "Not Active"):
        found.add(at_s, gpu, metric, float(cell == "Active"))
        return
    match = _NUMBER.fullmatch(cell)
    if match is None:
        found.unknown += cell not in ("-", "")
        return
    value = float(match["number"]) if match["number"].count(".") < 2 else math.nan
    if metric in (HEAT, POWER):
        value = float(value > 0)
    if metric == "memory_used_bytes":
        value *= _BYTES.get(match["unit"] or unit, 1.0)
    found.add(at_s, gpu, metric, value)


_MIN_LOAD_PERCENT: Final = 50.0
_MAX_CLOCK_RATIO: Final = 0.9
"""Clock relative to the usual clock under load below which a GPU counts as slow."""
_MIN_POWER_RATIO: Final = 0.5
_MIN_SLOW_RATIO: Final = 0.05
_MIN_THROTTLED_RATIO: Final = 0.05
_TYPICAL_QUANTILE: Final = 0.9


def read_machine_samples(path: Path) -> list[Summary]:
    """Return the samples of GPUs in a file as a run; an empty list if the file has none.

    Raises:
        TraceError: the file cannot be read, or its columns cannot be recognized.
    """
    found = samples_in(path)
    if found is None:
        return []
    gpus = found.gpus()
    start_ns = None if found.clock.base_s is None else found.clock.base_s * 1_000_000_000
    tables = {"measures": list(_measures(found)), "metrics": list(_metric_rows(found))}
    return [
        Summary(
            path.stem,
            origin=f"samples:{found.program}",
            started_utc_ns=None,
            devices_count=len(gpus),
            sources=(SourceFile(str(path), f"samples:{found.program}", path.stat().st_size),),
            tables={name: summary_table(name, rows) for name, rows in tables.items()},
            notes=tuple(_notes(found, has_times=start_ns is not None)),
        )
    ]


def _measures(found: GpuSamples) -> Iterator[dict[str, Any]]:
    """Yield the median of each metric under load, the highest temperature, and throttling."""
    how: dict[str, tuple[str, Any]] = {
        CLOCK: ("median_sm_clock_mhz", np.median),
        "power_watts": ("median_power_watts", np.median),
        "temperature_celsius": ("highest_temperature_celsius", np.max),
        LOAD: ("mean_utilization_percent", np.mean),
        "memory_used_bytes": ("peak_memory_used_bytes", np.max),
        POWER: ("throttled_by_power_ratio", np.mean),
        HEAT: ("throttled_by_heat_ratio", np.mean),
    }
    for metric, (name, reduced) in how.items():
        values = np.concatenate([found.series(gpu, metric) for gpu in found.gpus()])
        values = values[np.isfinite(values)]
        if len(values):
            unit = next(
                (
                    u
                    for end, u in (("_ratio", Unit.RATIO), ("_bytes", Unit.BYTES))
                    if name.endswith(end)
                ),
                Unit.NUMBER,
            )
            yield {
                "measure": name,
                "value": float(reduced(values)),
                "unit": str(unit),
                "scope": "device",
                "better": "",
                "source": "printed",
            }


def _metric_rows(found: GpuSamples) -> Iterator[dict[str, Any]]:
    """Yield the samples; of long series every Nth one."""
    for (gpu, metric), values in found.values.items():
        stride = -(-len(values) // _MAX_POINTS_PER_SERIES)
        for i in range(0, len(values), stride):
            at_s = found.times[gpu, metric][i] - found.first_s
            yield {
                "metric": metric,
                "attempt": 0,
                "rank": float(gpu),
                "at_ns": round(at_s * 1e9) if math.isfinite(at_s) else math.nan,
                "value": values[i],
                "scope": "device",
                "over": "step",
            }


def _notes(found: GpuSamples, *, has_times: bool) -> Iterator[Note]:
    """Yield the GPUs that run below their usual clock, and the reasons for it."""
    if not has_times:
        yield Note.of("the samples have no time stamps, so they have an order but no times")
    loaded = {gpu: _is_loaded(found, gpu) for gpu in found.gpus()}
    clocks = {gpu: found.series(gpu, CLOCK)[rows] for gpu, rows in loaded.items()}
    known = [values for values in clocks.values() if len(values)]
    usual = float(np.quantile(np.concatenate(known), _TYPICAL_QUANTILE)) if known else math.nan
    for gpu in found.gpus():
        slow = clocks[gpu] < _MAX_CLOCK_RATIO * usual
        if len(slow) and slow.mean() >= _MIN_SLOW_RATIO:
            yield _slow_note(found, gpu, loaded[gpu], usual)
        for metric, why in ((HEAT, "temperature"), (POWER, "power limit")):
            active = found.series(gpu, metric)
            if len(active) and active.mean() >= _MIN_THROTTLED_RATIO:
                yield Note.of(
                    "GPU {gpu}: the {why} lowers the clock in {share:ratio} of the samples",
                    gpu=gpu,
                    why=why,
                    share=float(active.mean()),
                )
    if not known and any(metric == CLOCK for _, metric in found.values):
        yield Note.of("no sample shows a loaded GPU, so clocks are not compared")
    if found.unknown:
        yield Note.of("ignored {n:count} cell(s) that are not numbers", n=found.unknown)


def _is_loaded(found: GpuSamples, gpu: int) -> npt.NDArray[np.bool_]:
    """Return in which samples of the clock the GPU is loaded, by its utilization or else its power.

    No sample counts as loaded if neither is recorded.
    """
    n = len(found.series(gpu, CLOCK))
    load, power = found.series(gpu, LOAD), found.series(gpu, "power_watts")
    if len(load) == n:
        return np.asarray(load >= _MIN_LOAD_PERCENT)
    if len(power) == n and n:
        most = max(
            float(found.series(other, "power_watts").max(initial=0.0)) for other in found.gpus()
        )
        return np.asarray(power >= _MIN_POWER_RATIO * most)
    return np.zeros(n, bool)


def _slow_note(found: GpuSamples, gpu: int, loaded: npt.NDArray[np.bool_], usual: float) -> Note:
    """Return the note for a GPU with a low clock under load: since when, how low, how hot."""
    clocks = found.series(gpu, CLOCK)[loaded]
    slow = clocks < _MAX_CLOCK_RATIO * usual
    text = (
        "GPU {gpu} runs at {clock:count} MHz in {share:ratio} of the samples under load, instead "
        "of {usual:count} MHz"
    )
    values: dict[str, Any] = {
        "gpu": gpu,
        "clock": round(float(np.median(clocks[slow]))),
        "share": float(slow.mean()),
        "usual": round(usual),
    }
    at_s = np.asarray(found.times[gpu, CLOCK], np.float64)[loaded][slow] - found.first_s
    if np.isfinite(at_s).all() and slow[int(np.argmax(slow)) :].all():
        text += ", from {at:ns} on"
        values["at"] = float(at_s[0]) * 1e9
    heat = found.series(gpu, "temperature_celsius")
    if len(heat) == len(loaded):
        text += ", at {heat:count} °C"
        values["heat"] = round(float(np.median(heat[loaded][slow])))
    return Note.of(text, **values)
