"""Check whether two sides are comparable: list different settings and their effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.comparison.difference import Matched
from traceprof.comparison.sides import ITERATION, STEP, Side
from traceprof.comparison.specs import SETTINGS
from traceprof.model.results import Note, Result
from traceprof.model.summary import Summary

_Cell: TypeAlias = str | Note
_Row: TypeAlias = tuple[str, _Cell, _Cell, str, bool]

_SPOILING: Final = (
    ("gpu", "different hardware, so the times do not compare the software"),
    ("precision", "different precision in GEMMs and convolutions"),
)
_EXPLAINING: Final = (
    ("driver", "may explain a difference"),
    ("cuda", "library versions change kernels and kernel names"),
    ("cuda_driver", ""),
    ("hip", "library versions change kernels and kernel names"),
    ("cudnn", "library versions change kernels and kernel names"),
    ("nccl", "may explain a difference in collectives"),
    ("backend", "a different library runs the collectives"),
    ("mpi", "may explain a difference in collectives"),
    ("torch", "may explain a difference"),
    ("framework", "may explain a difference"),
    ("python", ""),
    ("deepspeed", ""),
    ("transformers", ""),
    ("lightning", ""),
    ("accelerate", ""),
    ("cpu", "host time per step may differ"),
    ("cpu_count", "host time per step may differ"),
    ("ram", ""),
    ("host", "different machine; clock rates, temperature and other jobs may differ"),
    ("os", ""),
    ("kernel", ""),
    ("container", ""),
    ("nic", "may explain a difference in collectives"),
    ("git_commit", "probably the intended change"),
    ("git_branch", ""),
    ("git_is_dirty", "the program had uncommitted changes"),
)
_MEASURES: Final = (
    ("world_size", "different number of ranks; use `traceprof scaling`", True),
    ("devices_count", "different number of GPUs; use `traceprof scaling`", True),
    ("nodes_count", "different interconnect between the ranks", False),
    ("batch_count", "different number of samples per step", True),
    ("global_batch_count", "different number of samples per step", True),
)
_PROFILERS: Final = (
    "different profiler version",
    "profilers differ in overhead and in the events they record",
)
_ESSENTIAL: Final = ("gpu", "driver", "cuda", "torch", "git_commit")
_GPU_COUNT: Final = re.compile(r"\b\d+ × ")
_ONE_KNOWN: Final = "not recorded on both sides"
_SHARED_KERNELS: Final = "kernels in common"
_MAX_COUNT_CHANGE_RATIO: Final = 0.1
_MIN_SHARED_RATIO: Final = 0.5
_MAX_NAMES: Final = 3
_COLUMNS: Final = ("setting", "base", "new", "why", "spoils")


def settings_of(base: Side, new: Side, matched: Matched) -> Result:
    """Return the settings that differ, those that spoil the comparison first."""
    rows = [_without_unknown_effect(row) for row in _rows(base, new) if row[1] != row[2]]
    rows += _shared_kernels(base, new, matched)
    rows.sort(key=lambda row: not row[4])
    table = SETTINGS.tables[0].of_rows([dict(zip(_COLUMNS, row, strict=True)) for row in rows])
    return Result("settings", SETTINGS, {"settings": table})


def _without_unknown_effect(row: _Row) -> _Row:
    """Replace the effect of a row if the setting is unknown on one side."""
    name, first, second, why, _ = row
    is_known = bool(first) and bool(second) and "unknown" not in (first, second)
    return row if is_known or not why else (name, first, second, _ONE_KNOWN, False)


def not_recorded(base: Side, new: Side) -> tuple[Note, ...]:
    """Return a note that lists essential settings that are not recorded on both sides."""
    names = [
        name
        for name in _ESSENTIAL
        if not base.environment_value(name) or not new.environment_value(name)
    ]
    batches = [side.measure("global_batch_count") for side in (base, new)]
    names += ["global_batch_count"] if None in batches else []
    if not names:
        return ()
    return (
        Note.of("Not recorded, so these settings may differ: {names}.", names=", ".join(names)),
    )


def warnings_of(settings: Result) -> tuple[Note, ...]:
    """Return a warning for each setting that spoils the comparison."""
    return tuple(
        Note.of(
            "Shared kernels take {base} and {new} of kernel time: {why}"
            if row["setting"] == _SHARED_KERNELS
            else "{setting} differs ({base}, {new}): {why}",
            **{name: row[name] for name in ("setting", "base", "new", "why")},
        )
        for row in settings.table.rows()
        if row["spoils"] and row["base"] and row["new"]
    )


def _rows(base: Side, new: Side) -> Iterator[_Row]:
    """Yield a row for each setting of both sides, equal or not."""

    def values_of(of: Callable[[Summary], str]) -> list[str]:
        return [_distinct(map(of, side.runs)) for side in (base, new)]

    profilers = values_of(lambda run: run.environment.get("profiler") or run.origin)
    formats = values_of(lambda run: run.origin)
    is_other = formats[0] != formats[1]
    yield "profiler", profilers[0], profilers[1], _PROFILERS[is_other], is_other
    workloads = values_of(lambda run: run.workload)
    is_other = all(workloads) and "unknown" not in workloads
    yield "workload", workloads[0], workloads[1], "different workloads", is_other
    for name, why, spoils in _MEASURES:
        values = [side.measure(name) for side in (base, new)]
        yield name, _number(values[0]), _number(values[1]), why, spoils and None not in values
    yield from _kernel_counts(base, new)
    for name, why in _SPOILING:
        # The number of GPUs is a separate row.
        first, second = (_GPU_COUNT.sub("", side.environment_value(name)) for side in (base, new))
        yield name, first, second, why, bool(first and second)
    known_names = {name for name, _ in (*_SPOILING, *_EXPLAINING)} | {"profiler", "architecture"}
    names = {name for side in (base, new) for run in side.runs for name in run.environment}
    for name, why in (*_EXPLAINING, *((name, "") for name in sorted(names - known_names))):
        yield name, base.environment_value(name), new.environment_value(name), why, False
    commands = values_of(lambda run: run.command)
    yield "command", commands[0], commands[1], "different command line", False
    labels = [sorted({key for run in side.runs for key in run.labels}) for side in (base, new)]
    for name in sorted({*labels[0], *labels[1]}):
        label_values = [
            _distinct(run.labels.get(name, "") for run in side.runs) for side in (base, new)
        ]
        yield f"label {name}", label_values[0], label_values[1], "", False


def _kernel_counts(base: Side, new: Side) -> Iterator[_Row]:
    """Yield a row if the number of kernels per step or iteration differs by more than the limit."""
    if base.unit not in (STEP, ITERATION):
        return
    counts = []
    for side in (base, new):
        composition = side.composition
        if composition is None:
            return
        kernels = composition["count"][composition["kind"] == "kernel"].sum()
        counts.append(float(kernels) / max(1, side.units_count))
    if min(counts) > 0 and max(counts) / min(counts) - 1 > _MAX_COUNT_CHANGE_RATIO:
        is_iteration = base.unit == ITERATION
        why = (
            "the iterations may cover different work"
            if is_iteration
            else "the steps do different work"
        )
        cells = [_number(count) for count in counts]
        yield f"kernels per {base.unit}", cells[0], cells[1], why, is_iteration


def _shared_kernels(base: Side, new: Side, matched: Matched) -> Iterator[_Row]:
    """Yield a row if kernels that both sides have take less than half of the kernel time."""
    both = set(matched.base.values()) & set(matched.new.values())
    shares = []
    for side, names in ((base, matched.base), (new, matched.new)):
        composition = side.composition
        if composition is None:
            return
        kernels = composition.take(composition["kind"] == "kernel")
        is_common = np.array([names.get(name) in both for name in kernels["name"]], np.bool_)
        total_ns = float(kernels["ns"].sum())
        shares.append(float(kernels["ns"][is_common].sum()) / total_ns if total_ns else 1.0)
    if max(shares) < _MIN_SHARED_RATIO:
        cells = [Note.of("{share:ratio}", share=share) for share in shares]
        why = "different kernels do most of the work; check that both runs use the same program"
        yield _SHARED_KERNELS, cells[0], cells[1], why, True


def _number(value: float | None) -> _Cell:
    return "" if value is None else Note.of("{n:number}", n=value)


def _distinct(texts: Any) -> str:
    """Join the distinct non-empty texts, at most `_MAX_NAMES` of them."""
    found = [text for text in dict.fromkeys(texts) if text]
    more = len(found) - _MAX_NAMES
    return ", ".join(found[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
