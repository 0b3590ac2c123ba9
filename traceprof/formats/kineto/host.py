"""What happened on the host, from the events of a Kineto trace."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.kineto.rows import Rows
from traceprof.formats.shared.cupti import plain_api_name, with_depth
from traceprof.formats.sqlite.database import categorical
from traceprof.model.tables import make_table, stack

__all__ = [
    "MODULE_PREFIX",
    "make_api_calls",
    "make_host_ops",
    "make_overheads",
    "make_ranges",
    "make_samples",
]

MODULE_PREFIX: Final = "nn.Module: "
_STEP: Final = "ProfilerStep"
_EARLY_ANNOTATION: Final = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(DataLoader\)#|## ")
_CUDA_DEVICE: Final = 1


def make_api_calls(rows: Rows) -> pd.DataFrame:
    """Return the calls of the CUDA or HIP runtime and driver."""
    names = [plain_api_name(str(name)) for name in rows.name.categories]
    return make_table(
        "api_calls",
        {
            **_place(rows),
            "correlation": rows.number("correlation"),
            "name": categorical(rows.name.codes, names),
        },
    )


def make_host_ops(operators: Rows) -> pd.DataFrame:
    """Return the CPU operators of PyTorch."""
    rows = operators.where(~_is_early_annotation(operators))
    source = categorical(np.zeros(len(rows), np.int64), ["cpu_op"])
    return make_table("host_ops", {**_place(rows), "source": source, "name": rows.name})


def make_ranges(annotations: Rows, operators: Rows, functions: Rows) -> pd.DataFrame:
    """Return the annotations of the host and, in the domain ``nn.Module``, the modules.

    Each step counts once: Kineto repeats annotations on every stream, which are left out, and
    old versions repeat a step among the operators.
    """
    modules = functions.where(functions.named(lambda name: name.startswith(MODULE_PREFIX)))
    module_names = [str(name).removeprefix(MODULE_PREFIX) for name in modules.name.categories]
    early = operators.where(_is_early_annotation(operators))
    annotated = [_ranges(rows, rows.name, "") for rows in (annotations, early)]
    module_ranges = _ranges(modules, categorical(modules.name.codes, module_names), "nn.Module")
    return with_depth(
        stack("ranges", [_without_repeats(stack("ranges", annotated)), module_ranges])
    )


def make_overheads(rows: Rows) -> pd.DataFrame:
    """Return what the profiler itself took; it does not say on which thread."""
    process = np.where(rows.process < 0, rows.host_process, rows.process)
    return make_table("overheads", {**_place(rows), "process": process, "name": rows.name})


def make_samples(rows: Rows) -> pd.DataFrame:
    """Return the bytes that PyTorch's allocator held, after each change."""
    device = rows.number("Device Id")
    on_device = rows.number("Device Type") == _CUDA_DEVICE
    numbers, place = np.unique(np.where(on_device, device, -1), return_inverse=True)
    sources = [f"gpu:{number}" if number >= 0 else "host" for number in numbers]
    parts = [
        make_table(
            "samples",
            {
                "start_ns": rows.start_ns,
                "source": categorical(place.ravel(), sources or [""]),
                "metric": categorical(np.zeros(len(rows), np.int64), [metric]),
                "value": rows.number(argument).astype(np.float64),
            },
        )[rows.number(argument) >= 0]
        for argument, metric in (
            ("Total Allocated", "torch_allocated_bytes"),
            ("Total Reserved", "torch_reserved_bytes"),
        )
    ]
    return stack("samples", parts)


def _place(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "process": rows.process,
        "thread": rows.thread,
    }


def _ranges(rows: Rows, names: pd.Categorical, domain: str) -> pd.DataFrame:
    once = np.zeros(len(rows), np.int64)
    return make_table(
        "ranges",
        {
            **_place(rows),
            "domain": categorical(once, [domain]),
            "name": names,
            "kind": categorical(once, ["push_pop"]),
        },
    )


def _is_early_annotation(operators: Rows) -> npt.NDArray[np.bool_]:
    """Return which operators are annotations: before 2022 both had the category Operator."""
    early = np.asarray(operators.category == "Operator") | operators.named(
        lambda name: name.startswith(_STEP)
    )
    return early & operators.named(_EARLY_ANNOTATION.match)


def _without_repeats(ranges: pd.DataFrame) -> pd.DataFrame:
    is_step = ranges["name"].astype(str).str.startswith(_STEP)
    repeated = ranges.duplicated(["process", "name"]) & is_step
    return ranges[~repeated].reset_index(drop=True)
