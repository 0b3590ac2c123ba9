"""What was recorded of devices in windows only is not known outside of them: never idle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.requirements import require
from tests.running import run
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.device.times import recorded_times
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.formatting import note_text
from traceprof.render.palette import NOT_RECORDED
from traceprof.render.report.places import StillPictures
from traceprof.render.timeline.drawn import device_states, draw_ranks
from traceprof.session.run import open_run

MS = 1_000_000
WINDOWS = ((10, 20), (40, 50))


def windowed() -> Trace:
    """10 ms of windows twice in 100 ms; in each work of 1 ms a ms apart, the last past its end."""
    trace = TraceBuilder().device(0, "H100").process(1, rank=0)
    for start, end in WINDOWS:
        trace.range("traceprof.window", start * MS, end * MS, domain=TRACEPROF_DOMAIN)
        for at in range(start, end, 2):
            length = 3 if at == end - 2 else 1
            trace.kernel(
                "gemm", at * MS, (at + length) * MS, launched_ns=(at * MS - 9, at * MS - 1)
            )
    trace.range("training", 0, 100 * MS)
    return trace.build()


def test_times_outside_of_windows_are_in_no_part() -> None:
    trace = windowed()
    assert recorded_times(trace, 0).starts.tolist() == [10 * MS, 40 * MS]
    assert recorded_times(trace, 0).ends.tolist() == [21 * MS, 51 * MS]  # seen to its end
    (row,) = run("breakdown", trace).table.rows()
    assert (row["duration_ns"], row["compute_ns"], row["idle_ns"]) == (22 * MS, 14 * MS, 8 * MS)
    (note,) = run("breakdown", trace).notes
    assert note_text(note) == (
        "The trace covers 22.0 ms of the 100 ms window on 1 GPU. "
        "traceprof does not count the rest as idle time."
    )


def test_gaps_idle_time_and_breakdown_agree() -> None:
    trace = windowed()
    gaps, idle = run("gaps", trace).table, run("idle", trace)
    assert gaps["duration_ns"].tolist() == [MS] * 8
    (device,) = idle.tables["devices"].rows()
    assert (device["recorded_ns"], device["idle_ns"]) == (22 * MS, 8 * MS)
    assert idle.tables["causes"]["total_ns"].sum() == 8 * MS
    inside = trace.within(TimeWindow(12 * MS, 45 * MS))
    (row,) = run("breakdown", inside).table.rows()
    assert row["duration_ns"] == (21 - 12 + 45 - 40) * MS
    assert row["idle_ns"] == run("gaps", inside).table["duration_ns"].sum()


def test_a_window_in_which_nothing_was_recorded_has_no_idle_time() -> None:
    outside = windowed().within(TimeWindow(60 * MS, 90 * MS))
    (row,) = run("breakdown", outside).table.rows()
    assert (row["duration_ns"], row["idle_ns"], len(run("gaps", outside).table)) == (0, 0, 0)


def test_the_timeline_says_so_and_its_states_fill_the_page() -> None:
    trace = windowed()
    (group,) = (
        own
        for own in draw_ranks(Ranks.of(trace), trace.span, 1_000).lanes.groups
        if own.kind == "device"
    )
    (unknown,) = group.states  # the others follow from the lanes
    assert unknown.category == NOT_RECORDED
    assert unknown.starts.tolist() == [0, 21 * MS, 51 * MS]
    assert unknown.ends.tolist() == [10 * MS, 40 * MS, 100 * MS]
    states = {
        own.category: int((own.ends - own.starts).sum()) for own in device_states(group, 100 * MS)
    }
    assert states == {"compute": 14 * MS, "idle": 8 * MS, NOT_RECORDED: 78 * MS}


def test_the_ranges_that_tell_windows_are_read_whatever_is_asked(tmp_path: Path) -> None:
    write_nsys(windowed(), tmp_path / "own.sqlite")
    (row,) = open_run([tmp_path / "own.sqlite"]).within("all").result("breakdown").table.rows()
    assert row["duration_ns"] == 22 * MS


def test_pictures_of_places_draw_nothing_where_nothing_was_recorded() -> None:
    pictures = StillPictures(Ranks.of(windowed()))
    (shares,) = pictures._shares([0], np.array([0, 10 * MS, 21 * MS, 40 * MS]))
    assert [round(float(sum(own[i] for own in shares.values())), 9) for i in range(3)] == [0, 1, 0]


@pytest.mark.traces
@pytest.mark.parametrize("name", ["gpt", "item", "cnn", "graphs"])
def test_recordings_of_an_h100_are_not_idle_between_their_windows(name: str) -> None:
    path = Path(require("traces")) / "h100" / f"{name}-embedded.sqlite.gz"
    run = open_run([path]).within("all")
    breakdown, idle = run.result("breakdown"), run.result("idle")
    (row,), (device,) = breakdown.table.rows(), idle.tables["devices"].rows()
    assert row["duration_ns"] == device["recorded_ns"] < 0.5 * run.of_ranks().span.duration_ns
    assert row["idle_ns"] == device["idle_ns"] == idle.table["total_ns"].sum()


@pytest.mark.parametrize(
    ("launched_ns", "busy_until", "unknown_ns"),
    [
        pytest.param((0, 5), 0, 8 * MS - 5, id="waits for nothing that is known"),
        pytest.param((0, 5), 7 * MS, 0, id="waits for another stream"),
        pytest.param((0, 7 * MS), 0, 0, id="its launch takes long, as it loads a kernel"),
        pytest.param((6 * MS, 6 * MS + 5), 0, 0, id="was launched late"),
        pytest.param(None, 0, 0, id="nobody knows when it was launched"),
    ],
)
def test_work_from_before_the_recording_was_not_recorded(
    launched_ns: tuple[int, int] | None, busy_until: int, unknown_ns: int
) -> None:
    builder = TraceBuilder().kernel("first", 8 * MS, 9 * MS, launched_ns=launched_ns)
    builder.api_call("cudaFree", 0, 1)
    if busy_until:
        builder.kernel("other", 10, busy_until, stream=9, launched_ns=(1, 9))
    trace = builder.build(span=(0, 10 * MS))
    assert 10 * MS - recorded_times(trace, 0).total_ns == unknown_ns


def test_a_part_has_all_work_that_reaches_into_it() -> None:
    """Its first work was launched before it: who cut it out saw what ran until then."""
    builder = TraceBuilder().kernel("k", 8 * MS, 9 * MS, launched_ns=(0, 5))
    for is_part, unknown_ns in ((True, 0), (False, 8 * MS - 5)):
        trace = builder.build(info=TraceInfo("t", is_part=is_part), span=(0, 10 * MS))
        assert 10 * MS - recorded_times(trace, 0).total_ns == unknown_ns


def test_of_work_that_always_waits_the_first_is_no_other() -> None:
    builder = TraceBuilder()
    for turn in range(3):
        at = 10 * MS * turn
        builder.kernel("k", at + 8 * MS, at + 9 * MS, launched_ns=(at, at + 5))
    assert recorded_times(builder.build(span=(0, 30 * MS)), 0).total_ns == 30 * MS
