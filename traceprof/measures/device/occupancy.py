"""Launch configurations of kernels (grid, block, registers, shared memory) and their occupancy."""

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

_DEVICE_COLUMNS: Final = ("compute_capability", "sm_count")
_KEYS: Final = ("device", *(column for column in SHAPE_COLUMNS if column != "context"))


@dataclass(frozen=True, slots=True)
class LaunchShapes:
    """Launch configurations of the kernels of a recording.

    ``of_kernel`` has one element per kernel of the whole trace: a row index of ``table``.
    ``contexts`` has the CUDA context of each kernel. ``table`` has one row per configuration: the
    columns of `kernel_shapes` except the context, ``device``, and

    * ``grid_blocks`` and ``block_threads``: number of blocks and of threads per block,
    * ``sm_blocks``: resident blocks per SM,
    * ``occupancy_ratio``: resident warps divided by the maximum,
    * ``limiter``: resource that limits the resident blocks; "" if unknown,
    * ``waves``: blocks of the launch divided by the blocks that fit on the GPU at the same time,
    * ``tail_ratio``: share of the GPU that the last wave fills.

    Unknown integers are `ABSENT`, unknown ratios and waves are NaN.
    """

    of_kernel: Packed
    contexts: Packed
    table: Table


@fact
def launch_shapes(trace: Trace) -> LaunchShapes:
    """Return the launch configurations of the kernels of the whole recording."""
    shapes = shapes_of(trace.kernels, trace.kernel_shapes).assign(device=trace.kernels["device"])
    of_kernel, first = numbered(
        *(
            shapes.codes_of_column(name) if isinstance(shapes, CompactTable) else shapes[name]
            for name in _KEYS
        )
    )
    # Take rows before selecting columns: reading a column of a CompactTable expands all its rows.
    table = shapes.take(first).select(*_KEYS)
    return LaunchShapes(
        Packed(of_kernel), Packed(shapes.stored("context")), _with_occupancy(table, trace)
    )


@fact
def contexts_of_streams(trace: Trace) -> Table:
    """Return the CUDA context of each stream, from the kernels that ran on it in the recording.

    Columns: process, device, stream, context. Streams with no known context, or with several, are
    omitted.
    """
    place = ("process", "device", "stream")
    shapes = trace.whole.kernel_shapes.select(*place, "context")
    shapes = shapes.take((shapes["context"] != ABSENT) & (shapes["stream"] != ABSENT))
    known = shapes.take(numbered(*shapes.columns.values())[1])
    streams = groups_of(*ints(known, *place))
    return known.take((streams.counts == 1)[streams.number])


def _with_occupancy(table: Table, trace: Trace) -> Table:
    """Return the launch configurations with the calculated columns of `LaunchShapes.table`."""
    n_rows = len(table)
    grid, block = (
        _size_product(table, f"{of}_x", f"{of}_y", f"{of}_z") for of in ("grid", "block")
    )
    sm_blocks = np.full(n_rows, ABSENT, np.int64)
    ratio = np.full(n_rows, np.nan)
    limiter = np.full(n_rows, "", object)
    sm_count = np.full(n_rows, ABSENT, np.int64)
    devices, registers, shared = ints(table, "device", "registers", "shared_bytes")
    has_sizes = (block > 0) & (registers >= 0) & (shared >= 0)
    for device in np.unique(devices).tolist():
        capability, multiprocessors, name = _model_of(trace, device)
        on_device = devices == device
        sm_count[on_device] = multiprocessors
        limits, cu_limits = LIMITS.get(capability), cu_limits_of(name)
        rows = np.flatnonzero(on_device & has_sizes)
        launch = block[rows], registers[rows], shared[rows]
        found = occupancy_of(limits, *launch) if limits else None
        found = occupancy_of_cu(cu_limits, *launch) if cu_limits else found
        if found is not None and len(rows):
            sm_blocks[rows], ratio[rows] = found.blocks, found.ratio
            names = list(found.limiters)
            is_limiting = np.stack([found.limiters[name] for name in names], axis=1)
            limiter[rows] = [
                ", ".join(name for name, is_limiter in zip(names, flags, strict=True) if is_limiter)
                for flags in is_limiting.tolist()
            ]
    resident_blocks = np.where((sm_blocks > 0) & (sm_count > 0), sm_blocks * sm_count, 0)
    wave_blocks = np.maximum(resident_blocks, 1)
    waves = np.where((resident_blocks > 0) & (grid > 0), grid / wave_blocks, np.nan)
    last_blocks = np.where(resident_blocks > 0, grid % wave_blocks, 0)
    tail = np.where(last_blocks == 0, 1.0, last_blocks / wave_blocks)
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


def _size_product(table: Table, *names: str) -> Ints:
    """Return the product of three sizes in each row; `ABSENT` if any of them is unknown."""
    sizes = ints(table, *names)
    are_known = np.logical_and.reduce([size > 0 for size in sizes])
    return np.where(are_known, np.multiply.reduce([np.maximum(size, 0) for size in sizes]), ABSENT)


def _model_of(trace: Trace, device: int) -> tuple[int, int, str]:
    """Return compute capability, number of multiprocessors, and name of a device.

    Recorded values take precedence over the hardware catalog, but a model that the user specified
    takes precedence over both. The limits of AMD GPUs are found by name only.
    """
    hardware = (trace.hardware or Hardware()).over(built_in_hardware())
    rows = trace.devices.take(trace.devices["device"] == device).rows()
    row = rows[0] if rows else {}
    recorded = [row.get(column, ABSENT) for column in _DEVICE_COLUMNS]
    model = hardware.model_of(row.get("name", ""))
    catalogued = [
        getattr(model, field, None) or ABSENT for field in ("compute_capability", "multiprocessors")
    ]
    pairs = zip(
        *((catalogued, recorded) if hardware.chosen is not None else (recorded, catalogued)),
        strict=True,
    )
    capability, multiprocessors = (
        preferred if preferred > 0 else fallback for preferred, fallback in pairs
    )
    name = model.key if hardware.chosen is not None and model else str(row.get("name", ""))
    return capability, multiprocessors, name


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
    """Return the launch configurations by kernel; a kernel that the window cuts counts in part."""
    shapes = launch_shapes(trace)
    of_kernel = shapes.of_kernel[trace.rows_in_whole("kernels")].wide()
    groups, found = grouped({"name": trace.kernels["name"], "shape": of_kernel})
    shape = shapes.table.take(found["shape"])
    occupancy = shape.select("occupancy_ratio", "limiter", "waves", "tail_ratio")
    table = occupancy.assign(
        name=found["name"],
        **{of: objects(_format_sizes(shape, of)) for of in _SIZES},
        **{of: np.where(shape[of] == ABSENT, np.nan, shape[of]) for of in _COUNTS},
    )
    # The same launch has the same occupancy on all devices of a model, but not on other models.
    number, first = numbered(*map(codes_of, table.columns.values()))
    same = groups_of(number)
    total_ns = groups.reduced(np.add, lengths_of(trace.kernels))
    table = table.take(first).assign(
        count=same.reduced(np.add, groups.counts), total_ns=same.reduced(np.add, total_ns)
    )
    launches = groups_of(*(codes_of(table[name]) for name in SPEC.tables[0].keys))
    place = np.empty(len(table), np.int64)
    place[launches.order] = np.arange(len(table)) - np.repeat(launches.first, launches.counts)
    parts = [table.take(place == n) for n in range(int(place.max(initial=0)) + 1)]
    return combine(
        [Result("occupancy", SPEC, {"occupancy": SPEC.tables[0].of_rows(part)}) for part in parts]
    )


def _format_sizes(shape: Table, of: str) -> list[str]:
    """Return the grid or block sizes as text, for example "8×4×1"; "" if unknown."""
    sizes = zip(*(shape[f"{of}_{axis}"].tolist() for axis in "xyz"), strict=True)
    return ["" if min(size) < 0 else "×".join(map(str, size)) for size in sizes]


def _finish(result: Result) -> Result:
    table = result.table
    whole = int(table["total_ns"].sum())
    table = table.assign(
        share_ratio=table["total_ns"] / (whole or float("nan")),
        mean_ns=table["total_ns"] / table["count"],
    ).in_order("-total_ns", *SPEC.tables[0].keys)
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: Table) -> list[Note]:
    """Return the share of kernel time with unknown occupancy, and the reason."""
    times = table["total_ns"].astype(np.float64)
    is_unknown = ~is_known(table["occupancy_ratio"])
    if not times[is_unknown].sum():
        return []
    text = "Occupancy is unknown for {share:ratio} of kernel time. The trace does not contain "
    has_resources = is_known(table["registers"]) & is_known(table["shared_bytes"])
    if has_resources[is_unknown].any():
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
