"""Kernels by class and phase: what kind of work, how short, on tensor cores or not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.phase_names import PHASES, UNCLAIMED
from traceprof.facts.launches import find_launches, phase_of_launches
from traceprof.model.activity import Activity
from traceprof.model.trace import Trace
from traceprof.units import format_duration, format_ratio

__all__ = ["ANALYSIS", "SHORT_NS", "Classes", "measure_classes", "uses_tensor_cores"]

SHORT_NS: Final = 10_000
"""A kernel shorter than this costs about as much to launch as to run."""

_MATRIX_WORK: Final = (
    Activity.GEMM.value,
    Activity.CONVOLUTION.value,
    Activity.ATTENTION.value,
)
_TENSOR_CORES: Final = re.compile(
    r"tensorop|wmma|wgmma|[hi]mma|nvjet|[sh]16816|[sh]1688|[sh]884|_tc_|tcgen05"
    r"|sm\d+_xmma_.*(f16|bf16|tf32|e4m3|e5m2)|flash_(fwd|bwd)|fmha|xmma_.*_(f16|bf16|tf32)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """One row per activity and phase, by total time.

    ``table``: activity, phase (of the launch; "" without phases), count, total_ns (added up
    over streams and devices), share_ratio, median_ns, short_ratio (share of the kernels that
    are shorter than `SHORT_NS`), tensor_core_ratio (share of the time in kernels named after
    tensor-core instructions; NaN for work that has no use for them), launch_ns (host time in
    the calls that launched them).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def uses_tensor_cores(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which kernels have names of tensor-core instructions."""
    matches = [bool(_TENSOR_CORES.search(str(name))) for name in names.cat.categories]
    codes = names.cat.codes.to_numpy()
    return np.asarray(matches, np.bool_)[codes] if len(matches) else np.zeros(0, np.bool_)


def measure_classes(trace: Trace) -> Classes:
    """Return the kernels by activity and phase."""
    kernels = trace.kernels
    launches = find_launches(trace, kernels)
    phases = phase_of_launches(trace, launches)
    names = np.array([*PHASES, UNCLAIMED if (phases >= 0).any() else ""], object)
    duration = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    on_matrices = kernels["activity"].isin(_MATRIX_WORK).to_numpy()
    rows = pd.DataFrame(
        {
            "activity": kernels["activity"].to_numpy(object),
            "phase": names[phases],
            "total_ns": duration,
            "median_ns": duration,
            "short_ratio": duration < SHORT_NS,
            "tensor_ns": np.where(
                on_matrices, duration * uses_tensor_cores(kernels["name"]), np.nan
            ),
            "launch_ns": np.where(launches.is_known, launches.end_ns - launches.start_ns, 0),
        }
    )
    groups = rows.groupby(["activity", "phase"])
    table = groups.agg(
        count=("total_ns", "size"),
        total_ns=("total_ns", "sum"),
        median_ns=("median_ns", "median"),
        short_ratio=("short_ratio", "mean"),
        tensor_ns=("tensor_ns", lambda own: own.sum(min_count=1)),
        launch_ns=("launch_ns", "sum"),
    ).reset_index()
    whole = int(duration.sum()) or 1
    table.insert(4, "share_ratio", table["total_ns"] / whole)
    table["tensor_ns"] = table["tensor_ns"] / table["total_ns"].where(table["total_ns"] > 0)
    table = table.rename(columns={"tensor_ns": "tensor_core_ratio"})
    table = table.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    return Classes(table, _notes(rows, on_matrices))


def _notes(rows: pd.DataFrame, on_matrices: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    if rows.empty:
        return ()
    notes = [
        f"{format_ratio(float(rows['short_ratio'].mean()))} of the kernels are shorter than "
        f"{format_duration(SHORT_NS)}; the calls that launched them all took "
        f"{format_duration(int(rows['launch_ns'].sum()))} of host time"
    ]
    matrix_ns = int(rows["total_ns"][on_matrices].sum())
    if matrix_ns:
        ratio = float(rows["tensor_ns"].sum()) / matrix_ns
        notes.append(
            f"{format_ratio(ratio)} of the matrix work (GEMM, convolution, attention) ran in "
            "kernels named after tensor cores"
        )
    return tuple(notes)


ANALYSIS = Analysis(
    name="classes",
    needs=("kernels",),
    run=measure_classes,
)
