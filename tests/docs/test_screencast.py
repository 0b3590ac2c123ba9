"""The screencast in README shows what the commands print, and is a safe picture."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.text import Text

from tests.requirements import ROOT

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


def test_names_are_text_and_lines_stay_aligned(screencast: Any) -> None:
    screens = [[Text("<script>alert(1)</script>  ×"), Text("x" * 500)] for _ in screencast.COMMANDS]
    root = ElementTree.fromstring(screencast.screencast(screens))
    texts = [each for each in root.iter() if each.tag.endswith("}text")]
    assert len(texts) == 3 * len(screens)
    for each in texts:
        line = "".join(each.itertext())
        assert float(each.attrib["textLength"]) == pytest.approx(len(line) * 7.8, abs=0.1)
        assert len(line) <= screencast.COLUMNS
