"""Breakdown, overlap and the idle split of streams are those of HTA.

The numbers are what HolisticTraceAnalysis 0.5.0 prints for these files (HTA_DISABLE_NS_ROUNDING=1,
consecutive_kernel_delay=30), in whole µs as the files have them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import plain
from tests.running import run
from traceprof.formats import open_trace
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.selection import select

pytestmark = pytest.mark.traces

# rank: idle, compute, neither (µs), overlap of communication (%)
BREAKDOWNS = {
    0: (6419, 1034, 5556, 4.50),
    1: (6428, 1246, 11075, 2.47),
    2: (7046, 1068, 3236, 7.88),
    3: (8145, 1240, 9468, 3.31),
    4: (8887, 1126, 6576, 0.56),
    5: (9121, 1041, 6230, 0.64),
    6: (7051, 1051, 3308, 7.56),
    7: (8308, 1059, 1600, 9.51),
}

# rank: stream, host wait, kernel wait, other (µs)
STREAMS = {
    0: {(7, 11448, 123, 0), (22, 145, 0, 0), (24, 5906, 18, 0), (84, 4740, 3, 0)},
    2: {(7, 9777, 105, 0), (22, 142, 0, 0), (24, 4270, 23, 0), (84, 5423, 1, 0)},
}


def active(real_trace: Callable[[str], Path], rank: int) -> Trace:
    trace = open_trace(real_trace(f"kineto/dlrm-8ranks-v100/worker{rank}.pt.trace.json.gz"))
    return trace.within(select(Ranks.of(trace), "active").window)


@pytest.mark.parametrize("rank", BREAKDOWNS)
def test_the_breakdown_is_htas(rank: int, real_trace: Callable[[str], Path]) -> None:
    total = run("breakdown", active(real_trace, rank)).to_frame("total").iloc[0]
    neither_ns = total.duration_ns - total.idle_ns - total.compute_ns
    overlap = round(100 * total.communication_overlap_ratio, 2)
    found = (total.idle_ns, total.compute_ns, neither_ns)
    idle_us, compute_us, neither_us, overlap_percent = BREAKDOWNS[rank]
    assert found == (1000 * idle_us, 1000 * compute_us, 1000 * neither_us)
    assert overlap == overlap_percent


@pytest.mark.parametrize("rank", STREAMS)
def test_the_idle_split_of_streams_is_htas(rank: int, real_trace: Callable[[str], Path]) -> None:
    table = run("streams", active(real_trace, rank)).table.to_frame()
    rows = plain(table, "stream", "host_wait_ns", "kernel_wait_ns", "other_ns")
    assert {(stream, *(ns / 1000 for ns in waits)) for stream, *waits in rows} == STREAMS[rank]


def test_kernels_without_a_launch_do_not_wait_for_the_host(
    real_trace: Callable[[str], Path],
) -> None:
    # HTA joins the 64 kernels of this file that have no launch row to the first row of the
    # trace, and counts their 93 µs as host wait: 17449 and 115.
    table = run("streams", active(real_trace, 1)).table.to_frame()
    (row,) = plain(table[table["stream"] == 7], "host_wait_ns", "kernel_wait_ns", "other_ns")
    assert row == (1000 * (17449 - 93), 1000 * (115 + 93), 0)
