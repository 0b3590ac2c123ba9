"""What one sees of a timeline before one does anything: the judged window, and the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, two_ranks
from traceprof.formats import open_trace
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.timeline.render import render_timeline
from traceprof.session.selection import select_default

pytestmark = pytest.mark.chromium


def _busy_ranks(n_ranks: int, n_streams: int) -> Trace:
    """Ranks with as many streams, and ranges nested ten deep on a thread of each."""
    builder = TraceBuilder()
    for rank in range(n_ranks):
        process = rank + 1
        builder.process(process, rank=rank, name="python").device(rank, "H100")
        for step in range(3):
            t = step * 10 * MS
            builder.step(t, t + 10 * MS, step, process=process, thread=process)
            for depth in range(1, 10):
                builder.range(f"d{depth}", t + depth, t + MS, process=process, thread=process)
            for stream in range(n_streams):
                builder.kernel("k", t + MS, t + 9 * MS, stream=stream, process=process, device=rank)
    return builder.build()


def _on_laptop(browser: Any, file: Path, trace: Trace) -> OpenPage:
    file.write_text(render_timeline(trace, title="first view"), "utf-8")
    opened = OpenPage(browser.new_page(viewport={"width": 1280, "height": 720}))
    opened.go(file)
    return opened


@pytest.mark.parametrize(("n_ranks", "n_streams"), [(2, 1), (2, 4), (8, 8), (200, 2)])
def test_two_gpus_are_in_view_on_a_laptop(
    browser: Any, tmp_path: Path, n_ranks: int, n_streams: int
) -> None:
    page = _on_laptop(browser, tmp_path / "page.html", _busy_ranks(n_ranks, n_streams))
    lanes = page.page.locator(".lane.group", has_text="H100" if n_ranks == 2 else "rank 1 ")
    first = page.page.locator(".lane.group", has_text="GPU 0").first.bounding_box()
    second = lanes.nth(1 if n_ranks == 2 else 0).bounding_box()
    assert first["y"] < second["y"] <= 720 - second["height"]
    # The lanes of a device stand above those of the threads of its process.
    threads = page.page.locator(".lane.group", has_text="Main thread")
    assert threads.first.bounding_box()["y"] > first["y"]
    assert page.complaints == []
    page.page.close()


def test_a_page_opens_at_the_window_that_is_judged(open_page: Callable[..., OpenPage]) -> None:
    trace = two_ranks()
    judged = select_default(Ranks.of(trace)).window
    assert judged.duration_ns < trace.span.duration_ns
    page = open_page(render_timeline(trace, title="judged"))
    zero = trace.span.start_ns
    assert page.js("[traceprof.t0, traceprof.t1]") == [
        judged.start_ns - zero,
        judged.end_ns - zero,
    ]
    page.page.locator(".plot").focus()
    page.page.keyboard.press("0")
    assert page.js("[traceprof.t0, traceprof.t1]") == [0, trace.span.duration_ns]


@pytest.mark.traces
def test_so_it_is_with_a_real_run(
    real_trace: Callable[[str], Path], browser: Any, tmp_path: Path
) -> None:
    trace = open_trace(real_trace("nsys/2026.2-2gpu-nccl-before.sqlite"))
    page = _on_laptop(browser, tmp_path / "page.html", trace)
    judged = select_default(Ranks.of(trace)).window
    assert page.js("traceprof.t1 - traceprof.t0") == judged.duration_ns
    for gpu in ("GPU 0", "GPU 1"):
        box = page.page.locator(".lane.group", has_text=gpu).bounding_box()
        assert box["y"] + box["height"] <= 720
    page.page.close()


FIRST = """
const seen = new MutationObserver(() => {
  if (!document.body || window.first) return;
  window.first = getComputedStyle(document.body).backgroundColor;
});
seen.observe(document, { childList: true, subtree: true });
"""


@pytest.mark.parametrize(
    ("system", "asked", "color"),
    [
        ("dark", "", "rgb(15, 20, 27)"),
        ("light", "", "rgb(246, 247, 249)"),
        ("light", "?theme=dark", "rgb(15, 20, 27)"),
    ],
)
def test_what_is_there_while_the_page_loads_is_dark_where_the_page_is(
    browser: Any, tmp_path: Path, system: str, asked: str, color: str
) -> None:
    file = tmp_path / "page.html"
    file.write_text(render_timeline(two_ranks(), title="dark"), "utf-8")
    context = browser.new_context(color_scheme=system)
    context.add_init_script(FIRST)
    page = OpenPage(context.new_page())
    page.go(file, asked)
    assert page.js("window.first") == color
    assert page.complaints == []
    context.close()
