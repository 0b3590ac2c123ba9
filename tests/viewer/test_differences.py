"""What differs between the runs of a viewer."""

from __future__ import annotations

from typing import Any

import pytest
from dash import html

from tests.builders import TraceBuilder
from tests.render.browser import OpenPage
from tests.viewer.conftest import View
from tests.viewer.test_tables import _texts
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.session.run import run_of
from traceprof.viewer.panes import Pane, open_pane
from traceprof.viewer.tables import Differences


def trained(gemm_ns: int) -> Trace:
    """Thirty steps of 1 ms and more, by the length of their one kernel."""
    builder = TraceBuilder().device(0, "H100")
    length = gemm_ns + 100_000
    for number in range(30):
        at = number * length
        builder.step(at, at + length, number)
        builder.kernel("gemm", at + 50_000, at + 50_000 + gemm_ns, launched_ns=(at, at + 5_000))
    return builder.build()


def pane(title: str, gemm_ns: int) -> Pane:
    return open_pane(title, run_of(Ranks.of(trained(gemm_ns))))


def told(sections: list[html.Section]) -> list[str]:
    return [text for section in sections for text in _texts(section)]


def test_a_run_alone_differs_from_nothing() -> None:
    assert Differences([pane("a", 900_000)]).show(None) == []


def test_each_run_is_held_against_the_first() -> None:
    panes = [pane("a", 900_000), pane("b", 990_000), pane("a", 900_000)]
    sections = Differences(panes).show(None)
    assert len(sections) == 2
    texts = told(sections[:1])
    assert texts[0] == "b compared with a (1)"
    assert [text for text in texts if "slower" in text]
    assert "90.00 µs" in " ".join(texts)
    assert told(sections[1:])[0] == "a (3) compared with a (1)"
    assert not [text for text in told(sections[1:]) if "slower" in text]


def test_a_window_that_a_run_has_not_is_said() -> None:
    (section,) = Differences([pane("a", 900_000), pane("<b>", 900_000)]).show("step:900")
    assert told([section])[0] == "<b>"
    assert len(told([section])) == 2


@pytest.mark.chromium
def test_it_stands_above_the_tables(view: View) -> None:
    page: OpenPage = view(a=trained(900_000), b=trained(990_000))
    section: Any = page.page.locator(".differences section")
    section.first.wait_for()
    assert section.count() == 1
    words = section.inner_text()
    assert "b compared with a" in words
    assert "slower" in words
    above, below = (
        page.page.locator(f"#{name}").bounding_box()["y"] for name in ("differences", "tables")
    )
    assert above < below
