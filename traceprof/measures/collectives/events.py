"""Every collective in the window, in time order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.callers import (
    callers_of_collectives,
    phases_of_collectives,
    steps_of_collectives,
    values_of_rows,
)
from traceprof.measures.collectives.members import find_members
from traceprof.measures.collectives.messages import peers_of_collectives
from traceprof.measures.collectives.operations import (
    are_in_window,
    collectives_of_ranks,
    require_collectives,
)
from traceprof.measures.collectives.rates import with_sizes
from traceprof.measures.rows import lengths_of, ratio_of, where_known
from traceprof.measures.steps.find import find_steps
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

SPEC: Final = ResultSpec.of("""
    table events: one row per collective, in time order
    same at_ns: start
    same op: operation
    same phase: phase of the training loop that called the collective
    same caller: innermost range around the call, such as a layer or module
    same step: step that called the collective
    same size_bytes: input size of this rank
    same dtype: element type
    same peer: destination of a send, or source of a receive
    same group: communicator; empty if it has no name
    same group_size [count]: number of ranks in the communicator
    same sequence [number]: sequence number in the communicator
    key process: process
    same device: GPU
    same stream: stream
    same duration_ns: duration, including waiting for other ranks
    same exposed_ns: time not overlapped with compute
    same delay_ns: time from the call to the start of the kernel
    same algbw_bytes_per_s: algorithm bandwidth: operation size divided by time
    same busbw_bytes_per_s: bus bandwidth: the rate that each link must carry
    same algorithm: algorithm, from the kernel name
    same protocol: protocol, from the kernel name
    same kernels_count: number of kernels
    key number [number]: index of the collective in the recording of the process, starting at 0
    """)
_TABLE: Final = SPEC.tables[0]
_DIRECTION_WORDS: Final = {"send": "to", "recv": "from"}


def measure_collective_events(ranks: Ranks) -> Result:
    """Return every collective that starts in the window.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(ranks)
    work = with_sizes(Table(collectives_of_ranks(ranks).columns))
    duration = where_known(lengths_of(work), work["is_timed"])
    delay = work["start_ns"] - work["call_ns"]
    has_delay = (work["call_ns"] != ABSENT) & (work["kernels"] > 0)
    numbers = ("group_size", "sequence", "device", "stream")
    table = work.assign(
        at_ns=work["start_ns"] - ranks.whole.span.start_ns,
        phase=values_of_rows(work, ranks.each(phases_of_collectives)),
        caller=values_of_rows(work, ranks.each(callers_of_collectives)),
        step=values_of_rows(work, ranks.each(_step_numbers)),
        size_bytes=where_known(work["n_bytes"], work["n_bytes"] >= 0),
        peer=_peers(ranks, work),
        **{name: where_known(work[name], work[name] >= 0) for name in numbers},
        duration_ns=duration,
        delay_ns=where_known(delay, has_delay),
        algbw_bytes_per_s=ratio_of(work["operation_bytes"], duration / 1e9),
        busbw_bytes_per_s=ratio_of(work["bus_bytes"], duration / 1e9),
        kernels_count=work["kernels"],
    )
    return Result("collective-events", SPEC, {"events": _TABLE.of_rows(table)})


def _step_numbers(part: Trace) -> npt.NDArray[np.float64]:
    """Return the step number of each collective of the whole recording; NaN outside all steps."""
    numbers = find_steps(part.whole).table["step"].astype(np.float64)
    return np.asarray(np.append(numbers, np.nan)[steps_of_collectives(part)], np.float64)


def _peers(ranks: Ranks, work: Table) -> npt.NDArray[np.object_]:
    """Return the peer of each send and receive; of several in one kernel, the ranks in it."""
    exchange: Names = work["exchange"]
    found = exchange.by_text([text and f"{{{text}}}" for text in exchange.texts.tolist()])
    found = found.astype(object)
    single = np.flatnonzero(work["op"].isin(_DIRECTION_WORDS))
    if not len(single):
        return found
    labels = [*(member.label for member in find_members(ranks)), ""]
    places = peers_of_collectives(ranks)[are_in_window(ranks)][single].tolist()
    calls = work.take(single)
    rows = zip(single.tolist(), calls["op"], places, calls["peer_rank"].tolist(), strict=True)
    for row, op, place, rank in rows:
        other = labels[place] if place >= 0 else f"rank {rank}" if rank >= 0 else ""
        found[row] = f"{_DIRECTION_WORDS[op]} {other}" if other else found[row]
    return found


COLLECTIVE_EVENTS: Final = Analysis(
    "collective-events",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes", "devices"),
    whole=("collectives", "kernels", "ranges"),
    of_steps=True,
    of_ranks=measure_collective_events,
)
