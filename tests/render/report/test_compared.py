"""The page of a comparison: colors of changes, and the way from a row into time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.builders import TraceBuilder
from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.render.figures import flames_in
from tests.render.timeline.tasks import MS, Reader, steps_of_ten
from traceprof.cli import app
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.results import Result, Unit
from traceprof.model.trace import Trace
from traceprof.render.report.compared import _bars_of_causes, delta
from traceprof.render.report.pair import pair_flame, typical_pair
from traceprof.render.timeline.beside import (
    SideBySideTimeline,
    TimelineSide,
    encode_side_by_side,
)


def row(**more: Any) -> dict[str, Any]:
    return {"base": 0.1, "new": 0.2, "change_ratio": 1.0, "better": "lower", **more}


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"verdict": "worse"}, "delta worse"),
        ({"verdict": "better", "better": "higher"}, "delta better"),
        ({"verdict": "no difference shown"}, "delta"),
        ({"verdict": "not enough data"}, "delta"),
        ({}, "delta"),
    ],
)
def test_a_change_has_a_color_where_it_is_more_than_chance(more: Any, kind: str) -> None:
    assert delta(row(**more), Unit.NS).startswith(f'<span class="{kind}">+100.0%')


def test_what_did_not_change_has_no_words() -> None:
    assert delta(row(new=0.1), Unit.RATIO) == ""


@pytest.mark.chromium
def test_a_row_of_a_kernel_leads_to_the_longest_of_it_on_the_axis_of_both(
    tmp_path: Path, open_page: Callable[..., OpenPage]
) -> None:
    """Steps of 10 ms; gemm takes 2 ms, in the new run 4 ms from step 2 on, in step 3 4.5 ms."""
    for name, slower_ms in (("base", 0), ("new", 2)):
        trace = steps_of_ten(5 if slower_ms else 0, slower_ms)
        if slower_ms:
            kernels = trace.kernels
            ends = kernels["end_ns"].copy()
            (last,) = np.flatnonzero(kernels["name"] == "gemm")[-1:]
            ends[last] += MS // 2
            trace = replace(trace, kernels=kernels.assign(end_ns=ends))
        write_nsys(trace, tmp_path / f"{name}.sqlite")
    page = tmp_path / "page.html"
    traces = [str(tmp_path / f"{name}.sqlite") for name in ("base", "new")]
    done = CliRunner().invoke(app, ["report", *traces, "-o", str(page)])
    assert done.exit_code == 0, done.output
    opened = open_page(page.read_text("utf-8"))
    assert opened.complaints == []
    leading = opened.page.locator("#kernels td a", has_text="gemm")
    leading.first.click()
    chosen = "document.querySelector('.details h3')?.textContent"
    Reader(opened).until(f"{chosen} === 'gemm'")
    details = opened.page.locator(".details").inner_text()
    assert "4.500 ms (4,500,000 ns)" in details.replace("\u202f", " ").replace("\xa0", " ")
    assert "B · " in details


def _compared(*causes: tuple[str, str, str, int]) -> list[dict[str, Any]]:
    rows = [
        {"name": name, "kind": kind, "part": part, "difference_ns": ns, "state": ""}
        for name, kind, part, ns in causes
    ]
    causes_table = SimpleNamespace(rows=lambda: rows)
    return _bars_of_causes(cast(Result, SimpleNamespace(tables={"causes": causes_table})))


def test_a_rest_below_rounding_is_no_cause_and_a_larger_one_is() -> None:
    large = [(f"k{i}", "kernel", "compute", 1_000_000 - i) for i in range(10)]
    labels = [bar["label"] for bar in _compared(*large, ("small", "kernel", "compute", -1))]
    assert labels == [name for name, *_ in large]
    labels = [bar["label"] for bar in _compared(*large, ("more", "kernel", "compute", 50_000))]
    assert labels[-1] == "other compute"


def test_a_kind_that_is_its_name_is_said_once() -> None:
    (bar,) = _compared(("data", "data", "idle", 1_000_000))
    assert bar["label"].split().count("data") == 1
    (bar,) = _compared(("load", "data", "idle", 1_000_000))
    assert bar["label"].endswith("data load")


def _beside(*traces: Trace) -> SideBySideTimeline:
    return encode_side_by_side(
        [TimelineSide(name, name, t) for name, t in zip("AB", traces, strict=True)]
    )


def test_the_pair_of_steps_is_the_most_typical_of_both_sides() -> None:
    """Steps of 10 ms; those of the new run from step 2 on take 2 ms more."""
    beside = _beside(steps_of_ten(0, n_steps=5), steps_of_ten(3, 2, n_steps=5))
    pair = typical_pair(beside)
    assert pair
    assert pair.label == "step 2"
    assert pair.spans == ((20 * MS, 30 * MS), (23 * MS, 35 * MS))
    # The axis begins with the 3 ms before the first step; slots are 10, 10 and 12 ms wide.
    assert f"&mark={23 * MS}..{35 * MS}" in pair.address()


def test_recordings_without_steps_are_the_pair() -> None:
    trace = TraceBuilder().device(0, "H100").kernel("k", MS, 3 * MS).build()
    pair = typical_pair(_beside(trace, trace))
    assert pair
    assert pair.label == "both recordings"


def test_the_flame_graph_of_a_pair_has_the_times_of_both_steps() -> None:
    beside = _beside(steps_of_ten(0), steps_of_ten(3, 2))
    pair = typical_pair(beside)
    assert pair
    (flame,) = flames_in(pair_flame(beside, pair))
    forward = flame["names"].index("forward")
    (host,) = (measure for measure in flame["measures"] if measure["title"] == "CPU time")
    assert (host["base"][forward], host["values"][forward]) == (5 * MS, 7 * MS)


_TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
_TOP_OF_FLAMES = "document.querySelector('#flame').getBoundingClientRect().top + scrollY"


@pytest.mark.chromium
def test_every_row_of_a_change_leads_to_both_steps(
    tmp_path: Path, open_page: Callable[..., OpenPage]
) -> None:
    for name, slower_ms in (("base", 0), ("new", 2)):
        write_nsys(steps_of_ten(5, slower_ms), tmp_path / f"{name}.sqlite")
    page = tmp_path / "page.html"
    traces = [str(tmp_path / f"{name}.sqlite") for name in ("base", "new")]
    done = CliRunner().invoke(app, ["compare", *traces, "-o", str(page)])
    assert done.exit_code == 0, done.output
    opened = open_page(page.read_text("utf-8"))
    rows = opened.page.locator("#difference tbody tr")
    assert rows.count() > 0
    assert rows.filter(has=opened.page.locator("a[href^='#at=']")).count() == rows.count()
    range_text = opened.page.locator(".range").inner_text()
    assert "32 of 34 events drawn as boxes" in range_text  # the steps are no events
    top = opened.js(_TOP_OF_FLAMES)
    opened.page.locator("#flame").scroll_into_view_if_needed()
    opened.js(_TWO_FRAMES)
    assert opened.js(_TOP_OF_FLAMES) == top, "what follows the timeline moves as one scrolls"
    opened.page.locator("#flame").get_by_role("link").click()
    shown = "[traceprof.t0, traceprof.t1]"
    Reader(opened).until(f"{shown}[1] - {shown}[0] < {20 * MS}")
    start, end = opened.js(shown)
    assert start < 25 * MS < 37 * MS < end
    opened.page.locator("#flame .boxes button", has_text="forward").first.click()
    opened.page.get_by_role("button", name="Find in the timeline").click()
    Reader(opened).until("document.querySelector('.search .note').textContent.includes('event')")
    assert opened.complaints == []


def _three_changes(*, is_new: bool) -> Trace:
    """Eight steps of 20 ms on one GPU; in the new run three of them are 2, 3 and 4 ms longer.

    Step 3: gemm takes 2 ms more. Step 4: the copy takes 3 ms more. Step 5: the GPU waits 4 ms more
    for the CPU, which is in its forward pass.
    """
    builder = TraceBuilder().process(1, rank=0, name="python").device(0, "H100")
    here: dict[str, Any] = {"process": 1, "device": 0, "stream": 7}
    t = 0
    for number in range(8):
        gemm, copy, wait = (MS * ms * (is_new and number == step) for step, ms in PLANTED.values())
        end = t + 20 * MS + gemm + copy + wait
        builder.step(t, end, number, process=1, thread=1)
        builder.copy("h2d", t + MS, t + 3 * MS + copy, n_bytes=1000, **here)
        t += copy
        builder.range("forward", t + 3 * MS, t + 11 * MS + gemm + wait, process=1, thread=1)
        builder.kernel("gemm", t + 4 * MS, t + 8 * MS + gemm, **here)
        t += gemm + wait
        builder.kernel("softmax", t + 11 * MS, t + 19 * MS, **here)
        t = end
    return builder.build()


PLANTED = {"gemm": (3, 2), "copy": (4, 3), "wait": (5, 4)}


@pytest.mark.chromium
def test_each_row_leads_to_the_pair_of_steps_and_the_place_where_it_changes_most(
    tmp_path: Path, open_page: Callable[..., OpenPage]
) -> None:
    for name in ("base", "new"):
        write_nsys(_three_changes(is_new=name == "new"), tmp_path / f"{name}.sqlite")
    page = tmp_path / "page.html"
    traces = [str(tmp_path / f"{name}.sqlite") for name in ("base", "new")]
    done = CliRunner().invoke(app, ["compare", *traces, "-o", str(page)])
    assert done.exit_code == 0, done.output
    opened = open_page(page.read_text("utf-8"))
    reader = Reader(opened)
    flames = opened.page.locator("#flame .pair")

    def follow(row: Any, step: int) -> str:
        """Follow a row; return the details, after a look at the span and the flame graph."""
        row.first.click()
        start, end = opened.js(
            f"[traceprof.trace.steps.starts[{step}], traceprof.trace.steps.ends[{step}]]"
        )
        reader.until(f"traceprof.t0 > {start} - {MS} && traceprof.t1 < {end} + {MS}")
        (flame,) = [flame for flame in flames.all() if flame.is_visible()]
        assert f"step {step}" in flame.inner_text()
        text: str = opened.page.locator(".details").inner_text()
        return text.replace("\u202f", " ").replace("\xa0", " ")

    links = opened.page.locator("#difference td a")
    details = follow(links.filter(has_text="gemm"), 3)
    assert "6.000 ms (6,000,000 ns)" in details
    assert "B · " in details
    assert "5.000 ms (5,000,000 ns)" in follow(links.filter(has_text="h2d"), 4)
    assert "7.000 ms" in follow(links.filter(has_text="forward"), 5)
    kernels = opened.page.locator("#kernels td a")
    assert "6.000 ms (6,000,000 ns)" in follow(kernels.filter(has_text="gemm"), 3)
    # A click also filters: what has another name is faint.
    assert opened.page.locator(".search input").input_value() == "gemm"
    assert "5.000 ms" in follow(opened.page.locator("#sum a", has_text="h2d"), 4)
    opened.page.locator("#steps a", has_text="step 6").click()
    reader.until("!document.querySelector('[data-others]').hidden")
    assert "no flame graph of the shown step" in opened.page.locator("#flame").inner_text()
    assert serious_violations(opened.page) == []
    assert opened.complaints == []
