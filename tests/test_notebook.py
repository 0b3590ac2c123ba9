"""The example notebook, executed by a kernel of its own, and its outputs in a browser."""

from __future__ import annotations

import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import traceprof as tp
from scripts import example_traces
from tests.render.browser import OpenPage
from tests.requirements import ROOT, require
from traceprof.errors import UsageError
from traceprof.render.pictures.figure import NotebookFigure

NOTEBOOK = ROOT / "docs" / "example.ipynb"
TRACES = ROOT / "fixtures" / "traces"
WIDTH = 900


@pytest.fixture(scope="module")
def executed() -> Any:
    """The notebook with its outputs."""
    require("nbclient")
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=120,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    client.execute(env=os.environ | {"PYTHONPATH": path, "TRACEPROF_CACHE": "0"})
    return notebook


def _shown(notebook: Any, source: str) -> dict[str, str]:
    """Return what the first cell that contains ``source`` shows, by kind."""
    cell = next(c for c in notebook.cells if c.cell_type == "code" and source in c.source)
    found: dict[str, str] = {}
    for output in cell.outputs:
        assert output.output_type != "error"
        found |= output.get("data", {})
    return found


def _numbers(html: str, caption: str) -> list[str]:
    """Return the cells of the first row of a table."""
    table = html[html.index(f"<caption>{caption}") :]
    row = table[table.index("<tbody><tr>") : table.index("</tr></tbody>")]
    return [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", row)]


def test_it_opens_has_windows_tables_queries_and_compares(executed: Any) -> None:
    before = tp.open(TRACES / "before.sqlite.gz")
    total = before.within("steady").breakdown().to_frame("total").iloc[0]
    share = {part: total[f"{part}_ns"] / total["duration_ns"] for part in ("compute", "idle")}
    words = f"'compute {share['compute']:.1%}, idle {share['idle']:.1%}'"
    assert _shown(executed, "total = ")["text/plain"] == words
    table = _numbers(_shown(executed, "steady.breakdown()")["text/html"], "sum over all GPUs")
    assert f"{total['compute_ns'] / 1e6:.1f} ms" in table
    advice = _shown(executed, "before.findings()")["text/html"]
    first = before.findings().table.to_frame().iloc[0]
    assert advice.count("<li><b>") == 2
    saved = f"saves {first['saving_ns'] / 1e6:.2f} ms of 29.6 ms per step (24.5%, measured)"
    assert saved in advice
    assert f"--window {first['window']}" in advice
    assert "ampere_bf16_s16816gemm" in _shown(executed, "steady.query(")["text/html"]
    found = tp.compare(TRACES / "before.sqlite.gz", TRACES / "after.sqlite.gz")
    shown = unescape(_shown(executed, "found = tp.compare(")["text/html"])
    assert found.sentences[0] in shown
    assert "40.5% less time" in shown


def test_the_file_has_what_it_shows(executed: Any) -> None:
    """`scripts/notebook` wrote it; of figures, which hold plotly, it keeps a picture."""
    kept = json.loads(NOTEBOOK.read_text("utf-8"))
    for cell, now in zip(kept["cells"], executed.cells, strict=True):
        texts = ["".join(o["data"]["text/plain"]) for o in cell.get("outputs", ())]
        assert texts == [o["data"]["text/plain"] for o in now.get("outputs", ())], (
            "scripts/notebook"
        )
    figures = [
        o for cell in kept["cells"] for o in cell.get("outputs", ()) if "image/png" in o["data"]
    ]
    assert len(figures) == 2
    assert NOTEBOOK.stat().st_size < 400_000


def test_everything_shows_itself_as_html(executed: Any) -> None:
    for source in (
        "before = tp.open(",
        "before.findings()",
        'to_frame("causes")',
        ".figure(title=",
    ):
        assert "text/html" in _shown(executed, source), source


@pytest.mark.chromium
def test_its_figures_are_as_wide_as_the_page_and_send_nothing(
    executed: Any, browser: Any, tmp_path: Path
) -> None:
    pieces = [
        output["data"]["text/html"]
        for cell in executed.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    file = tmp_path / "notebook.html"
    body = "".join(f"<div>{piece}</div>" for piece in pieces)
    file.write_text(
        f"<!doctype html><meta charset=utf-8><body style='width:{WIDTH}px'>{body}", "utf-8"
    )
    page = OpenPage(browser.new_page(viewport={"width": 1000, "height": 900}))
    page.page.goto(file.as_uri())
    frames = page.page.frames[1:]
    assert len(frames) == 2
    for frame in frames:
        frame.locator("[data-ready]").wait_for(timeout=30_000)
        assert (
            frame.evaluate("document.querySelector('svg').getBoundingClientRect().width") == WIDTH
        )
        buttons = frame.locator(".modebar-btn").evaluate_all("all => all.map(b => b.dataset.title)")
        assert "Download plot as a PNG" in " ".join(buttons)
        assert not [title for title in buttons if "hare" in title or "loud" in title]
        found = frame.locator(".ytick text").all_text_contents()
        lanes = [lane.replace("\xa0", " ") for lane in found]
        first, second = (lanes.index(f"rank {r} · python3 · process {4200 + r}") for r in (0, 1))
        assert first < lanes.index("GPU 0 · NVIDIA A100-SXM4-80GB") < second
        assert second < lanes.index("GPU 1 · NVIDIA A100-SXM4-80GB")
    wide = page.js(
        "Math.max(...[...document.querySelectorAll('body > div')].map(d => d.clientWidth))"
    )
    assert wide == WIDTH
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:", "about:")) for url in page.requests)
    page.page.close()


def test_no_way_of_showing_a_figure_offers_the_upload(tmp_path: Path) -> None:
    figure = tp.open(TRACES / "after.sqlite.gz").within("step:3").figure()
    assert isinstance(figure, NotebookFigure)
    figure.write_html(tmp_path / "a.html", include_plotlyjs=False)
    for text in (
        figure.to_html(include_plotlyjs=False),
        (tmp_path / "a.html").read_text("utf-8"),
        unescape(figure._repr_html_()),
    ):
        assert '"showSendToCloud": false' in text or '"showSendToCloud":false' in text
        assert "https://cloud.plotly.com" not in re.sub(r'id="plotly">.*?<', "", text)
    assert figure._ipython_display_ is None
    with pytest.raises(UsageError, match="theme 'pink': expected light or dark"):
        tp.open(TRACES / "after.sqlite.gz").figure(theme="pink")


def test_the_fixtures_are_what_their_script_makes() -> None:
    for name, job in (("before", example_traces.BEFORE), ("after", example_traces.AFTER)):
        made = example_traces.make(job)
        kept = tp.open(TRACES / f"{name}.sqlite.gz", cache=False).within("all").trace()
        for table in ("kernels", "copies", "ranges"):
            columns = ["start_ns", "end_ns", "process"]
            assert np.array_equal(
                kept.table(table).to_frame()[columns], made.table(table).to_frame()[columns]
            )
