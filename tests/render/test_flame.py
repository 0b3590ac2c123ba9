"""Flame graphs: what boxes hold, and what a reader does with them in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.render.accessibility import serious_violations
from tests.render.browser import OpenPage
from tests.render.figures import flames_in
from traceprof.model.table import Table
from traceprof.render.charts.flame import (
    MAX_BOXES,
    FlameMeasure,
    flame_graph,
    flame_script,
    flame_style,
    table_of_leaves,
)
from traceprof.render.page.document import write_document

MS = 1_000_000
LEAVES = (
    (("train.py(9): main", "model.py(3): forward", "model.py(8): attention"), {"new": 30 * MS}),
    (("train.py(9): main", "model.py(3): forward", "model.py(20): mlp"), {"new": 20 * MS}),
    (("train.py(9): main", "data.py(4): load"), {"new": 10 * MS}),
)
TIME = FlameMeasure("CPU time", "ns", "new")


def _page(*graphs: str) -> str:
    body = f"<main>{''.join(graphs)}</main>"
    return write_document("flames", body, [flame_style()], script=flame_script())


def _words(element: Any) -> str:
    text: str = element.inner_text()
    return text.replace("\u00a0", " ")


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Any:
    """Return a function that opens flame graphs in a browser."""

    def show(*graphs: str) -> OpenPage:
        file = tmp_path / "flame.html"
        file.write_text(_page(*graphs), "utf-8")
        page = OpenPage(browser.new_page(viewport={"width": 1000, "height": 700}))
        page.page.goto(file.as_uri())
        return page

    return show


def test_a_box_holds_the_sum_of_the_boxes_inside() -> None:
    (flame,) = flames_in(flame_graph(table_of_leaves(LEAVES), "f", [TIME], "."))
    values = dict(zip(flame["names"], flame["measures"][0]["values"], strict=True))
    assert values == {
        "all": 60 * MS,
        "train.py(9): main": 60 * MS,
        "model.py(3): forward": 50 * MS,
        "data.py(4): load": 10 * MS,
        "model.py(8): attention": 30 * MS,
        "model.py(20): mlp": 20 * MS,
    }
    parents = [flame["names"][parent] if parent >= 0 else "" for parent in flame["parents"]]
    assert parents == ["", "all", *2 * ["train.py(9): main"], *2 * ["model.py(3): forward"]]


def test_a_measure_that_was_not_recorded_is_no_choice() -> None:
    table = table_of_leaves(LEAVES).assign(zero=[0] * 5)
    measures = [FlameMeasure("GPU time", "ns", "device_ns"), FlameMeasure("Z", "ns", "zero"), TIME]
    (flame,) = flames_in(flame_graph(table, "f", measures, "."))
    assert [measure["title"] for measure in flame["measures"]] == ["CPU time"]
    assert flame_graph(table, "f", measures[:2], ".") == ""
    assert flame_graph(Table({}), "f", measures, ".") == ""


def test_the_smallest_boxes_are_left_out_and_parents_never() -> None:
    leaves = [(("main", f"f{i}", f"g{i}"), {"new": 1 + i}) for i in range(MAX_BOXES)]
    (flame,) = flames_in(flame_graph(table_of_leaves(leaves), "f", [TIME], "."))
    assert len(flame["names"]) == MAX_BOXES + 1
    for place, (name, parent) in enumerate(zip(flame["names"], flame["parents"], strict=True)):
        assert parent < place
        if name.startswith("g"):
            assert flame["names"][parent] == name.replace("g", "f")
    assert "f0" not in flame["names"]


def test_names_are_only_text() -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    html = flame_graph(table_of_leaves([((hostile,), {"new": 1})]), "f", [TIME], ".")
    assert html.count("<") == 6  # three elements
    (flame,) = flames_in(html)
    assert flame["names"][1] == hostile


@pytest.mark.chromium
def test_a_click_zooms_and_a_search_sums_what_it_finds(shown: Any) -> None:
    opened = shown(flame_graph(table_of_leaves(LEAVES), "f", [TIME], "."))
    page = opened.page
    status = page.locator(".flame [role=status]")
    widths = {
        name: page.get_by_role("button", name=name).bounding_box()["width"]
        for name in ("all", "attention", "mlp", "load")
    }
    assert widths["attention"] == pytest.approx(widths["all"] / 2, abs=1)
    assert widths["load"] == pytest.approx(widths["all"] / 6, abs=1)
    page.get_by_role("button", name="forward").click()
    assert _words(status) == "model.py(3): forward: 50 ms (83.3% of all)"
    assert page.get_by_role("button", name="load").is_hidden()
    wide = page.get_by_role("button", name="attention").bounding_box()["width"]
    assert wide == pytest.approx(0.6 * widths["all"], abs=1)
    page.get_by_role("button", name="all").click()
    # forward holds attention, so that its time counts once.
    page.get_by_role("searchbox").fill("model.py")
    assert _words(status) == "1 matching: 50 ms (83.3% of all)"
    assert page.locator(".boxes .dim").all_inner_texts() == [
        "all",
        "main train.py:9",
        "load data.py:4",
    ]
    boxes = "[...document.querySelectorAll('.boxes button')]"
    hues = opened.js(f"{boxes}.map((box) => box.style.getPropertyValue('--hue'))")
    assert hues[2] == hues[4] == hues[5]  # one module, model.py
    assert len({hues[1], hues[2], hues[3]}) == 3
    assert not opened.complaints


@pytest.mark.chromium
def test_arrow_keys_move_and_one_tab_enters(shown: Any) -> None:
    page = shown(flame_graph(table_of_leaves(LEAVES), "f", [TIME], ".")).page
    page.get_by_role("searchbox").focus()
    focused = "() => document.activeElement.textContent"
    page.keyboard.press("Tab")
    found = [page.evaluate(focused)]
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        found.append(page.evaluate(focused))
    forward = "forward model.py:3"
    assert found == [
        *("all", "main train.py:9", forward, "load data.py:4"),
        *(forward, "attention model.py:8", forward),
    ]


@pytest.mark.chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_runs_show_the_change_and_can_be_read_by_everybody(shown: Any, theme: str) -> None:
    table = table_of_leaves(
        [
            (("main", "fast"), {"base": 20 * MS, "new": 10 * MS}),
            (("main", "slow"), {"base": 10 * MS, "new": 30 * MS}),
            (("main", "same"), {"base": 10 * MS, "new": 10 * MS}),
        ]
    )
    time = FlameMeasure("CPU time", "ns", "new", "base")
    opened = shown(flame_graph(table, "f", [time, time], "."))
    page = opened.page
    page.evaluate(f"() => {{ document.documentElement.dataset.theme = '{theme}'; }}")
    page.get_by_role("button", name="slow").hover()
    assert _words(page.locator(".flame [role=status]")) == "slow: 10 ms → 30 ms (+20 ms)"
    boxes = "[...document.querySelectorAll('.boxes button')].map((b) => [b.textContent, b.className"
    told = dict(opened.js(f"{boxes} + b.style.getPropertyValue('--part')])"))
    assert told["slow"] == "change longer60%"
    assert told["fast"] == "change60%"
    assert told["same"] == "change0%"
    assert not serious_violations(page)
    page.get_by_label("Color of the boxes").select_option("Color: module")
    assert page.locator(".boxes .change").count() == 0
    assert not serious_violations(page)
