"""Collectives by their place in the step."""

from __future__ import annotations

import pytest

from tests.builders import plain
from tests.measures.collectives.loop import loop
from tests.running import run
from traceprof.render.formatting import note_text


def test_buckets_in_the_order_of_the_step() -> None:
    table = run("buckets", loop()).to_frame()
    columns = ("place", "op", "phase", "size_bytes", "count", "after_ns", "duration_ns")
    assert plain(table, *columns, "exposed_ns") == [
        (1, "all_reduce", "backward", 4000, 2, 450, 100, 100),
        (2, "all_reduce", "backward", 8000, 2, 650, 100, 50),
    ]
    assert table["busbw_bytes_per_s"].tolist() == pytest.approx([40e9, 80e9])


def test_medians_say_over_how_many_steps_and_what_tells_them() -> None:
    result = run("buckets", loop())
    assert plain(result.to_frame("steps"), "step", "count") == [(0, 2), (1, 2)]
    (note,) = result.notes
    assert note_text(note) == f"Medians over 2 steps ({result.scalars['step_source']})"
