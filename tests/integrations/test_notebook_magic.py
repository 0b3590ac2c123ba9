"""``%%traceprof`` in a notebook that a kernel executes."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import traceprof as tp
from tests.requirements import ROOT, require

CELLS = (
    "%load_ext traceprof",
    "import traceprof as tp",
    "%%traceprof run -o cell.sqlite\nfor number in range(4):\n    with tp.step(number):\n"
    "        sum(range(10_000))\n6 * 7",
    "run.within('all').steps().table.to_frame()['step'].tolist()",
    "%%traceprof 7up\n1",
    "%%traceprof -o cell.sqlite\nran_again = True",
    "%%traceprof failed\nwith tp.step():\n    pass\n1 / 0",
    "tp.is_recording(), len(failed.within('all').steps().table.to_frame())",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The cells with their outputs, and the folder that they ran in."""
    require("nbclient")
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    client = nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=120,
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    client.execute(env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(folder)})
    return [cell.outputs for cell in notebook.cells], folder


def shown(outputs: Any, kind: str) -> str:
    """Return all that a cell shows of a kind: text, html, error or stderr."""
    texts = []
    for one in outputs:
        if one.output_type == "error":
            texts += [one.ename + ": " + one.evalue] if kind == "error" else []
        elif one.output_type == "stream":
            texts += [one.text] if kind == one.name else []
        else:
            mime = {"text": "text/plain", "html": "text/html"}.get(kind, kind)
            texts += [one.data[mime]] if mime in one.data else []
    return "\n".join(texts)


def plain(html: str) -> str:
    """Return a page as text: numbers and units are joined by a space that does not break."""
    return unescape(re.sub(r"<[^>]+>", "", html)).replace("\xa0", " ")


def test_a_cell_is_recorded_and_shows_its_page(executed: tuple[Any, Path]) -> None:
    outputs, folder = executed
    cell = outputs[2]
    assert "42" in shown(cell, "text")
    assert "recorded 4 ranges of 1 process with torch: cell.sqlite" in shown(cell, "stderr")
    page = tp.open(folder / "cell.sqlite").page()
    assert page.headline[0] in plain(shown(cell, "html"))
    assert shown(outputs[3], "text") == "[0, 1, 2, 3]"


def test_a_line_that_means_nothing_runs_no_cell(executed: tuple[Any, Path]) -> None:
    outputs, _ = executed
    assert "UsageError: %%traceprof: '7up' is not a variable name" in shown(outputs[4], "error")
    assert "exists" in shown(outputs[5], "error")


def test_a_cell_that_fails_shows_its_error_and_recording_ends(executed: tuple[Any, Path]) -> None:
    outputs, folder = executed
    assert "ZeroDivisionError" in shown(outputs[6], "error")
    (path,) = folder.glob("traceprof-cell-*/cell.sqlite")
    assert shown(outputs[7], "text") == "(False, 1)"
    assert tp.open(path).page().headline[0] in plain(shown(outputs[6], "html"))
