"""What every analysis must do, whatever it measures."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

import traceprof.analysis
from tests import real_traces
from tests.builders import TraceBuilder
from traceprof.analysis import ANALYSES, Entry, load_analysis, run_analysis
from traceprof.errors import NotRecordedError, UsageError
from traceprof.formats import open_trace
from traceprof.session.selection import select
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.render.columns import format_cell
from traceprof.render.csv_text import to_csv
from traceprof.render.json_text import document_of, to_json

ABSTAIN = ("network", "network-time")
"""Analyses for which the small trace has no data."""

by_name = pytest.mark.parametrize("entry", ANALYSES, ids=lambda entry: entry.name)


def small_trace() -> Trace:
    return (
        TraceBuilder()
        .step(0, 60)
        .step(60, 120)
        .phase("forward", 0, 60)
        .range("layer:0:Linear", 10, 20)
        .kernel("gemm", 20, 50, launched_ns=(5, 8))
        .copy("h2d", 0, 10, n_bytes=100, launched_ns=(1, 2))
        .host_op("aten::mm", 2, 9)
        .sample("memory_allocated_bytes", 30, 1e6)
        .build()
    )


def test_every_module_with_an_analysis_is_registered() -> None:
    package = traceprof.analysis
    defining = {
        module.name.removeprefix(package.__name__)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if hasattr(import_module(module.name), "ANALYSIS")
    }
    assert defining == {entry.module for entry in ANALYSES}


@by_name
def test_the_entry_says_what_the_module_says(entry: Entry) -> None:
    analysis = load_analysis(entry.name)
    assert analysis.name == entry.name
    assert entry.summary


@by_name
def test_it_runs_on_a_small_trace_and_every_renderer_shows_it(entry: Entry) -> None:
    trace = small_trace()
    try:
        result = run_analysis(load_analysis(entry.name), trace)
    except NotRecordedError as error:
        assert entry.name in ABSTAIN, error
        return
    frame = result.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert all(isinstance(note, str) for note in result.notes)
    assert to_csv(frame).count("\n") >= len(frame)
    assert entry.name in to_json(document_of(trace, select(trace, "all"), {entry.name: result}, {}))
    for column in frame:
        assert all(isinstance(format_cell(str(column), value), str) for value in frame[column])


@by_name
def test_it_runs_where_everything_was_recorded_and_nothing_happened(entry: Entry) -> None:
    trace = small_trace()
    empty = {name: trace.table(name).iloc[:0] for name in ("kernels", "copies", "ranges")}
    nothing = make_trace(TraceInfo(), empty, recorded=list(trace.recorded), span=trace.span)
    try:
        run_analysis(load_analysis(entry.name), nothing).to_frame()
    except NotRecordedError as error:
        assert "record" in str(error)


@by_name
def test_it_abstains_where_its_data_was_not_recorded(entry: Entry) -> None:
    analysis = load_analysis(entry.name)
    if analysis.needs:
        with pytest.raises(NotRecordedError, match="record"):
            run_analysis(analysis, make_trace(TraceInfo(), {}, recorded=()))


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="there are findings, breakdown"):
        load_analysis("nonsense")


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_it_runs_on_real_traces(name: str, real_trace: Callable[[str], Path]) -> None:
    whole = open_trace(real_trace(name))
    trace = whole.within(select(whole, None).window)
    ran = 0
    for entry in ANALYSES:
        try:
            run_analysis(load_analysis(entry.name), trace).to_frame()
            ran += 1
        except NotRecordedError:
            continue
    assert ran
