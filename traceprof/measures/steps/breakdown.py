"""Splits the time of each device into five parts and computes their shares of a step."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis, measured_by_rank
from traceprof.measures.device.times import device_parts, note_on_unrecorded
from traceprof.measures.rows import ratio_of
from traceprof.measures.steps.base import base_of_shares
from traceprof.model.activity import PARTS, Activity
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, columns
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MEASURES: Final = columns("""
    total duration_ns: duration of the window, without the parts that were not recorded
    total compute_ns: time in which compute kernels ran
    total exposed_communication_ns: time in which communication ran and compute kernels did not
    total exposed_transfer_ns: time in which copies to or from the host or another GPU ran and
        kernels did not
    total device_memory_ns: time in which only copies and memsets within GPU memory ran
    total idle_ns: time in which nothing ran
    total communication_ns: time in which communication ran, exposed or overlapped with compute
    total transfer_ns: time in which copies to or from the host or another GPU ran, exposed or
        overlapped with kernels
    total communication_overlap_ns: communication time overlapped with compute
    total transfer_overlap_ns: transfer time overlapped with kernels
    total kernel_ns: time in which any kernel ran
    derived compute_ratio: compute as a share of the step time, or of the window if the scalar
        `base` is `window`; the five shares from compute to idle add up to 100%
    derived exposed_communication_ratio: exposed communication as a share of the same time
    derived exposed_transfer_ratio: exposed transfers as a share of the same time
    derived device_memory_ratio: copies and memsets within GPU memory as a share of the same time
    derived idle_ratio: idle time as a share of the same time; if unprofiled steps give the step
        time, idle time is the step time minus the GPU's work
    derived utilization_ratio: kernel_ns divided by duration_ns (GPU-Util in nvidia-smi)
    derived communication_overlap_ratio: share of communication_ns that is overlapped with compute
    derived transfer_overlap_ratio: share of transfer_ns that is overlapped with kernels
    """)
_ON_GRAPHS: Final = (
    "The trace contains {graphs:count} CUDA graph launch(es) without kernels. traceprof counts the "
    "graph(s) as compute and cannot see gaps or communication inside."
)
_WITHOUT_COPIES: Final = Note(
    "Copies were not recorded. Idle time includes the time in which only copies ran."
)
_OF_COPIES: Final = re.compile("(exposed_)?transfer_|device_memory_").match
_RATIOS: Final = (
    ("utilization_ratio", "kernel_ns", "duration_ns"),
    ("communication_overlap_ratio", "communication_overlap_ns", "communication_ns"),
    ("transfer_overlap_ratio", "transfer_overlap_ns", "transfer_ns"),
)
BREAKDOWN_SPEC: Final = ResultSpec.of(
    """
    table devices: one row per GPU with activity in the trace
    key device: GPU index in the run
    same name: GPU model
    """,
    *_MEASURES,
    TableSpec("total", "sum over all GPUs", _MEASURES),
    """
    scalars:
    total graphs_count: CUDA graph launches that the trace contains as one kernel each
    same window_ns: duration of the window
    same base: base of the shares (step, iteration, or window)
    same base_ns: duration of the base
    """,
)


def measure_breakdown(ranks: Ranks) -> Result:
    """Return the five parts of every device with work anywhere in the recording."""
    result = measured_by_rank(ranks, _measure)
    devices = result.table
    base = base_of_shares(ranks)
    result = replace(result, scalars={**result.scalars, "base": base.unit, "base_ns": base.unit_ns})
    if devices.empty:
        empty = result.with_table(BREAKDOWN_SPEC.table("total").of_rows(), "total")
        return empty.with_notes(Note("GPU activity was recorded, but the trace contains none."))
    measures = [c.name for c in BREAKDOWN_SPEC.table("total") if c.name in devices]
    whole = Table({name: devices[name].sum(keepdims=True) for name in measures})
    parts = [{part: row[f"{part}_ns"] for part in PARTS} for row in devices.rows()]
    shares = {"devices": [base.shares([device]) for device in parts], "total": [base.shares(parts)]}
    for name, table in (("devices", devices), ("total", whole)):
        ratios = {ratio: ratio_of(table[part], table[of]) for ratio, part, of in _RATIOS}
        for part in PARTS:
            ratios[f"{part}_ratio"] = np.array([share.get(part, np.nan) for share in shares[name]])
        table = table.assign(**ratios)
        if "copies" not in ranks.recorded:
            unknown = np.full(len(table), np.nan)
            table = table.assign(**{column: unknown for column in table if _OF_COPIES(column)})
        result = result.with_table(table, name)
    graphs = int(result.scalars["graphs_count"])
    notes = [Note.of(_ON_GRAPHS, graphs=graphs)] if graphs else []
    notes += [_WITHOUT_COPIES] if "copies" not in ranks.recorded else []
    return result.with_notes(*notes, *note_on_unrecorded(result, devices["duration_ns"]))


def _measure(trace: Trace) -> Result:
    """Return the five parts of the devices of one rank."""
    graphs = (trace.kernels["activity"] == Activity.CUDA_GRAPH.value).sum()
    return Result(
        "breakdown",
        BREAKDOWN_SPEC,
        tables={"devices": BREAKDOWN_SPEC.table("devices").of_rows(device_parts(trace))},
        scalars={"graphs_count": int(graphs), "window_ns": trace.span.duration_ns},
    )


BREAKDOWN = Analysis(
    "breakdown",
    BREAKDOWN_SPEC,
    needs=("kernels",),
    # Launches identify work that was launched before the recording began.
    uses=("copies", "devices", "api_calls"),
    whole=("kernels", "copies", "api_calls"),
    of_ranks=measure_breakdown,
)
