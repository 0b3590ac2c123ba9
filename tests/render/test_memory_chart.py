"""The memory of a GPU over time: what a reader sees at an instant is what was measured."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.render.browser import OpenPage
from tests.render.figures import flames_in
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.render.charts.memory import _COLORS, memory_chart, memory_flame, memory_script
from traceprof.render.page.document import write_document

_LEVELS = {"parameters": [100, 100, 100], "activations": [0, 2_500_000, 700_000]}


def _chart() -> str:
    """Three events at 0, 1, and 3 ms."""
    unknown = [np.nan] * 3
    rows: list[dict[str, Any]] = [
        {
            "snapshot": "s",
            "device": 0,
            "event": place,
            "after_ns": float(at),
            "allocated_bytes": sum(held[place] for held in _LEVELS.values()),
            "reserved_bytes": 4_000_000,
            **{f"{name}_bytes": float(_LEVELS.get(name, unknown)[place]) for name in _COLORS},
        }
        for place, at in enumerate((0, 1_000_000, 3_000_000))
    ]
    curve = Table.of_rows(rows, list(rows[0]))
    return memory_chart(cast(Result, SimpleNamespace(tables={"curve": curve})))


def test_the_chart_carries_the_measured_levels_and_no_others() -> None:
    (data,) = re.findall(r'class="memory-levels">(.*?)</script>', _chart())
    told = json.loads(data)
    assert told["at"] == [0, 1_000_000, 3_000_000]
    assert told["levels"] == _LEVELS


def test_a_flame_graph_of_memory_leads_from_the_category_to_the_operator() -> None:
    common = {"snapshot": "s", "device": 0, "when": "at the peak", "allocations_count": 1}
    frames = "layers.py:4 forward < train.py:9 main"
    stacks = [
        {"kind": "activations", "frames": frames, "operator": "aten::mm", "held_bytes": 30},
        {"kind": "activations", "frames": "train.py:9 main", "operator": "", "held_bytes": 12},
        {"kind": "parameters", "frames": "", "operator": "", "held_bytes": 8},
    ]
    table = Table.of_rows([common | row for row in stacks])
    holders = cast(Result, SimpleNamespace(tables={"stacks": table}))
    (flame,) = flames_in(memory_flame(holders))
    (measure,) = flame["measures"]
    assert (measure["title"], measure["unit"]) == ("s, GPU 0, at the peak", "bytes")
    assert dict(zip(flame["names"], measure["values"], strict=True)) == {
        "all": 50,
        "activations": 42,
        "parameters": 8,
        "train.py:9 main": 42,
        "layers.py:4 forward": 30,
        "aten::mm": 30,
    }


@pytest.mark.chromium
def test_the_pointer_and_the_arrows_tell_what_is_allocated(browser: Any, tmp_path: Any) -> None:
    file = tmp_path / "memory.html"
    file.write_text(write_document("memory", _chart(), (), script=memory_script()), "utf-8")
    opened = OpenPage(browser.new_page(viewport={"width": 1000, "height": 700}))
    opened.page.goto(file.as_uri())
    chart = opened.page.locator("svg.memory")
    box = chart.bounding_box()
    told = opened.page.locator("p[role=status]")
    # Half of the axis is 1.5 ms: what was allocated at 1 ms is still there.
    opened.page.mouse.move(box["x"] + box["width"] * (76 + 868 / 2) / 960, box["y"] + 40)
    text = told.inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert text == "1 ms: 2.5 MB allocated: activations 2.5 MB, parameters 100 B"
    chart.focus()
    opened.page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("3\N{NO-BREAK SPACE}ms: 700.1")
    assert opened.complaints == []
    opened.page.close()
