"""Where the time of each device went: five parts that add up to the window exactly.

`traceprof.model.activity` says what the parts are.
"""

from __future__ import annotations

from typing import Final

import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.device.parts import device_parts
from traceprof.model.activity import Activity
from traceprof.model.results import (
    Column,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

_MEASURES: Final = (
    total("duration_ns", Unit.NS, "the length of the window, as far as it was recorded"),
    total("compute_ns", Unit.NS, "when compute kernels ran"),
    total("exposed_communication_ns", Unit.NS, "when communication ran and no compute hid it"),
    total("exposed_transfer_ns", Unit.NS, "when copies from or to elsewhere ran and no kernel did"),
    total("device_memory_ns", Unit.NS, "when only copies and memsets inside the device ran"),
    total("idle_ns", Unit.NS, "when nothing ran"),
    total("communication_ns", Unit.NS, "when communication ran, hidden or not"),
    total("transfer_ns", Unit.NS, "when copies from or to elsewhere ran, hidden or not"),
    total("communication_overlap_ns", Unit.NS, "communication that compute hides"),
    total("transfer_overlap_ns", Unit.NS, "copies from or to elsewhere that kernels hide"),
    total("kernel_ns", Unit.NS, "when any kernel ran"),
    derived("utilisation_ratio", Unit.RATIO, "kernel_ns of duration_ns: GPU-Util of nvidia-smi"),
    derived("communication_overlap_ratio", Unit.RATIO, "the share of communication that is hidden"),
    derived("transfer_overlap_ratio", Unit.RATIO, "the share of these copies that is hidden"),
)
_RATIOS: Final = (
    ("utilisation_ratio", "kernel_ns", "duration_ns"),
    ("communication_overlap_ratio", "communication_overlap_ns", "communication_ns"),
    ("transfer_overlap_ratio", "transfer_overlap_ns", "transfer_ns"),
)
_DEVICE: Final[tuple[Column, ...]] = (
    key("device", "the number of the device in the run", Unit.NUMBER),
    same("name", Unit.TEXT, "what the device is"),
)
SPEC: Final = ResultSpec(
    tables=(
        TableSpec("devices", "one row per device that worked", (*_DEVICE, *_MEASURES)),
        TableSpec("total", "all devices added up, their parts and their durations", _MEASURES),
    ),
    scalars=(
        total("graphs_count", Unit.COUNT, "CUDA graphs that were traced whole, as one kernel each"),
    ),
)


def measure_breakdown(trace: Trace) -> Result:
    """Return the five parts of every device that worked anywhere in the recording."""
    graphs = (trace.kernels["activity"] == Activity.CUDA_GRAPH.value).sum()
    return Result(
        "breakdown",
        SPEC,
        tables={"devices": SPEC.table("devices").frame(device_parts(trace))},
        scalars={"graphs_count": int(graphs)},
    )


def _finish(result: Result) -> Result:
    devices = result.table
    if devices.empty:
        empty = result.with_table(SPEC.table("total").frame(), "total")
        return empty.with_notes(Note("device work was recorded, but there was none"))
    measures = [c.name for c in SPEC.table("total") if c.name in devices]
    whole = devices[measures].sum().to_frame().T.astype("int64")
    finished = result.with_table(_with_ratios(devices)).with_table(_with_ratios(whole), "total")
    graphs = int(result.scalars["graphs_count"])
    return finished.with_notes(*([_on_graphs(graphs)] if graphs else []))


def _with_ratios(frame: pd.DataFrame) -> pd.DataFrame:
    ratios = {name: frame[part] / frame[of].where(frame[of] > 0) for name, part, of in _RATIOS}
    return frame.assign(**ratios)


def _on_graphs(graphs: int) -> Note:
    return Note.of(
        "{graphs:count} CUDA graph launches were traced whole and count as compute: "
        "gaps and communication inside them are not seen (nsys --cuda-graph-trace=node)",
        graphs=graphs,
    )


ANALYSIS = Analysis(
    name="breakdown",
    spec=SPEC,
    needs=("kernels", "copies"),
    uses=("devices",),
    of_rank=measure_breakdown,
    finish=_finish,
)
