"""Runs of several files: each file is cut by its own clock."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from tests.formats.test_cut_round_trip import told, values_of
from tests.requirements import TRACES, require
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import analysis_names
from traceprof.model.ranks import Ranks
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.options import Align, Opening
from traceprof.session.run import open_run

NEED_WHAT_LIES_OUTSIDE: Final = frozenset(
    {"idle", "gaps", "findings", "whatif", "sync", "steps", "step-phases", "rank-steps", "path"}
    | {"buckets", "ranks", "collectives", "collective-events", "shared", "stragglers", "alignment"}
    | {"mfu", "ideal"}
)
"""As docs/cut.md says, and why."""
DIVIDES_AN_OPERATOR: Final = ("kineto/dlrm-8ranks-v100", "45%..46%")
"""Kernels of one operator are on both sides of the border here, so FLOPs and bytes differ."""


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.RUNS)
def test_each_rank_keeps_what_it_did_in_the_window(name: str, tmp_path: Path) -> None:
    require("traces")
    run = open_run([TRACES / name]).within("20ms..100ms")
    cuts, _ = cut_run(run, tmp_path / "part", Cutting())
    whole, part = run.of_ranks(), open_run([tmp_path / "part"]).of_ranks().whole
    assert cuts.n_files == len(whole) == len(part)
    expected, found = _kernels(whole), _kernels(part)
    assert sum(map(len, expected)) > 0
    assert found == expected


@pytest.mark.traces
@pytest.mark.parametrize("window", ["5%..20%", "45%..46%"])
@pytest.mark.parametrize("name", real_traces.RUNS[:2])
def test_analyses_of_a_part_are_those_of_the_window(name: str, window: str, tmp_path: Path) -> None:
    require("traces")
    # Collectives tell how clocks drift: those of a part say something else than those of all.
    opening = Opening(align=Align.UTC, is_cached=False)
    whole = open_run([TRACES / name], opening).within(window)
    cut_run(whole, tmp_path / "part", Cutting())
    part = open_run([tmp_path / "part"], opening)
    begins = [_begins_ns(run.of_ranks().whole) for run in (whole, part)]
    moved_ns = begins[1] - begins[0]
    inside = whole.selection.window
    part = part.within(f"@{inside.start_ns - moved_ns}..@{inside.end_ns - moved_ns}")
    compared = [name for name in analysis_names() if name not in NEED_WHAT_LIES_OUTSIDE]
    if (name, window) == DIVIDES_AN_OPERATOR:
        compared = [name for name in compared if not name.startswith("flops")]
    assert len(compared) > len(NEED_WHAT_LIES_OUTSIDE)
    for analysis in compared:
        expected, found = told(whole, analysis), told(part, analysis)
        assert (expected is None) == (found is None), analysis
        if expected is not None and found is not None:
            assert values_of(found, moved_ns) == values_of(expected, 0), analysis


def _begins_ns(ranks: Ranks) -> int:
    """Return when the clock of the run begins, in UTC."""
    return min(part.info.utc_epoch_ns or 0 for part in ranks)


def _kernels(ranks: Ranks) -> list[list[str]]:
    """Return the names of the kernels by rank; how long they are depends on how clocks drift."""
    found = []
    for part in ranks:
        kernels = part.whole.kernels.to_frame()
        if part.uncut is not None:
            starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
            kernels = kernels[part.span.overlaps(starts, ends)]
        found.append(sorted(kernels["name"].astype(str)))
    return found


@pytest.mark.parametrize(
    ("window", "says"),
    [("40%..60%", ["the window contains no events; most kernels start in 0%..1% and 99%..100% of "
                   "the trace"]),
     ("0%..60%", [])],
)  # fmt: skip
def test_an_empty_part_says_where_the_work_is(tmp_path: Path, window: str, says: list[str]) -> None:
    builder = TraceBuilder()
    for at in (0, 1_000_000):
        for i in range(5):
            builder.kernel("gemm", at + i * 100, at + i * 100 + 90)
    path = tmp_path / "trace.sqlite"
    write_nsys(builder.build(), path)
    run = open_run([path], Opening(is_cached=False)).within(window)
    cuts, _ = cut_run(run, tmp_path / "part.sqlite", Cutting())
    assert [remark for remark in cuts.remarks if "no events" in remark] == says
