"""What a question reads: its tables and its window, and the answer is that of a full read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.formats.kineto_file import kernel, write
from tests.measures.generated_run import Plan, make_run
from tests.requirements import TRACES, require
from tests.truth.scenarios import SCENARIOS
from traceprof import formats
from traceprof.errors import NotRecordedError, UsageError
from traceprof.formats import ReadOptions
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.runs import files
from traceprof.measures import ANALYSES
from traceprof.model.results import Result
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session import opening
from traceprof.session.answer import answer, page
from traceprof.session.run import Run, open_run

WORK = {"kernels", "copies", "devices"}
TELL_WHAT_IS_MISSING = {"ranges", "api_calls"}
EVENTS = {name for name, table in TABLES.items() if table.has_times}
Read = tuple[frozenset[str] | None, TimeWindow | None]
NAMES = [entry.name for entry in ANALYSES]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """What was read of single files, in order."""
    found: list[Read] = []
    open_trace = formats.open_trace

    def reading(path: Path, options: ReadOptions) -> Trace:
        found.append((options.tables, options.window))
        return open_trace(path, options)

    monkeypatch.setattr(opening, "open_trace", reading)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten steps of 200 ms, with all-reduces."""
    found = tmp_path / "rank0.sqlite"
    write_nsys(make_run(Plan(n_ranks=1)).members[0].trace, found)
    return found


def test_nothing_is_read_before_something_is_asked(path: Path, reads: list[Read]) -> None:
    run = open_run([path])
    assert "rank0.sqlite" in repr(run.within("step:3"))
    assert reads == []


def test_breakdown_of_everything_reads_its_tables_and_what_tells_what_is_missing(
    path: Path, reads: list[Read]
) -> None:
    answer(open_run([path]).within("all"), ["breakdown"])
    assert reads == [(frozenset(WORK | TELL_WHAT_IS_MISSING), None)]


def test_the_default_window_reads_what_it_takes_to_know_it_at_once(
    path: Path, reads: list[Read]
) -> None:
    answer(open_run([path]), ["breakdown"])
    assert reads == [(frozenset(WORK | TELL_WHAT_IS_MISSING), None)]


def test_a_page_reads_once(path: Path, reads: list[Read]) -> None:
    page(open_run([path]))
    assert len(reads) == 1


def test_a_small_window_of_one_file_is_read_alone(path: Path, reads: list[Read]) -> None:
    run = open_run([path]).within("210ms..310ms")
    found = run.kernels()
    (nothing, none), (tables, window) = reads
    assert nothing is not None and nothing.isdisjoint(EVENTS) and none is None
    assert tables == {"kernels", "ranges"}  # windows of our own recorder are among them
    assert window == run.selection.window
    assert window.duration_ns == 100_000_000
    whole = open_run([path])
    whole.trace()
    check_equal(found, whole.within("210ms..310ms").kernels())
    run.kernels()
    assert len(reads) == 2 + 1  # and the full one


def test_the_breakdown_of_a_window_looks_at_the_whole_recording(
    path: Path, reads: list[Read]
) -> None:
    """What devices did before the recording began is told by the first work of each stream."""
    open_run([path]).within("210ms..310ms").breakdown()
    assert {window for _, window in reads} == {None}


def test_of_a_window_of_a_large_file_the_launches_in_it_tell_what_is_missing(
    path: Path, reads: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.session.run.LARGE_BYTES", 0)
    answer(open_run([path]).within("210ms..310ms"), ["kernels"])
    (_, none), (tables, window), *others = reads
    assert none is None
    assert tables == WORK - {"devices"} | TELL_WHAT_IS_MISSING
    assert window is not None
    assert all(own is None or own.isdisjoint(EVENTS) or at is not None for own, at in others)


@pytest.mark.parametrize("planted", ["checkpoint", "validation", "compile_in_step_3"])
def test_a_large_file_names_the_occasions_that_make_steps_longer(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ranges have no names of steps or passes, but they decide which steps count."""
    scenario = next(one for one in SCENARIOS if one.name.startswith(planted))
    write_nsys(scenario.ranks.parts[0], tmp_path / "t.sqlite")
    whole = answer(open_run([tmp_path / "t.sqlite"]), ["breakdown"]).selection
    monkeypatch.setattr("traceprof.session.run.LARGE_BYTES", 0)
    found = answer(open_run([tmp_path / "t.sqlite"]), ["breakdown"]).selection
    assert scenario.occasion in whole.notes[1].text
    assert (found.window, found.notes) == (whole.window, whole.notes)


def test_a_large_window_is_cut_from_the_whole(path: Path, reads: list[Read]) -> None:
    open_run([path]).within("0ms..1900ms").breakdown()
    assert [window for _, window in reads] == [None, None]


def test_another_question_reads_what_is_missing(path: Path, reads: list[Read]) -> None:
    run = open_run([path]).within("all")
    run.copies()
    run.kernels()
    run.copies()
    assert len(reads) == 2
    run.launches()
    assert reads[2:] == [(frozenset({"api_calls"}), None)]
    assert repr(run.kernels().table.to_frame()) == repr(
        open_run([path]).within("all").kernels().table.to_frame()
    )


def test_what_must_be_parsed_as_a_whole_is_parsed_once(tmp_path: Path, reads: list[Read]) -> None:
    trace = write(tmp_path / "t.json", [kernel("gemm", 10 * i, 5) for i in range(100)])
    for window in (None, "all", "first:100us"):
        reads.clear()
        answer(open_run([trace]).within(window), ["kernels", "breakdown"])
        assert len(reads) == 1
    run = open_run([trace]).within("all")
    reads.clear()
    run.kernels()
    run.copies()
    run.quality()
    assert [tables for tables, _ in reads] == [
        {"kernels", "ranges"},
        set(TABLES) - {"kernel_shapes", "operator_inputs"},
    ]


def check_equal(one: Result, other: Result) -> None:
    assert one.tables.keys() == other.tables.keys()
    for name in one.tables:
        pd.testing.assert_frame_equal(
            one.tables[name].to_frame(), other.tables[name].to_frame(), obj=name
        )
    assert plain(one.scalars) == plain(other.scalars)
    assert list(map(plain, one.notes)) == list(map(plain, other.notes))


def plain(value: Any) -> str:
    return repr(value)


def asked(run: Run, name: str) -> Result | str:
    try:
        return run.result(name)
    except (NotRecordedError, UsageError) as error:
        return str(error)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the same tables of the same part of a file once, whichever analyses ask for them."""
    reading = cache(formats.open_trace)
    monkeypatch.setattr(opening, "open_trace", reading)
    monkeypatch.setattr(files, "open_trace", reading)


def check_partial_reads(paths: list[Path], windows: list[str | None]) -> None:
    """Compare every analysis on what it asks for with the same on everything."""
    whole = open_run(paths)
    whole.trace()
    different = []
    for window in windows:
        for name in NAMES:
            found = asked(open_run(paths).within(window), name)
            expected = asked(whole.within(window), name)
            try:
                if isinstance(found, str) or isinstance(expected, str):
                    assert found == expected
                else:
                    check_equal(found, expected)
            except AssertionError as error:
                different.append(f"{name} in {window}: {error}")
    assert not different, "\n".join(different)


@pytest.mark.usefixtures("read_once")
def test_every_analysis_says_on_its_tables_what_it_says_on_all(path: Path) -> None:
    check_partial_reads([path], [None, "all", "step:3", "650ms..760ms"])


@pytest.mark.usefixtures("read_once")
def test_every_analysis_of_a_run_says_on_its_tables_what_it_says_on_all(tmp_path: Path) -> None:
    extra = {(1, "forward"): 40_000_000}
    for member in make_run(Plan(n_ranks=3, hosts=["a", "b", "b"], extra_ns=extra)):
        write_nsys(member.trace, tmp_path / f"rank{member.rank}.sqlite")
    check_partial_reads([tmp_path], [None, "all", "650ms..760ms"])


@pytest.mark.traces
@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    "name",
    [
        "nsys/2026.2-2gpu-nccl-before.sqlite",
        "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz",
        "nsys/2024.6-llm-2.7b-nvtx-a100.sqlite",
        "nvprof/v16-nccl-4gpu.nvvp",
        "kineto/resnet18-2ranks-v100",
    ],
)
def test_every_analysis_of_real_traces_says_on_its_tables_what_it_says_on_all(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    require("traces")
    path = TRACES / name if name.startswith("kineto") else real_trace(name)
    check_partial_reads([path], [None, "10ms..30ms"])
