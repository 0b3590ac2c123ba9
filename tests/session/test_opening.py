"""What the user says of how to read counts for whole and cut traces, for one file and for runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Clock, Plan, make_run
from traceprof.errors import UsageError
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.steps.find import find_steps, mark_steps, steps_of_ranks
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences
from traceprof.session.opening import open_ranks
from traceprof.session.options import Align, Opening
from traceprof.session.run import open_run


def stepped() -> Trace:
    """Eight steps of 100 ns from 0 on; every second one is also called a pair."""
    builder = TraceBuilder()
    for i in range(8):
        builder.step(100 * i, 100 * i + 100, number=i).kernel("gemm", 100 * i + 10, 100 * i + 90)
        if i % 2 == 0:
            builder.range(f"pair {i // 2}", 100 * i, 100 * i + 200, thread=2)
    return builder.build()


def written(folder: Path, plan: Plan) -> Path:
    for member in make_run(plan):
        write_nsys(member.trace, folder / f"rank{member.rank}.sqlite")
    return folder


def test_warmup_and_steps_can_be_said_of_a_cut_trace() -> None:
    cut = Ranks.of(stepped()).within(TimeWindow(200, 700))
    assert steps_of_ranks(cut).table.to_frame()["step"].tolist() == [2, 3, 4, 5, 6]

    told = cut.map(lambda part: part.with_warmup(4))
    assert told.span == cut.span
    assert steps_of_ranks(told).table.to_frame()["step"].tolist() == [2, 3, 4, 5, 6]
    assert steps_of_ranks(told).warmup().tolist() == [True, True, False, False, False]

    marked = mark_steps(cut, r"pair (\d+)")
    assert marked.span == cut.span
    assert steps_of_ranks(marked).table.to_frame()["step"].tolist() == [1, 2]
    assert [find_steps(part).source for part in marked] == ["ranges selected as steps"]

    both = mark_steps(told, r"pair (\d+)")
    assert steps_of_ranks(both).warmup().tolist() == [True, True]
    assert steps_of_ranks(both.whole).warmup().tolist() == [True] * 4


@pytest.mark.parametrize("window", [None, "all", "300ns..700ns"])
def test_options_of_steps_count_whatever_window_is_asked_for(
    tmp_path: Path, window: str | None
) -> None:
    path = tmp_path / "t.sqlite"
    write_nsys(stepped(), path)
    steps = open_run([path], Opening(warmup_steps=5)).within("all").steps().table.to_frame()
    assert steps["is_warmup"].tolist() == [True] * 5 + [False] * 3
    run = open_run([path], Opening(step_ranges=r"pair (\d+)")).within(window)
    assert set(run.steps().table.to_frame()["step"]) <= {0, 1, 2, 3}
    assert len(run.breakdown().table.to_frame()) == 1
    with pytest.raises(UsageError, match="no range matches the step pattern"):
        open_run([path], Opening(step_ranges="nothing")).within(window).breakdown()


def test_the_warmup_that_is_said_moves_the_default_window(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    write_nsys(stepped(), path)
    run = open_run([path], Opening(warmup_steps=6))
    assert sentences(run.selection.notes) == [
        "Steps 6–7 (traceprof.step()), timed on the host, because the trace does not link them to "
        "GPU activity. The first 6 steps (600 ns) are excluded as requested."
    ]
    assert run.breakdown().table.to_frame()["duration_ns"].tolist() == [200]


CLOCKS: Sequence[Clock] = (Clock(), Clock(offset_ns=7 * MS))


def test_clocks_are_aligned_as_asked(tmp_path: Path) -> None:
    folder = written(tmp_path, Plan(n_ranks=2, clocks=CLOCKS))
    starts = {}
    for way in Align:
        ranks, notes = open_ranks([folder], Opening(align=way))
        starts[way] = [int(part.kernels.to_frame()["start_ns"].iloc[0]) for part in ranks]
        assert bool(notes) == (way in (Align.AUTO, Align.COLLECTIVES))
    for way in (Align.AUTO, Align.COLLECTIVES):
        assert starts[way][0] == pytest.approx(starts[way][1], abs=1_000)
    for way in (Align.UTC, Align.NONE):
        assert starts[way][1] - starts[way][0] == 7 * MS
    noted = open_run([folder]).within("all").selection
    assert any(note.startswith("After clock alignment, ") for note in sentences(noted.notes))


def test_machines_are_what_the_user_says(tmp_path: Path) -> None:
    folder = written(tmp_path, Plan(n_ranks=2))
    opening = Opening(gpu="h100-sxm", racks=["r1=rank*"], cluster=tmp_path / "c.toml")
    (tmp_path / "c.toml").write_text('[hosts]\nrank-a = "0"\nrank-b = "1"\n')
    ranks, _ = open_ranks([folder], opening, frozenset({"kernels"}))
    assert ranks.hardware is not None
    assert [part.processes.to_frame()["rack"].tolist() for part in ranks] == [["r1"], ["r1"]]
    assert [part.processes.to_frame()["host"].tolist() for part in ranks] == [
        ["rank-a"],
        ["rank-b"],
    ]


def test_ranks_that_were_read_in_part_are_those_of_a_full_read(tmp_path: Path) -> None:
    folder = written(tmp_path, Plan(n_ranks=3, clocks=(Clock(), Clock(5), Clock(-9))))
    whole, _ = open_ranks([folder], Opening())
    part, _ = open_ranks([folder], Opening(), frozenset({"copies", "devices"}))
    for one, other in zip(part, whole, strict=True):
        assert one.span == other.span
        assert one.devices.to_frame().equals(other.devices.to_frame())
        assert one.processes.to_frame().equals(other.processes.to_frame())
    placed = place_run(make_run(Plan(n_ranks=3)))
    assert [part.devices.to_frame()["used"].tolist() for part in placed] == [[1], [1], [1]]
