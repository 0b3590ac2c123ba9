"""Many ranks: one line each until somebody looks closer, and what is out of sight costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.render.timeline.tasks import MS, Reader
from traceprof.model.trace import Trace
from traceprof.render.timeline.render import render_timeline

pytestmark = pytest.mark.chromium

N_RANKS = 200
LATE = 187


def many_ranks() -> Trace:
    """Each rank: one step of 10 ms, a kernel of 6 ms (of the late rank 8 ms), an all-reduce."""
    builder = TraceBuilder()
    for rank in range(N_RANKS):
        process, late = rank + 1, 2 * MS * (rank == LATE)
        here = {"process": process, "device": rank}
        builder.process(process, rank=rank, name="python").device(rank, "H100")
        builder.step(0, 10 * MS, 0, process=process, thread=process)
        call = (MS, MS + 10_000)
        builder.kernel("gemm", MS, 7 * MS + late, launched_ns=call, thread=process, **here)
        builder.kernel("ncclAllReduce", 9 * MS, 10 * MS, stream=20, **here)
    return builder.build()


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenPage]:
    file: Path = tmp_path_factory.mktemp("many") / "many.html"
    file.write_text(render_timeline(many_ranks(), title="many ranks"), "utf-8")
    opened = OpenPage(browser.new_page(viewport={"width": 1400, "height": 900}))
    opened.go(file)
    yield opened
    assert opened.complaints == []


@pytest.fixture
def reader(page: OpenPage) -> Reader:
    reader = Reader(page)
    reader.begin()
    return reader


def test_each_rank_is_one_line_and_only_what_is_in_sight_is_drawn(reader: Reader) -> None:
    js = reader.page.js
    assert js("traceprof.lines.filter((l) => l.type === 'group').length") == N_RANKS + 1
    assert js("traceprof.height") > 22 * N_RANKS
    reader.until("!traceprof.frame")
    heights = js("[traceprof.canvas.height, traceprof.figure.offsetHeight]")
    assert all(900 < height < 3000 for height in heights)


def test_a_late_rank_far_below_is_found_read_and_opened(reader: Reader) -> None:
    page = reader.page
    page.page.evaluate(f"traceprof.showLine({{ group: {2 * LATE} }})")
    reader.until("traceprof.band.top > 0 && !traceprof.frame")
    assert page.page.locator(".held").is_visible()
    reader.click_at(8.5 * MS, f"rank {LATE} ")
    assert reader.title == "Compute: 8.000 ms"
    assert reader.facts["state"].startswith(f"rank {LATE} ")
    reader.click_at(7.5 * MS, f"rank {LATE - 1} ")
    assert reader.title == "Idle: 2.000 ms"
    reader.click(page.page.locator(".lane.group", has_text=f"rank {LATE} "))
    page.page.locator(".lane.row", has_text="Stream 20").nth(1).scroll_into_view_if_needed()
    reader.click_at(8.5 * MS, "Stream 7", 1)
    assert reader.title == "gemm"
    assert reader.facts["duration"] == "8.000 ms (8,000,000 ns)"
    assert reader.actions == 4


def test_paper_has_every_rank(reader: Reader) -> None:
    document = pypdfium2.PdfDocument(reader.page.page.pdf(format="A4"))
    found = "".join(sheet.get_textpage().get_text_range() for sheet in document)
    assert all(f"rank {rank} " in found for rank in range(N_RANKS))
    for sheet in document:
        picture = sheet.render(scale=0.5).to_numpy()
        compute = (picture[..., :3] == _bgr("#0072B2")).all(axis=2)
        assert compute.sum() > 0.05 * compute.size or sheet is document[len(document) - 1]
    reader.until("!traceprof.frame && traceprof.canvas.height < 3000")


def _bgr(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (5, 3, 1)]
