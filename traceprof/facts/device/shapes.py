"""How kernels were launched, each way once, and the theoretical occupancy of each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.hardware.catalogue import Hardware, built_in_hardware
from traceprof.hardware.occupancy import LIMITS, occupancy_of
from traceprof.model.grouping import places_of
from traceprof.model.tables import ABSENT, SHAPE_COLUMNS, shapes_of
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["LaunchShapes", "contexts_of_streams", "launch_shapes"]

_Int64Array = npt.NDArray[np.int64]
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
    shapes = shapes_of(trace.kernels, trace.kernel_shapes).assign(
        device=trace.kernels["device"].to_numpy()
    )
    of_kernel, first = _distinct(shapes)
    table = shapes.loc[first, list(_KEYS)].reset_index(drop=True)
    contexts = shapes["context"].to_numpy().astype(np.int32)
    return LaunchShapes(of_kernel, contexts, _with_occupancy(table, trace))


@fact
def contexts_of_streams(trace: Trace) -> pd.DataFrame:
    """Return the CUDA context of each stream, by the kernels that ran on it in the recording.

    Columns: process, device, stream, context. Without streams of which no kernel tells one.
    """
    place = ["process", "device", "stream"]
    known = trace.whole.kernel_shapes[[*place, "context"]]
    known = known[(known[["context", "stream"]] != ABSENT).all(axis=1)].drop_duplicates()
    return known[~known.duplicated(place, keep=False)].reset_index(drop=True)


def _distinct(shapes: pd.DataFrame) -> tuple[npt.NDArray[np.int32], _Int64Array]:
    """Return the number of each row's shape, and a row of each shape."""
    code: npt.NDArray[Any] = np.zeros(len(shapes), np.int64)
    for column in _KEYS:
        values = shapes[column].to_numpy()
        if not len(values) or bool((values == values[0]).all()):
            continue
        place, distinct = places_of(values)
        code = places_of(code.astype(np.int64) * len(distinct) + place)[0]
    code, _ = pd.factorize(code)
    # Numbers are given in the order of appearance: the first of each is greater than all before.
    is_first = np.ones(len(code), np.bool_)
    is_first[1:] = code[1:] > np.maximum.accumulate(code)[:-1]
    return code.astype(np.int32), np.flatnonzero(is_first)


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
    at_once = np.where((sm_blocks > 0) & (sm_count > 0), sm_blocks * sm_count, ABSENT)
    waves = np.where((at_once > 0) & (grid > 0), grid / np.where(at_once > 0, at_once, 1), np.nan)
    rest = np.where(at_once > 0, grid % np.where(at_once > 0, at_once, 1), 0)
    tail = np.where(rest == 0, 1.0, rest / np.where(at_once > 0, at_once, 1))
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


def _product(table: pd.DataFrame, *names: str) -> _Int64Array:
    sizes = [table[name].to_numpy() for name in names]
    is_known = np.logical_and.reduce([size > 0 for size in sizes])
    return np.where(is_known, np.multiply.reduce([np.maximum(one, 0) for one in sizes]), ABSENT)


def _model_of(trace: Trace, device: int) -> tuple[int, int]:
    """Return compute capability and multiprocessors: what was recorded, else what the name says.

    A model that the user named wins, of AMD nothing is known.
    """
    hardware = (trace.hardware or Hardware()).over(built_in_hardware())
    row = trace.devices[trace.devices["device"] == device]
    name = str(row["name"].iloc[0]) if len(row) else ""
    told = [int(row[column].iloc[0]) if len(row) else ABSENT for column in _OF_DEVICES]
    model = hardware.model_of(name)
    said = [ABSENT, ABSENT]
    if model is not None:
        said = [model.compute_capability or ABSENT, model.multiprocessors or ABSENT]
    first, second = (said, told) if hardware.chosen is not None else (told, said)
    capability, multiprocessors = (
        one if one > 0 else other for one, other in zip(first, second, strict=True)
    )
    return capability, multiprocessors


_OF_DEVICES: Final = ("compute_capability", "sm_count")
