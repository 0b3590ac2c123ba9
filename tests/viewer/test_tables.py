"""The tables under the timelines, as Dash components."""

from __future__ import annotations

from typing import Any

from dash import html

from tests.builders import TraceBuilder
from traceprof.viewer.panes import open_pane
from traceprof.viewer.tables import TABLE_NAMES, Tables


def _texts(component: Any) -> list[str]:
    """Return every text in a tree of components."""
    if component is None:
        return []
    if isinstance(component, list):
        return [text for item in component for text in _texts(item)]
    if isinstance(component, str):
        return [component]
    return _texts(getattr(component, "children", None))


def _links(component: Any) -> list[str]:
    if isinstance(component, list):
        return [link for item in component for link in _links(item)]
    if isinstance(component, html.A):
        return [component.href]
    return _links(component.children) if hasattr(component, "children") else []


def _tables() -> Tables:
    builder = TraceBuilder().kernel("k" * 100, 1_000_000, 1_500_000)
    builder.kernel("other", 1_700_000, 2_000_000)
    return Tables([open_pane("<b>one</b>", builder.build())])


def test_times_of_tables_lead_to_the_timeline() -> None:
    (section,) = _tables().show("all", ["gaps"])
    # 200 µs of idleness after 500 µs, a quarter of it on each side.
    assert "#at=450000..750000" in _links(section)


def test_long_names_are_cut_and_whole_in_the_tooltip() -> None:
    (section,) = _tables().show("0ns..600000ns", ["kernels"])
    texts = _texts(section)
    assert "k" * 59 + "…" in texts
    assert "other" not in texts
    assert "<b>one</b>" in texts


def test_names_of_tables_that_do_not_exist_are_left_out() -> None:
    (section,) = _tables().show(None, ["nothing", "../kernels"])
    assert not [text for text in _texts(section) if "nothing" in text]


def test_every_analysis_can_be_shown_or_says_why_not() -> None:
    (section,) = _tables().show("  ", TABLE_NAMES)
    assert sum(text in TABLE_NAMES for text in _texts(section)) >= len(TABLE_NAMES)
