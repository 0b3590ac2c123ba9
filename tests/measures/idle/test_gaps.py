import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.requirements import ROOT
from traceprof.formats import open_trace
from traceprof.measures.device.times import device_time
from traceprof.measures.idle import gaps, lanes
from traceprof.measures.idle.charges import find_charges
from traceprof.measures.idle.gaps import (
    CAUSES,
    find_gap_parts,
    find_gaps,
    times_in_gaps,
)
from traceprof.measures.idle.idle import cause_times_of_gaps
from traceprof.measures.idle.losses import find_idle_parts
from traceprof.model import grouping
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

works = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 20), st.integers(0, 60), st.integers(0, 1)),
    max_size=12,
)
host_states = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(0, 2)), max_size=6
)


def trace_of(
    work: list[tuple[int, int, int, int]], states: list[tuple[int, int, int]], cut: int
) -> Trace:
    """Return kernels and what the host does (loading, waiting, profiling), cut to a window."""
    builder = TraceBuilder().kernel("gemm", 90, 95)
    for start, length, ahead, device in work:
        launched = (start - ahead, start - ahead + 3)
        builder.kernel("gemm", start, start + length, launched_ns=launched, device=device)
    for start, length, kind in states:
        if kind == 0:
            builder.phase("data", start, start + length)
        elif kind == 1:
            builder.api_call("cudaDeviceSynchronize", start, start + length)
        else:
            builder.overhead("flush", start, start + length)
    return builder.build(span=(-80, 300)).within(TimeWindow(cut, 250))


@settings(deadline=None, max_examples=50)
@given(works, host_states, st.integers(0, 100))
def test_the_causes_add_up_to_the_idle_time(
    work: list[tuple[int, int, int, int]], states: list[tuple[int, int, int]], cut: int
) -> None:
    trace = trace_of(work, states, cut)
    gaps, parts = find_gaps(trace), find_idle_parts(trace)
    lengths = gaps["end_ns"] - gaps["start_ns"]
    causes = cause_times_of_gaps(trace, np.arange(len(gaps)))
    assert (parts["end_ns"] > parts["start_ns"]).all()
    assert (causes.sum(axis=1) == lengths).all()
    for place in range(len(CAUSES)):
        assert times_in_gaps(len(gaps), parts, place).tolist() == causes[:, place].tolist()
    for device in (0, 1):
        busy = device_time(trace, device).busy
        if device in gaps["device"] or len(busy):
            assert lengths[gaps["device"] == device].sum() == 250 - cut - busy.total_ns


@settings(deadline=None, max_examples=50)
@given(works, host_states, st.integers(0, 100))
def test_what_a_wait_drained_is_of_the_wait_and_nothing_else_differs(
    work: list[tuple[int, int, int, int]], states: list[tuple[int, int, int]], cut: int
) -> None:
    trace = trace_of(work, states, cut)
    gaps, parts, before = find_gaps(trace), find_idle_parts(trace), find_gap_parts(trace)
    assert (before["end_ns"] > before["start_ns"]).all()
    lengths = (gaps["end_ns"] - gaps["start_ns"]).tolist()
    assert times_in_gaps(len(gaps), before, *range(len(CAUSES))).tolist() == lengths
    more = {
        name: times_in_gaps(len(gaps), parts, place) - times_in_gaps(len(gaps), before, place)
        for place, name in enumerate(CAUSES)
    }
    assert (more.pop("synchronizing") >= 0).all()
    assert (more.pop("launch") <= 0).all()
    assert (more.pop("host") <= 0).all()
    assert not any(times.any() for times in more.values())


def test_many_gaps_are_looked_at_in_pieces() -> None:
    """Of a real recording the answers are the same, however many at a time."""
    path = ROOT / "fixtures" / "traces" / "h100-cnn.sqlite.gz"
    whole = open_trace(path)
    gaps, parts = find_gaps(whole).rows(), find_gap_parts(whole).rows()
    charges = find_charges(whole).times.rows()
    assert len(gaps) > 100
    for at_once in (7, 64):
        trace = open_trace(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grouping, "_PIECE_ROWS", at_once)
            assert find_gaps(trace).rows() == gaps
            assert find_gap_parts(trace).rows() == parts
            assert find_charges(trace).times.rows() == charges


def test_work_does_not_grow_with_processes_times_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of thousands of processes that share a file takes its own rows, not all of them."""
    tables_read, pieces = [], []
    read_columns, cut = lanes.ints, gaps._clip_to
    monkeypatch.setattr(
        lanes, "ints", lambda *asked, **rows: tables_read.append(1) or read_columns(*asked, **rows)
    )
    monkeypatch.setattr(gaps, "_clip_to", lambda *asked: pieces.append(1) or cut(*asked))
    counts = []
    for n_processes in (2, 40):
        builder = TraceBuilder()
        for process in range(n_processes):
            start = 100_000 * process
            launched = (start - 40_000, start - 30_000)
            builder.kernel("gemm", start, start + 500, process=process, launched_ns=launched)
        charged = find_charges(builder.build()).times
        assert (charged["name"] == "cudaLaunchKernel").sum() == n_processes
        counts.append((len(tables_read), len(pieces)))
        tables_read.clear(), pieces.clear()
    assert counts[0] == counts[1]
