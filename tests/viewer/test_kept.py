"""A viewer that starts from what was kept: the same answers, and nothing read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.timing import TimeWindow
from traceprof.render.timeline.channels import Lanes
from traceprof.session.run import Run, open_run
from traceprof.viewer import panes
from traceprof.viewer.panes import Pane, open_pane
from traceprof.viewer.timeline import Timeline, read_timeline, write_timeline

pytestmark = pytest.mark.usefixtures("times_can_be_set")

TABLES = ("breakdown", "kernels")


def _builder() -> TraceBuilder:
    """9,000 kernels that are launched, a copy of known size, a counter, a step."""
    builder = TraceBuilder().step(0, 1_000_000, 0)
    for i in range(9_000):
        start = 100 * i
        call = (start, start + 5)
        builder.kernel(f"gemm{i % 3}", start, start + 50, launched_ns=call)
    builder.copy("h2d", 990_000, 1_000_000, stream=14, n_bytes=5_000_000_000)
    return builder.sample("gpu_power_w", 10, 300.5)


def _columns(lanes: Lanes) -> list[tuple[str, dict[str, Any]]]:
    every = [*lanes.channels, *(state for group in lanes.groups for state in group.states)]
    return [(c.category, {name: c.column(name).tolist() for name in c.columns}) for c in every]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    timeline = Timeline.of(_builder().build(), ["a remark"])
    file = tmp_path / "kept"
    write_timeline(timeline, file)
    found = read_timeline(file)
    assert _columns(found.lanes) == _columns(timeline.lanes)
    assert found.lanes.names == timeline.lanes.names
    assert (found.about, found.head) == (timeline.about, timeline.head)
    assert found.totals.counts.tolist() == timeline.totals.counts.tolist()
    assert found.totals.times_ns.tolist() == timeline.totals.times_ns.tolist()
    assert [s.values.tolist() for s in found.samples] == [[300.5]]
    for own, same in zip(found.lanes.channels, timeline.lanes.channels, strict=True):
        levels = timeline.levels_of(same)
        assert [level.bin_ns for level in found.levels_of(own)] == [x.bin_ns for x in levels]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An old file, and a cache for it."""
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path / "cache"))
    found = tmp_path / "trace.sqlite"
    _write(_builder(), found, 1e9)
    return found


def _write(builder: TraceBuilder, file: Path, changed_s: float) -> None:
    file.unlink(missing_ok=True)
    write_nsys(builder.build(), file)
    os.utime(file, (changed_s, changed_s))


def _told(pane: Pane) -> tuple[Any, ...]:
    part = TimeWindow(10_000, 500_000)
    every = range(len(pane.store.lanes.groups))
    names = pane.search.matching(b"\x02")
    views = [pane.store.view(part, width, every) for width in (10, 100_000)]
    found = pane.answer(None, TABLES).results
    return (
        pane.about,
        pane.store.overview,
        views,
        pane.search.listed(names, "longest", 5),
        pane.same_name.of(*_first_kernel(pane)),
        {name: found[name].table.to_frame().to_json() for name in TABLES},
    )


def _first_kernel(pane: Pane) -> tuple[int, int, int]:
    rows = [row for group in pane.store.lanes.groups for row in group.rows]
    place = next(i for i, row in enumerate(rows) if row.kind == "gpu")
    return place, 0, int(rows[place].channels[0].starts[0])


def test_the_second_start_says_the_same_and_reads_no_trace(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _told(open_pane("x", open_run([file])))

    def fail(*_: Any) -> None:
        raise AssertionError("the trace was read")

    monkeypatch.setattr(Run, "trace", fail)
    monkeypatch.setattr(Run, "answers", fail)
    assert _told(open_pane("x", open_run([file]))) == first


def test_of_a_large_run_nothing_is_held(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = open_pane("x", open_run([file]))
    monkeypatch.setattr(panes, "_MAX_EVENTS_IN_MEMORY", 100)
    large = open_pane("x", open_run([file]))
    for pane, is_held in ((small, True), (large, False)):
        pane.answer("0ns..100us", TABLES)
        assert ("devices" in repr(pane.run)) is is_held


def test_another_file_of_the_name_is_read_anew(file: Path) -> None:
    open_pane("x", open_run([file]))
    _write(TraceBuilder().kernel("other", 0, 10), file, 1e9 + 10)
    assert open_pane("x", open_run([file])).store.lanes.names == ("other",)
