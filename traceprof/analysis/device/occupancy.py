"""Launch shapes of kernels: grid, block, registers, shared memory, and what they allow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.device.shapes import launch_shapes
from traceprof.model.combining import combine
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    mean,
    same,
    total,
)
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "occupancy",
            "one row per kernel and way of launching it, by total time; occupancy is theoretical: "
            "it follows from the launch, nothing was measured",
            (
                key("name", "the name of the kernel"),
                total("total_ns", Unit.NS, "the durations of all added up"),
                derived("share_ratio", Unit.RATIO, "total_ns of the sum over all rows"),
                total("count", Unit.COUNT, "how often it was launched so"),
                mean(
                    "occupancy_ratio",
                    Unit.RATIO,
                    "warps that a multiprocessor can hold of it to those that there can be at most",
                    "total_ns",
                ),
                same("limiter", Unit.TEXT, "what allows no more blocks on a multiprocessor"),
                mean(
                    "waves",
                    Unit.NUMBER,
                    "how often its blocks can fill the GPU; below 1 it never does",
                    "total_ns",
                ),
                mean("tail_ratio", Unit.RATIO, "how full the last wave is", "total_ns"),
                key("grid", "blocks of the launch in x, y and z"),
                key("block", "threads of a block in x, y and z"),
                key("registers", "registers of a thread", Unit.NUMBER),
                key("shared_bytes", "static and dynamic shared memory of a block", Unit.BYTES),
                mean("sm_blocks", Unit.NUMBER, "blocks of it on a multiprocessor", "total_ns"),
                derived("mean_ns", Unit.NS, "the mean duration"),
            ),
        ),
    )
)
_SIZES: Final = ("grid", "block")
_ADDED: Final = ("count", "total_ns")


def measure_occupancy(trace: Trace) -> Result:
    """Return the ways of launching kernels; of one that the window cuts its part inside."""
    shapes = launch_shapes(trace)
    kernels = trace.kernels
    frame = pd.DataFrame(
        {
            "name": kernels["name"].cat.codes,
            "shape": shapes.of_kernel[trace.rows_in_whole("kernels")],
            "ns": kernels["end_ns"] - kernels["start_ns"],
        }
    )
    groups = frame.groupby(["name", "shape"], sort=True)["ns"]
    found = groups.agg(count="size", total_ns="sum").reset_index()
    shape = shapes.table.iloc[found["shape"]].reset_index(drop=True)
    names = kernels["name"].cat.categories
    table = found[["count", "total_ns"]].assign(
        name=_texts([str(names[code]) for code in found["name"]]),
        **{of: _texts(_triples(shape, of)) for of in _SIZES},
        registers=_or_none(shape["registers"]),
        shared_bytes=_or_none(shape["shared_bytes"]),
        occupancy_ratio=shape["occupancy_ratio"],
        limiter=_texts(shape["limiter"]),
        sm_blocks=_or_none(shape["sm_blocks"]),
        waves=shape["waves"],
        tail_ratio=shape["tail_ratio"],
    )
    # Devices of several models give the same launch different occupancies, those of one the same.
    same = [name for name in table if name not in _ADDED]
    table = table.groupby(same, sort=False, dropna=False, as_index=False)[[*_ADDED]].sum()
    place = table.groupby(list(SPEC.tables[0].keys), sort=False, dropna=False).cumcount()
    alike = [table[place == number] for number in range(int(place.max()) + 1 if len(place) else 1)]
    return combine(
        [Result("occupancy", SPEC, {"occupancy": SPEC.tables[0].frame(part)}) for part in alike]
    )


def _triples(shape: pd.DataFrame, of: str) -> list[str]:
    sizes = zip(*(shape[f"{of}_{axis}"].tolist() for axis in "xyz"), strict=True)
    return ["" if min(each) < 0 else "×".join(map(str, each)) for each in sizes]


def _texts(values: Iterable[str]) -> pd.Series:
    return pd.Series(list(values), dtype=object)


def _or_none(values: pd.Series) -> np.ndarray:
    return np.where(values == ABSENT, np.nan, values.to_numpy(np.float64))


def _finish(result: Result) -> Result:
    table = result.table
    whole = int(table["total_ns"].sum())
    table = table.assign(
        share_ratio=table["total_ns"] / (whole or float("nan")),
        mean_ns=table["total_ns"] / table["count"],
    )
    order = ["total_ns", *SPEC.tables[0].keys]
    table = table.sort_values(order, ascending=[False] + [True] * 5, ignore_index=True)
    return result.with_table(SPEC.tables[0].frame(table)).with_notes(*_notes(table))


def _notes(table: pd.DataFrame) -> list[Note]:
    times = table["total_ns"].to_numpy(np.float64)
    is_unknown = np.isnan(table["occupancy_ratio"].to_numpy(np.float64))
    if not times[is_unknown].sum():
        return []
    text = "the occupancy of {share:ratio} of the kernel time is not known: "
    is_told = table["registers"].notna() & table["shared_bytes"].notna()
    if is_told[is_unknown].any():
        text += "the trace does not say what GPU it was (--gpu MODEL says it)"
    else:
        text += "registers and shared memory of these launches were not recorded"
    return [Note.of(text, share=float(times[is_unknown].sum() / times.sum()))]


ANALYSIS = Analysis(
    name="occupancy",
    spec=SPEC,
    needs=("kernels", "kernel_shapes"),
    uses=("devices",),
    of_rank=measure_occupancy,
    finish=_finish,
)
