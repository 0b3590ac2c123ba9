"""Names as pages show them: the same rules as in the tables, told once to the browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader
from tests.requirements import ROOT, require
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.names.ranges import plain_name
from traceprof.render.timeline.beside import TimelineSide, render_side_by_side
from traceprof.render.timeline.encode import encode_lanes
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.render import render_timeline

READER = ROOT / "tests" / "render" / "timeline_js" / "decoded.mjs"
SOFTMAX = "void at::native::(anonymous namespace)::softmax_warp<{}, float>(float*)"
KERNELS = (
    SOFTMAX.format(4),
    "at::native::(anonymous namespace)::fused_dropout(float*)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(int)::"
    "[lambda() (instance 1)]::operator ()() const::[lambda(long) (instance 1)], T>(int, T2)",
)
LINEAR = "linear, seq = {}, op_id = {}"


def _trace(template: int = 4) -> Trace:
    """Three kernels in each of four calls of linear, all in ranges as emit_nvtx names them."""
    builder = TraceBuilder().process(1, rank=0, name="python").device(0, "H100")
    for i in range(4):
        t = i * 10 * MS
        builder.step(t, t + 10 * MS, i, process=1, thread=1)
        builder.range(LINEAR.format(47_485 + i, 9 + i), t, t + 5 * MS, process=1, thread=1)
        names = (SOFTMAX.format(template), *KERNELS[1:])
        for k, name in enumerate(names):
            at = t + (k + 1) * MS
            builder.kernel(name, at, at + MS, process=1, device=0, launched_ns=(at - 9, at - 5))
        builder.copy("h2d", t + 8 * MS, t + 9 * MS, n_bytes=1_000_000, process=1, device=0)
    return builder.build()


def _told(trace: Trace, folder: Path) -> dict[str, tuple[str, str]]:
    lanes = build_lanes(trace, trace.span)
    file = folder / "lanes.bin"
    file.write_bytes(encode_lanes(lanes, {"steps": {"starts": []}}))
    command = [require("node"), str(READER), "names", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, list[str]] = json.loads(done.stdout)
    rows = zip(found["names"], found["shorts"], found["alikes"], strict=True)
    return {name: (short, alike) for name, short, alike in rows}


def test_the_browser_shows_names_as_the_tables_do(tmp_path: Path) -> None:
    told = _told(_trace(), tmp_path)
    for name in KERNELS:
        assert told[name] == (short_name(name),) * 2
    assert [told[name][0] for name in KERNELS] == [
        "softmax_warp",
        "fused_dropout",
        "vectorized_elementwise_kernel (GeluCUDAKernelImpl)",
    ]
    for i in range(4):
        name = LINEAR.format(47_485 + i, 9 + i)
        assert told[name] == (plain_name(name),) * 2 == ("linear", "linear")
    assert told["Memcpy host → device (pinned → device)"][0].endswith("(pinned → device)")


def test_numbers_of_steps_are_shown_and_put_together(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel("k", 0, 9)
    for i, name in enumerate(("iteration 12", "iteration 13", "layer_3", "f(x)", "a::b")):
        builder.range(name, 10 * i, 10 * i + 5)
    told = _told(builder.build(), tmp_path)
    assert told["iteration 12"] == ("iteration 12", "iteration")
    assert told["iteration 13"] == ("iteration 13", "iteration")
    # What is no number of a step tells one from the other; a range is no declaration of C++.
    for name in ("layer_3", "f(x)", "a::b"):
        assert told[name] == (name, name)


@pytest.mark.chromium
def test_a_selection_has_a_row_for_each_kernel_and_one_for_all_linear(
    open_page: Callable[..., OpenPage],
) -> None:
    reader = Reader(open_page(render_timeline(_trace(), title="names")))
    reader.page.page.locator(".plot").focus()
    reader.press("0", "m")
    rows: dict[str, Any] = reader.table("GPU: activity in the selection")
    for name in KERNELS:
        assert rows[short_name(name)][1:4] == ["4.000 ms", "4", "1.000 ms"]
    host = reader.table("CPU: time covered")
    assert host["linear"][1:3] == ["20.00 ms", "4"]
    assert "" not in {*rows, *host}


@pytest.mark.chromium
def test_the_panel_is_called_shortly_and_has_the_whole_name(
    open_page: Callable[..., OpenPage],
) -> None:
    reader = Reader(open_page(render_timeline(_trace(), title="names")))
    reader.click_at(13.5 * MS, "Stream 7")
    assert reader.title == "vectorized_elementwise_kernel (GeluCUDAKernelImpl)"
    facts = reader.facts
    assert facts["name"] == KERNELS[2]
    assert facts["previous in this lane"].startswith("fused_dropout, ")
    assert "linear" in facts


@pytest.mark.chromium
def test_side_by_side_kernels_are_matched_by_it(open_page: Callable[..., OpenPage]) -> None:
    sides = (TimelineSide("A", "a", _trace(4)), TimelineSide("B", "b", _trace(8)))
    reader = Reader(open_page(render_side_by_side(sides, title="two")))
    rows = reader.table("GPU activity, largest difference first")
    # Another template is no other kernel: nothing differs.
    assert rows["softmax_warp"] == ["4.000 ms", "4.000 ms", "no change", "", "4"]
    assert len([name for name in rows if name.startswith("softmax_warp")]) == 1
