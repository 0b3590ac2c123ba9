"""The pictures of terminals show what the commands print, and are safe."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import time
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.text import Text

from tests.recording.live.status_files import look, step, write_status
from tests.requirements import ROOT
from traceprof.recording.live.status import Node
from traceprof.render.live_text import facts_of, rank_rows

PICTURE = ROOT / "docs" / "pictures" / "screencast.svg"


@pytest.fixture(scope="module")
def screencast() -> Any:
    path = str(ROOT / "scripts" / "screencast")
    loader = importlib.machinery.SourceFileLoader("screencast", path)
    spec = importlib.util.spec_from_loader("screencast", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_it_shows_the_page_of_the_readme() -> None:
    """After a change of the page: scripts/screencast."""
    text = PICTURE.read_text("utf-8")
    shown = unescape(re.sub("<[^>]+>", "", text)).replace("\u00a0", " ")
    page = (ROOT / "README.md").read_text("utf-8").split("\nStep time", 1)[1].split("\n```")[0]
    lines = [line.rstrip() for line in page.splitlines()[1:] if line.strip()]
    assert len(lines) > 15
    assert not [line for line in lines if line not in shown]
    assert len(text) < 60_000
    assert not {"script", "foreignObject", "image"} & {
        element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()
    }
    assert "prefers-reduced-motion" in text


def test_the_picture_of_watch_shows_its_page(tmp_path: Path) -> None:
    """After a change of the page: scripts/screencast --watch."""
    root = ElementTree.fromstring((ROOT / "docs" / "pictures" / "watch.svg").read_text("utf-8"))
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "title", "rect", "text", "tspan")
    }
    shown = [
        "".join(each.itertext()).replace("\u00a0", " ")
        for each in root.iter("{http://www.w3.org/2000/svg}text")
    ]
    fields = {"tokens": (20, 640), "metrics": {"loss": (0.1, 19)}}
    fields["progress"] = {"epoch": (20, 100, 10, 1, "DataLoader")}
    write_status(tmp_path, 0, [step(50, wait=30, samples=4, forward=5)] * 20, **fields)
    write_status(tmp_path, 1, [step(50, wait=1, samples=4, forward=5)] * 20)
    view = look(tmp_path)
    node = Node("node1", time.time(), 0.5, 2, 8, 4)
    for label, _ in facts_of(view, [node]):
        assert any(line.startswith(f"{label} ") for line in shown), label
    titles, *_ = rank_rows(view)
    assert any(line.split() == " ".join(titles).split() for line in shown)
    assert "samples/s" in shown[2]
    assert "tokens/s" in shown[2]


def test_names_are_text_and_lines_stay_aligned(screencast: Any) -> None:
    screens = [[Text("<script>alert(1)</script>  ×"), Text("x" * 500)] for _ in screencast.COMMANDS]
    root = ElementTree.fromstring(screencast.screencast(screens))
    texts = [each for each in root.iter() if each.tag.endswith("}text")]
    assert len(texts) == 3 * len(screens)
    for each in texts:
        line = "".join(each.itertext())
        assert float(each.attrib["textLength"]) == pytest.approx(len(line) * 7.8, abs=0.1)
        assert len(line) <= screencast.COLUMNS
