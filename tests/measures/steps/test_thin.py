"""Steps that lack launches with their kernels; and what looks like it, and is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from tests.requirements import require
from tests.running import run
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.lost_work import missing_work
from traceprof.measures.steps.completeness import LACKS_WORK, wholeness_of_steps
from traceprof.measures.steps.thin import are_thin
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.caveats import missing_in
from traceprof.session.run import open_run

MS = 1_000_000


@dataclass
class Work:
    """What a step does: kernels in the range "model" and after it, and for how long."""

    model: int = 40
    after: int = 10
    length_ns: int = 10 * MS
    model_ns: int = 6 * MS
    kernel_ns: int = 100_000
    name: str = "gemm"
    calls: str = "cudaLaunchKernel"


def steps_of(works: list[Work], *, in_windows: bool = False) -> Trace:
    """Return steps, each with a range "model" in which it launches some of its kernels."""
    trace, at = TraceBuilder(), MS
    for number, work in enumerate(works):
        trace.step(at, at + work.length_ns, number)
        trace.range("model", at + 1_000, at + work.model_ns)
        for i in range(work.model + work.after):
            inside = i < work.model
            first = at + 2_000 + i * 20_000 if inside else at + work.model_ns + i * 20_000
            begins = first + 50_000
            call = (first, first + 4_000)
            trace.kernel(work.name, begins, begins + work.kernel_ns, launched_ns=call)
        at += work.length_ns
    if in_windows:
        trace.range("traceprof.window", MS, at, domain=TRACEPROF_DOMAIN)
    return trace.build()


def thin(trace: Trace) -> list[int]:
    return [number for number, own in enumerate(are_thin(trace).tolist()) if own]


FULL = Work()
LOST = Work(model=0)  # as long on the host, and every launch of one thread is missing


@pytest.mark.parametrize("in_windows", [False, True])
def test_steps_that_did_the_same_for_as_long_lack_their_launches(in_windows: bool) -> None:
    lost = [LOST if 4 <= i < 10 else FULL for i in range(16)]
    trace = steps_of(lost, in_windows=in_windows)
    assert thin(trace) == [4, 5, 6, 7, 8, 9]
    assert (wholeness_of_steps(trace) == LACKS_WORK).tolist() == [4 <= i < 10 for i in range(16)]
    (note,) = missing_work(Ranks.of(trace))
    assert note_text(note) == (
        "6 of 16 steps have far fewer kernel launches than other steps, although the host did the "
        "same work for the same time"
    )
    result = run("quality", trace).table
    assert "work missing" in result["check"].tolist()


def test_where_most_steps_lack_them_idle_time_is_not_judged() -> None:
    trace = steps_of([FULL if i in (1, 2, 3, 4) else LOST for i in range(30)])
    assert len(thin(trace)) == 23  # what was recorded whole has one before and one after it
    assert not run("findings", trace).scalars["is_idle_known"]


def every(n: int, one: Work, other: Work) -> list[Work]:
    return [one if i % n == n - 1 else other for i in range(20)]


LIKE_IT = {
    "the last step is cut off": [*[FULL] * 12, LOST],
    "the first one compiles": [LOST, *[FULL] * 12],
    "gradients accumulate: the optimizer of every fourth": every(4, Work(after=60), Work(after=0)),
    "evaluation: shorter, and half as many kernels": every(
        4, Work(model=15, after=0, length_ns=4 * MS, model_ns=2 * MS), FULL
    ),
    "evaluation in a loop that waits for data": every(
        4, Work(model=15, after=0, model_ns=2 * MS), FULL
    ),
    "a scaler skips the optimizer": every(4, Work(after=0), Work(after=60)),
    "other work, as long": every(2, Work(model=10, name="attention"), FULL),
    "larger kernels, as long": every(2, Work(model=10, after=5, kernel_ns=400_000), FULL),
    "two such steps alone": [LOST if i in (5, 9) else FULL for i in range(16)],
    "all alike": [FULL] * 12,
    "hardly any kernels": every(2, Work(model=0, after=1), Work(model=9, after=1)),
}


@pytest.mark.parametrize("works", LIKE_IT.values(), ids=LIKE_IT)
def test_what_looks_like_it_is_none(works: list[Work]) -> None:
    assert thin(steps_of(works)) == []


def test_replays_of_a_graph_have_its_kernels() -> None:
    trace = TraceBuilder()
    for number in range(14):
        at = MS + number * 10 * MS
        trace.step(at, at + 10 * MS, number).range("model", at + 1_000, at + 6 * MS)
        for i in range(40):
            first, begins = at + 2_000 + i * 20_000, at + 60_000 + i * 100_000
            if number < 7:  # before it is captured
                trace.kernel("gemm", begins, begins + 90_000, launched_ns=(first, first + 4_000))
            else:
                trace.kernel("gemm", begins, begins + 90_000, correlation=9_000 + number)
        if number >= 7:
            trace.api_call("cudaGraphLaunch", at + 2_000, at + 9_000, correlation=9_000 + number)
    assert thin(trace.build()) == []


def test_between_windows_of_the_recorder_nothing_is_missing() -> None:
    trace = TraceBuilder()
    for number in range(20):
        at = MS + number * 10 * MS
        trace.step(at, at + 10 * MS, number).range("model", at + 1_000, at + 6 * MS)
        for i in range(40 if number in (3, 4, 5, 6, 12, 13, 14, 15) else 0):
            first = at + 2_000 + i * 20_000
            call = (first, first + 4_000)
            trace.kernel("gemm", first + 50_000, first + 90_000, launched_ns=call)
    for first_step in (3, 12):
        start = MS + first_step * 10 * MS
        trace.range("traceprof.window", start, start + 40 * MS, domain=TRACEPROF_DOMAIN)
    assert thin(trace.build()) == []


@pytest.mark.traces
def test_an_older_nsys_left_out_a_thread_in_some_steps(real_trace: Callable[[str], Path]) -> None:
    trace = open_run([real_trace("h100/cnn-nsys2023.4-lost-kernels.sqlite.gz")]).trace()
    assert len(thin(trace.whole)) == 9


WHOLE = [*real_traces.ALL, *(f"h100/{n}-embedded.sqlite.gz" for n in ("gpt", "cnn", "item"))]


@pytest.mark.traces
@pytest.mark.parametrize("name", [n for n in WHOLE if "zero-kernels" not in n])
def test_no_shared_trace_that_is_whole_lacks_them(name: str) -> None:
    ranks = open_run([Path(require("traces")) / name]).within("all").of_ranks()
    assert [thin(part) for part in ranks] == [[]] * len(ranks)


def test_of_a_large_file_all_ranges_are_read_where_steps_may_be_thin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.session.run.LARGE_BYTES", 0)
    found = []
    for name, lost in (("lost", LOST), ("whole", FULL)):
        write_nsys(steps_of([lost if 4 <= i < 10 else FULL for i in range(16)]), tmp_path / name)
        run_of_file = open_run([tmp_path / name])
        notes = missing_in(run_of_file, frozenset({"kernels"}))
        names = run_of_file.of_ranks(frozenset({"kernels"})).whole.parts[0].ranges["name"]
        found.append((len(notes), "model" in names.distinct()))
    assert found == [(1, True), (0, False)]
