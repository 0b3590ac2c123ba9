"""How kernels were launched: grid, block, registers, shared memory; the occupancy they allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.hardware.catalogue import Hardware, built_in_hardware
from traceprof.hardware.occupancy import LIMITS, cu_limits_of, occupancy_of, occupancy_of_cu
from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact
from traceprof.measures.rows import Ints, grouped, ints, lengths_of
from traceprof.model.combining import combine
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import codes_of, groups_of, numbered
from traceprof.model.packed import Packed
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, is_known, objects
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

    of_kernel: Packed
    contexts: Packed
    table: Table


@fact
def launch_shapes(trace: Trace) -> LaunchShapes:
    """Return how the kernels of the whole recording were launched."""
    shapes = shapes_of(trace.kernels, trace.kernel_shapes).assign(device=trace.kernels["device"])
    of_kernel, first = numbered(
        *(
            shapes.codes_of_column(name) if isinstance(shapes, CompactTable) else shapes[name]
            for name in _KEYS
        )
    )
    # Rows before columns: compact ones are made plain by looking at them.
    table = shapes.take(first).select(*_KEYS)
    contexts = Packed(shapes.stored("context"))
    return LaunchShapes(Packed(of_kernel), contexts, _with_occupancy(table, trace))


@fact
def contexts_of_streams(trace: Trace) -> Table:
    """Return the CUDA context of each stream, by the kernels that ran on it in the recording.

    Columns: process, device, stream, context. Without streams of which no kernel tells one.
    """
    place = ("process", "device", "stream")
    shapes = trace.whole.kernel_shapes.select(*place, "context")
    shapes = shapes.take((shapes["context"] != ABSENT) & (shapes["stream"] != ABSENT))
    known = shapes.take(numbered(*shapes.columns.values())[1])
    streams = groups_of(*ints(known, *place))
    return known.take((streams.counts == 1)[streams.number])


def _with_occupancy(table: Table, trace: Trace) -> Table:
    n_rows = len(table)
    grid, block = (_product(table, f"{of}_x", f"{of}_y", f"{of}_z") for of in ("grid", "block"))
    sm_blocks = np.full(n_rows, ABSENT, np.int64)
    ratio = np.full(n_rows, np.nan)
    limiter = np.full(n_rows, "", object)
    sm_count = np.full(n_rows, ABSENT, np.int64)
    devices, registers, shared = ints(table, "device", "registers", "shared_bytes")
    is_told = (block > 0) & (registers >= 0) & (shared >= 0)
    for device in np.unique(devices).tolist():
        capability, multiprocessors, name = _model_of(trace, device)
        here = devices == device
        sm_count[here] = multiprocessors
        limits, of_unit = LIMITS.get(capability), cu_limits_of(name)
        rows = np.flatnonzero(here & is_told)
        launch = block[rows], registers[rows], shared[rows]
        found = occupancy_of(limits, *launch) if limits else None
        found = occupancy_of_cu(of_unit, *launch) if of_unit else found
        if found is not None and len(rows):
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


def _product(table: Table, *names: str) -> Ints:
    sizes = ints(table, *names)
    is_known = np.logical_and.reduce([size > 0 for size in sizes])
    return np.where(is_known, np.multiply.reduce([np.maximum(one, 0) for one in sizes]), ABSENT)


def _model_of(trace: Trace, device: int) -> tuple[int, int, str]:
    """Return compute capability, multiprocessors and name: what was recorded, else what that says.

    A model that the user named wins; of AMD's the name alone tells.
    """
    hardware = (trace.hardware or Hardware()).over(built_in_hardware())
    rows = trace.devices.take(trace.devices["device"] == device).rows()
    row = rows[0] if rows else {}
    told = [row.get(column, ABSENT) for column in _OF_DEVICES]
    model = hardware.model_of(row.get("name", ""))
    said = [
        getattr(model, own, None) or ABSENT for own in ("compute_capability", "multiprocessors")
    ]
    pairs = zip(*((said, told) if hardware.chosen is not None else (told, said)), strict=True)
    capability, multiprocessors = (one if one > 0 else other for one, other in pairs)
    name = model.key if hardware.chosen is not None and model else str(row.get("name", ""))
    return capability, multiprocessors, name


_OF_DEVICES: Final = ("compute_capability", "sm_count")


SPEC: Final = ResultSpec.of("""
    table occupancy: one row per kernel and launch configuration, by total time; occupancy is
        calculated from the launch configuration, not measured
    key name: kernel name
    total total_ns: total duration of the launches
    derived share_ratio: total_ns as a share of the sum over all rows
    total count: number of launches with this configuration
    mean(total_ns) occupancy_ratio: theoretical occupancy (resident warps per SM divided by the
        maximum)
    same limiter: resource that limits the number of blocks per SM
    mean(total_ns) waves [number]: number of waves (blocks of the launch divided by the blocks that
        fit on the GPU at the same time); below 1, the kernel does not fill the GPU
    mean(total_ns) tail_ratio: share of the GPU that the last wave fills
    key grid: number of blocks per launch in x, y, and z
    key block: number of threads per block in x, y, and z
    key registers [number]: registers per thread
    key shared_bytes: static and dynamic shared memory per block
    mean(total_ns) sm_blocks [number]: resident blocks per SM
    derived mean_ns: mean duration
    """)
_SIZES: Final = ("grid", "block")
_COUNTS: Final = ("registers", "shared_bytes", "sm_blocks")


def measure_occupancy(trace: Trace) -> Result:
    """Return the ways of launching kernels; of one that the window cuts its part inside."""
    shapes = launch_shapes(trace)
    of_kernel = shapes.of_kernel[trace.rows_in_whole("kernels")].wide()
    groups, found = grouped({"name": trace.kernels["name"], "shape": of_kernel})
    shape = shapes.table.take(found["shape"])
    kept = shape.select("occupancy_ratio", "limiter", "waves", "tail_ratio")
    table = kept.assign(
        name=found["name"],
        **{of: objects(_triples(shape, of)) for of in _SIZES},
        **{of: np.where(shape[of] == ABSENT, np.nan, shape[of]) for of in _COUNTS},
    )
    # Devices of several models give the same launch different occupancies, those of one the same.
    number, first = numbered(*map(codes_of, table.columns.values()))
    same = groups_of(number)
    added = {"count": groups.counts, "total_ns": groups.reduced(np.add, lengths_of(trace.kernels))}
    table = table.take(first).assign(
        **{name: same.reduced(np.add, values) for name, values in added.items()}
    )
    launches = groups_of(*(codes_of(table[name]) for name in SPEC.tables[0].keys))
    place = np.empty(len(table), np.int64)
    place[launches.order] = np.arange(len(table)) - np.repeat(launches.first, launches.counts)
    alike = [table.take(place == n) for n in range(int(place.max(initial=0)) + 1)]
    return combine(
        [Result("occupancy", SPEC, {"occupancy": SPEC.tables[0].of_rows(part)}) for part in alike]
    )


def _triples(shape: Table, of: str) -> list[str]:
    sizes = zip(*(shape[f"{of}_{axis}"].tolist() for axis in "xyz"), strict=True)
    return ["" if min(each) < 0 else "×".join(map(str, each)) for each in sizes]


def _finish(result: Result) -> Result:
    table = result.table
    whole = int(table["total_ns"].sum())
    table = table.assign(
        share_ratio=table["total_ns"] / (whole or float("nan")),
        mean_ns=table["total_ns"] / table["count"],
    )
    table = table.in_order("-total_ns", *SPEC.tables[0].keys)
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: Table) -> list[Note]:
    times = table["total_ns"].astype(np.float64)
    is_unknown = ~is_known(table["occupancy_ratio"])
    if not times[is_unknown].sum():
        return []
    text = "Occupancy is unknown for {share:ratio} of kernel time. The trace does not contain "
    is_told = is_known(table["registers"]) & is_known(table["shared_bytes"])
    if is_told[is_unknown].any():
        text += "the GPU model. Use --gpu MODEL."
    else:
        text += "the registers and shared memory of these launches."
    return [Note.of(text, share=float(times[is_unknown].sum() / times.sum()))]


OCCUPANCY = Analysis(
    "occupancy",
    SPEC,
    needs=("kernels", "kernel_shapes"),
    uses=("devices",),
    of_rank=measure_occupancy,
    finish=_finish,
)
