"""How kernels were launched: grid, block, registers, shared memory; the occupancy they allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.hardware.catalogue import Hardware, built_in_hardware
from traceprof.hardware.occupancy import LIMITS, occupancy_of
from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact
from traceprof.measures.rows import Ints, in_order
from traceprof.model.combining import combine
from traceprof.model.grouping import numbered
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT, SHAPE_COLUMNS, shapes_of
from traceprof.model.trace import Trace

_KEYS: Final = ("device", *(column for column in SHAPE_COLUMNS if column != "context"))


@dataclass(frozen=True, slots=True)
class LaunchShapes:
    """The ways in which kernels of a recording were launched.

    ``of_kernel`` has an element for each kernel of the whole trace: a row of ``table``. That has
    the columns of `kernel_shapes` but the context, with ``device``, and besides

    * ``grid_blocks`` and ``block_threads``: how many there are,
    * ``sm_blocks``: blocks of it that a multiprocessor holds at once,
    * ``occupancy_ratio``: warps of these to the warps that there can be,
    * ``limiter``: what allows no more; "" where it is not known,
    * ``waves``: how often the GPU can be filled with its blocks, and a part,
    * ``tail_ratio``: how full the last wave is.

    What is not known is `ABSENT`, NaN of ratios and waves. ``contexts`` has the CUDA context of
    each kernel.
    """

    of_kernel: npt.NDArray[np.int32]
    contexts: npt.NDArray[np.int32]
    table: pd.DataFrame


@fact
def launch_shapes(trace: Trace) -> LaunchShapes:
    """Return how the kernels of the whole recording were launched."""
    shapes = (
        shapes_of(trace.kernels, trace.kernel_shapes)
        .assign(device=trace.kernels["device"])
        .to_frame()
    )
    of_kernel, first = numbered(*(shapes[name] for name in _KEYS))
    table = shapes.loc[first, list(_KEYS)].reset_index(drop=True)
    contexts = shapes["context"].to_numpy().astype(np.int32)
    return LaunchShapes(of_kernel.astype(np.int32), contexts, _with_occupancy(table, trace))


@fact
def contexts_of_streams(trace: Trace) -> pd.DataFrame:
    """Return the CUDA context of each stream, by the kernels that ran on it in the recording.

    Columns: process, device, stream, context. Without streams of which no kernel tells one.
    """
    place = ["process", "device", "stream"]
    known = trace.whole.kernel_shapes.to_frame()[[*place, "context"]]
    known = known[(known[["context", "stream"]] != ABSENT).all(axis=1)].drop_duplicates()
    return known[~known.duplicated(place, keep=False)].reset_index(drop=True)


def _with_occupancy(table: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    n_rows = len(table)
    grid, block = (_product(table, f"{of}_x", f"{of}_y", f"{of}_z") for of in ("grid", "block"))
    sm_blocks = np.full(n_rows, ABSENT, np.int64)
    ratio = np.full(n_rows, np.nan)
    limiter = np.full(n_rows, "", object)
    sm_count = np.full(n_rows, ABSENT, np.int64)
    devices = table["device"].to_numpy()
    registers, shared = (table[name].to_numpy() for name in ("registers", "shared_bytes"))
    is_told = (block > 0) & (registers >= 0) & (shared >= 0)
    for device in np.unique(devices).tolist():
        capability, multiprocessors = _model_of(trace, device)
        here = devices == device
        sm_count[here] = multiprocessors
        limits = LIMITS.get(capability)
        rows = np.flatnonzero(here & is_told)
        if limits is not None and len(rows):
            found = occupancy_of(limits, block[rows], registers[rows], shared[rows])
            sm_blocks[rows], ratio[rows] = found.blocks, found.ratio
            names = list(found.limiters)
            holds = np.stack([found.limiters[name] for name in names], axis=1)
            limiter[rows] = [
                ", ".join(name for name, is_one in zip(names, each, strict=True) if is_one)
                for each in holds.tolist()
            ]
    at_once = np.where((sm_blocks > 0) & (sm_count > 0), sm_blocks * sm_count, 0)
    of_waves = np.maximum(at_once, 1)
    waves = np.where((at_once > 0) & (grid > 0), grid / of_waves, np.nan)
    rest = np.where(at_once > 0, grid % of_waves, 0)
    tail = np.where(rest == 0, 1.0, rest / of_waves)
    return table.assign(
        grid_blocks=grid,
        block_threads=block,
        sm_count=sm_count,
        sm_blocks=sm_blocks,
        occupancy_ratio=ratio,
        limiter=limiter,
        waves=waves,
        tail_ratio=np.where(np.isnan(waves), np.nan, tail),
    )


def _product(table: pd.DataFrame, *names: str) -> Ints:
    sizes = [table[name].to_numpy() for name in names]
    is_known = np.logical_and.reduce([size > 0 for size in sizes])
    return np.where(is_known, np.multiply.reduce([np.maximum(one, 0) for one in sizes]), ABSENT)


def _model_of(trace: Trace, device: int) -> tuple[int, int]:
    """Return compute capability and multiprocessors: what was recorded, else what the name says.

    A model that the user named wins, of AMD nothing is known.
    """
    hardware = (trace.hardware or Hardware()).over(built_in_hardware())
    row = trace.devices.to_frame()[trace.devices.to_frame()["device"] == device]
    name = str(row["name"].iloc[0]) if len(row) else ""
    told = [int(row[column].iloc[0]) if len(row) else ABSENT for column in _OF_DEVICES]
    model = hardware.model_of(name)
    said = [
        getattr(model, own, None) or ABSENT for own in ("compute_capability", "multiprocessors")
    ]
    pairs = zip(*((said, told) if hardware.chosen is not None else (told, said)), strict=True)
    capability, multiprocessors = (one if one > 0 else other for one, other in pairs)
    return capability, multiprocessors


_OF_DEVICES: Final = ("compute_capability", "sm_count")


SPEC: Final = ResultSpec.of("""
    table occupancy: one row per kernel and way of launching it, by total time; occupancy is
        theoretical: it follows from the launch, nothing was measured
    key name: the name of the kernel
    total total_ns: the durations of all added up
    derived share_ratio: total_ns of the sum over all rows
    total count: how often it was launched so
    mean(total_ns) occupancy_ratio: warps that a multiprocessor can hold of it to those that there
        can be at most
    same limiter: what allows no more blocks on a multiprocessor
    mean(total_ns) waves [number]: how often its blocks can fill the GPU; below 1 it never does
    mean(total_ns) tail_ratio: how full the last wave is
    key grid: blocks of the launch in x, y and z
    key block: threads of a block in x, y and z
    key registers [number]: registers of a thread
    key shared_bytes: static and dynamic shared memory of a block
    mean(total_ns) sm_blocks [number]: blocks of it on a multiprocessor
    derived mean_ns: the mean duration
    """)
_SIZES: Final = ("grid", "block")
_ADDED: Final = ("count", "total_ns")


def measure_occupancy(trace: Trace) -> Result:
    """Return the ways of launching kernels; of one that the window cuts its part inside."""
    shapes = launch_shapes(trace)
    kernels = trace.kernels.to_frame()
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
    table = result.to_frame()
    whole = int(table["total_ns"].sum())
    table = table.assign(
        share_ratio=table["total_ns"] / (whole or float("nan")),
        mean_ns=table["total_ns"] / table["count"],
    )
    table = in_order(table, "-total_ns", *SPEC.tables[0].keys)
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


OCCUPANCY = Analysis(
    "occupancy",
    SPEC,
    needs=("kernels", "kernel_shapes"),
    uses=("devices",),
    of_rank=measure_occupancy,
    finish=_finish,
)
