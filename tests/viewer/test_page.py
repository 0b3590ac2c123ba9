"""The viewer in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.viewer.conftest import View
from traceprof.model.trace import Trace

pytestmark = pytest.mark.chromium


def _small_trace() -> Trace:
    """Two steps of forward, a GEMM, an all-reduce and a copy, in round numbers."""
    builder = TraceBuilder().device(0, "H100").thread_name(1, "python")
    for number, t in enumerate((0, 1_000_000)):
        builder.step(t, t + 900_000, number)
        builder.range("forward", t + 10_000, t + 400_000)
        builder.kernel("gemm", t + 100_000, t + 300_000, launched_ns=(t + 20_000, t + 25_000))
        builder.kernel("ncclAllReduce", t + 250_000, t + 500_000, stream=20)
        builder.copy("h2d", t + 600_000, t + 700_000, n_bytes=2_500_000)
    return builder.build()


def _crowded_trace() -> Trace:
    """40,000 kernels of 500 ns, one every microsecond, the last one called needle."""
    builder = TraceBuilder()
    for i in range(40_000):
        builder.kernel("needle" if i == 39_990 else f"k{i % 5}", i * 1_000, i * 1_000 + 500)
    return builder.build()


def _frame(page: OpenPage, place: int = 0) -> Any:
    return page.page.frames[1 + place]


def _js(page: OpenPage, expression: str, place: int = 0) -> Any:
    return _frame(page, place).evaluate(f"() => ({expression})")


def _until(page: OpenPage, expression: str, place: int = 0) -> None:
    for _ in range(1_000):
        if _js(page, expression, place):
            return
        page.page.wait_for_timeout(10)
    pytest.fail(f"never true: {expression}")


def _go_to(page: OpenPage, t0: int, t1: int) -> None:
    _js(page, f"traceprof.goTo({t0}, {t1})")
    _until(page, "traceprof.isSettled")


def _at(page: OpenPage, time_ns: float, row: str) -> tuple[float, float]:
    """Return where an instant of a row is on the screen."""
    x, y = _js(
        page,
        f"[traceprof.xOf({time_ns}), (() => {{ const line = traceprof.lines.find((l) =>"
        f" l.type === 'row' && traceprof.trace.rows[l.row].label === '{row}');"
        " return line.y + line.height / 2; })()]",
    )
    box = _frame(page).locator(".overlay").bounding_box()
    return box["x"] + x, box["y"] + y


def _table(page: OpenPage, name: str, place: int = 0) -> list[str]:
    rows = page.page.locator(f"#table-{place}-{name} tbody tr")
    texts: list[str] = rows.all_inner_texts()
    return texts


def test_it_opens_silently_and_asks_nobody_else(view: View) -> None:
    page = view(small=_small_trace())
    assert page.complaints == []
    own = page.page.url.split("/")[2]
    assert own.startswith("127.0.0.1:")
    assert {url.split("/")[2] for url in page.requests if url.startswith("http")} == {own}
    assert all(url.startswith(("http:", "data:", "blob:")) for url in page.requests)
    assert "token" not in page.page.url
    lanes = _frame(page).locator(".lane .name").all_inner_texts()
    assert {"Main thread · python", "GPU 0 · H100", "Stream 7"} <= set(lanes)
    assert any(row.startswith("gemm") for row in _table(page, "kernels"))
