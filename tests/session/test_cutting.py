"""Runs of several files: each file is cut by its own clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import real_traces
from tests.requirements import TRACES, require
from traceprof.model.ranks import Ranks
from traceprof.session.cutting import Cutting, cut_run
from traceprof.session.opening import Align, Opening
from traceprof.session.run import open_run


@pytest.mark.traces
@pytest.mark.parametrize("align", [Align.AUTO, Align.UTC])
@pytest.mark.parametrize("name", real_traces.RUNS)
def test_each_rank_keeps_what_it_did_in_the_window(name: str, align: Align, tmp_path: Path) -> None:
    require("traces")
    opening = Opening(align=align)
    run = open_run([TRACES / name], opening).within("20ms..100ms")
    cuts, _ = cut_run(run, tmp_path / "part", Cutting())
    whole, part = run.of_ranks(), open_run([tmp_path / "part"], opening).of_ranks().whole
    assert cuts.n_files == len(whole) == len(part)
    # Other collectives tell another drift of the clocks, by which durations are corrected.
    with_durations = align is Align.UTC
    expected, found = _kernels(whole, with_durations), _kernels(part, with_durations)
    assert sum(map(len, expected)) > 0
    assert found == expected


def _kernels(ranks: Ranks, with_durations: bool) -> list[list[tuple[str, int]]]:
    """Return name and, on a clock that nobody corrects, length of each kernel, by rank."""
    found = []
    for part in ranks:
        kernels = part.whole.kernels
        if part.uncut is not None:
            starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
            kernels = kernels[part.span.overlaps(starts, ends)]
        lengths = (kernels["end_ns"] - kernels["start_ns"]) * int(with_durations)
        found.append(sorted(zip(kernels["name"].astype(str), lengths.tolist(), strict=True)))
    return found
