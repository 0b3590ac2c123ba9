"""What `info` prints of GPUs that did no work, or of which none was recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.formats.nsys.writer import write_nsys
from traceprof.render.registry import Options
from traceprof.render.text.contents import render_contents
from traceprof.session.contents import describe
from traceprof.session.options import Opening


@pytest.mark.parametrize(
    ("with_kernel", "is_recorded", "said"),
    [
        (True, True, "1 more GPU without activity in this trace"),
        (False, True, "1 GPU without activity in this trace"),
        (False, False, "1 GPU without recorded activity"),
    ],
)
def test_gpus_without_work_are_not_those_that_were_not_recorded(
    tmp_path: Path, with_kernel: bool, is_recorded: bool, said: str
) -> None:
    builder = TraceBuilder().range("train", 0, 100).device(1, name="H100")
    path = tmp_path / "t.sqlite"
    write_nsys((builder.kernel("gemm", 0, 50) if with_kernel else builder).build(), path)
    contents = describe([path], Opening())
    rows = {**contents.rows, "kernels": int(with_kernel) if is_recorded else None}
    contents = replace(contents, rows=rows)
    text = render_contents(contents, Options())
    assert said in " ".join(text.split())
    assert "–" not in text
