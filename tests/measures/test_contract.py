"""What every analysis must do, whatever it measures."""

from __future__ import annotations

import pickle
import pkgutil
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest

import traceprof.measures
from tests import real_traces
from tests.builders import TraceBuilder
from tests.golden.numbers import digest_of
from tests.measures.generated_run import Plan, make_run
from tests.requirements import require
from tests.running import run
from traceprof.errors import NotRecordedError, TraceprofError, UsageError
from traceprof.formats import ReadOptions, open_trace
from traceprof.formats.contract import narrowed
from traceprof.formats.runs import files
from traceprof.measures import ANALYSES, Entry, load_analysis
from traceprof.measures.analyses import Analysis, run_analysis
from traceprof.model.grouping import codes_of, groups_of
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, Unit
from traceprof.model.table import is_known
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.session import opening
from traceprof.session.options import Opening
from traceprof.session.run import open_run

ABSTAIN = ("network", "network-time")
"""Analyses for which the small trace has no data."""
EMPTY = ("nvprof/zero-kernels.sql",)
"""Traces without any time, in which no window lies."""
NUMBERS = (Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.BYTES_PER_S, Unit.PER_S, Unit.RATIO, Unit.COUNT)

by_name = pytest.mark.parametrize("entry", ANALYSES, ids=lambda entry: entry.name)


def small_trace() -> Trace:
    return (
        TraceBuilder()
        .step(0, 60)
        .step(60, 120)
        .phase("forward", 0, 60)
        .range("layer:0:Linear", 10, 20)
        .kernel("gemm", 20, 50, launched_ns=(5, 8), shape={"grid_x": 2, "block_x": 32})
        .copy("h2d", 0, 10, n_bytes=100, launched_ns=(1, 2))
        .host_op("aten::mm", 2, 9, inputs=([[2, 3], [3, 5]], ["float", "float"], []))
        .function("train.py(1): main", 0, 100)
        .sample("memory_allocated_bytes", 30, 1e6)
        .sample("power_watts", 30, 300.0, source="gpu:0")
        .build()
    )


def test_every_module_with_an_analysis_is_registered() -> None:
    package = traceprof.measures
    defined = {
        found.name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for found in vars(import_module(module.name)).values()
        if isinstance(found, Analysis)
    }
    assert {*defined, "findings"} == {entry.name for entry in ANALYSES}


@by_name
def test_the_entry_says_what_the_module_says(entry: Entry) -> None:
    analysis = load_analysis(entry.name)
    assert analysis.name == entry.name
    assert entry.summary
    assert (analysis.of_rank is None) != (analysis.of_ranks is None)


@by_name
def test_its_columns_are_declared(entry: Entry) -> None:
    analysis = load_analysis(entry.name)
    assert analysis.spec.tables
    assert {*analysis.tables, *analysis.whole} <= {*TABLES}
    for table in analysis.spec.tables:
        names = [column.name for column in table]
        assert len(set(names)) == len(names), table.name
        assert all(column.meaning for column in table)
        for column in table:
            if column.weight:
                assert column.weight in names
            for suffix, unit in (("_ratio", Unit.RATIO), ("_bytes", Unit.BYTES)):
                assert not column.name.endswith(suffix) or column.unit is unit, column.name


def check(result: Result) -> None:
    """Check that what a result holds is what its specification declares."""
    assert {*result.tables} <= {table.name for table in result.spec.tables}
    assert {*result.scalars} <= {scalar.name for scalar in result.spec.scalars}
    assert all(isinstance(note, Note) for note in result.notes)
    assert not result.samples
    for name, table in result.tables.items():
        spec = result.spec.table(name)
        declared = [column.name for column in spec]
        assert [*table] == [column for column in declared if column in table], name
        keys = [key for key in spec.keys if key in table]
        if keys and len(table):
            assert not groups_of(*(codes_of(table[key]) for key in keys)).earlier.any(), (
                name,
                keys,
            )
        for column in spec:
            if column.name in table and column.unit in NUMBERS:
                known = table[column.name][is_known(table[column.name])]
                assert all(isinstance(value, int | float) for value in known.tolist()), (
                    name,
                    column.name,
                )


@by_name
def test_it_runs_on_a_small_trace(entry: Entry) -> None:
    try:
        result = run(entry.name, small_trace())
    except NotRecordedError as error:
        assert entry.name in ABSTAIN, error
        return
    check(result)
    assert len(pickle.loads(pickle.dumps(result)).table) == len(result.table)


@by_name
def test_it_runs_where_everything_was_recorded_and_nothing_happened(entry: Entry) -> None:
    trace = small_trace()
    empty = {name: trace.table(name).head(0) for name in ("kernels", "copies", "ranges")}
    nothing = make_trace(TraceInfo(), empty, recorded=list(trace.recorded), span=trace.span)
    try:
        check(run(entry.name, nothing))
    except NotRecordedError as error:
        assert "record" in str(error)


@by_name
def test_it_abstains_where_its_data_was_not_recorded(entry: Entry) -> None:
    if load_analysis(entry.name).needs:
        with pytest.raises(NotRecordedError, match="record"):
            run(entry.name, make_trace(TraceInfo(), {}, recorded=()))


@by_name
def test_ranks_one_by_one_give_what_all_of_them_give_together(entry: Entry) -> None:
    if entry.name == "quality":
        return  # it names rows of files, which a merged table has not
    ranks = place_run(make_run(Plan(n_ranks=3, n_steps=6, hosts=("a", "a", "b"))))
    together = Ranks.of(ranks.merged())
    try:
        one_by_one = run(entry.name, ranks)
    except NotRecordedError:
        with pytest.raises(NotRecordedError):
            run(entry.name, together)
        return
    check(one_by_one)
    assert digest_of(one_by_one) == digest_of(run(entry.name, together))


@by_name
def test_a_trace_with_facts_goes_to_another_process(entry: Entry) -> None:
    ranks = place_run(make_run(Plan(n_ranks=2, n_steps=4)))
    try:
        here = run(entry.name, ranks)
    except NotRecordedError:
        return
    there = pickle.loads(pickle.dumps(ranks))
    assert there.facts.keys() == ranks.facts.keys()
    assert digest_of(run_analysis(load_analysis(entry.name), there)) == digest_of(here)


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="use findings, breakdown"):
        load_analysis("nonsense")


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be read once: what is asked for of a file is taken from that.

    It is what a reader would give (tests/formats/test_read_options.py).
    """
    whole = cache(partial(open_trace, options=ReadOptions()))

    def taken(path: Path | str, options: ReadOptions) -> Trace:
        return narrowed(whole(path), options)

    for module in (opening, files):
        monkeypatch.setattr(module, "open_trace", taken)


@pytest.mark.traces
@pytest.mark.parametrize("name", [name for name in real_traces.ALL if name not in EMPTY])
def test_what_it_says_that_it_reads_is_enough(name: str, read_once: None) -> None:
    path, here = Path(require("traces")) / name, Opening(jobs=1)
    everything = open_run([path], here).within("all")
    everything.of_ranks()  # reads every table
    by_tables = sorted(ANALYSES, key=lambda entry: sorted(load_analysis(entry.name).tables))
    for tables, entries in groupby(by_tables, lambda entry: load_analysis(entry.name).tables):
        alone = open_run([path], here).within("all")  # reads what these analyses ask for
        for entry in entries:
            try:
                result = everything.result(entry.name)
            except TraceprofError as error:
                with pytest.raises(type(error)):
                    alone.result(entry.name)
                continue
            check(result)
            assert digest_of(alone.result(entry.name)) == digest_of(result), (entry.name, tables)
