"""Where the time of each device went: the five parts, and their shares of a step."""

from __future__ import annotations

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
    total duration_ns: the length of the window, as far as it was recorded
    total compute_ns: when compute kernels ran
    total exposed_communication_ns: when communication ran and no compute hid it
    total exposed_transfer_ns: when copies from or to elsewhere ran and no kernel did
    total device_memory_ns: when only copies and memsets inside the device ran
    total idle_ns: when nothing ran
    total communication_ns: when communication ran, hidden or not
    total transfer_ns: when copies from or to elsewhere ran, hidden or not
    total communication_overlap_ns: communication that compute hides
    total transfer_overlap_ns: copies from or to elsewhere that kernels hide
    total kernel_ns: when any kernel ran
    derived compute_ratio: the share of compute in a step (of the window, where the scalar base says
        window); the next four shares are of the same, and together they are 100%
    derived exposed_communication_ratio: the share of exposed communication
    derived exposed_transfer_ratio: the share of exposed copies
    derived device_memory_ratio: the share of copies inside the device
    derived idle_ratio: the share of idle time; where steps that were not profiled tell how long a
        step is, what is left of such a step beside the work
    derived utilisation_ratio: kernel_ns of duration_ns: GPU-Util of nvidia-smi
    derived communication_overlap_ratio: the share of communication that is hidden
    derived transfer_overlap_ratio: the share of these copies that is hidden
    """)
_ON_GRAPHS: Final = (
    "{graphs:count} CUDA graph launches were traced whole and count as compute: "
    "gaps and communication inside them are not seen, unless their kernels are recorded"
)
_RATIOS: Final = (
    ("utilisation_ratio", "kernel_ns", "duration_ns"),
    ("communication_overlap_ratio", "communication_overlap_ns", "communication_ns"),
    ("transfer_overlap_ratio", "transfer_overlap_ns", "transfer_ns"),
)
BREAKDOWN_SPEC: Final = ResultSpec.of(
    """
    table devices: one row per device that worked
    key device: the number of the device in the run
    same name: what the device is
    """,
    *_MEASURES,
    TableSpec("total", "all devices added up, their parts and their durations", _MEASURES),
    """
    scalars:
    total graphs_count: CUDA graphs that were traced whole, as one kernel each
    same window_ns: the length of the window
    same base: what the shares are of: step, iteration, or window
    same base_ns: how long that is
    """,
)


def measure_breakdown(ranks: Ranks) -> Result:
    """Return the five parts of every device that worked anywhere in the recording."""
    result = measured_by_rank(ranks, _measure)
    devices = result.table
    base = base_of_shares(ranks)
    scalars = {**result.scalars, "base": base.unit, "base_ns": base.unit_ns}
    result = replace(result, scalars=scalars)
    if devices.empty:
        empty = result.with_table(BREAKDOWN_SPEC.table("total").of_rows(), "total")
        return empty.with_notes(Note("device work was recorded, but there was none"))
    measures = [c.name for c in BREAKDOWN_SPEC.table("total") if c.name in devices]
    whole = Table({name: devices[name].sum(keepdims=True) for name in measures})
    parts = [{part: row[f"{part}_ns"] for part in PARTS} for row in devices.rows()]
    shares = {"devices": [base.shares([own]) for own in parts], "total": [base.shares(parts)]}
    for name, table in (("devices", devices), ("total", whole)):
        ratios = {own: ratio_of(table[part], table[of]) for own, part, of in _RATIOS}
        for part in PARTS:
            ratios[f"{part}_ratio"] = np.array([own.get(part, np.nan) for own in shares[name]])
        result = result.with_table(table.assign(**ratios), name)
    graphs = int(result.scalars["graphs_count"])
    notes = [Note.of(_ON_GRAPHS, graphs=graphs)] if graphs else []
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
    needs=("kernels", "copies"),
    # Launches say which work was launched before the recording began.
    uses=("devices", "api_calls"),
    whole=("kernels", "copies", "api_calls"),
    of_ranks=measure_breakdown,
)
