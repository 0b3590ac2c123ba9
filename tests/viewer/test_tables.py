"""The tables under the timelines, as Dash components."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from dash import html

from tests.builders import TraceBuilder
from tests.measures.generated_run import Plan, make_run
from traceprof.measures import facts
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.session.run import run_of
from traceprof.viewer.panes import Pane, open_pane
from traceprof.viewer.tables import TABLE_NAMES, show_tables


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


def _panes() -> list[Pane]:
    builder = TraceBuilder().kernel("k" * 100, 1_000_000, 1_500_000)
    builder.kernel("later", 1_700_000, 2_000_000)
    return [open_pane("<b>one</b>", run_of(Ranks.of(builder.build())))]


def test_times_of_tables_lead_to_the_timeline() -> None:
    (section,) = show_tables(_panes(), "all", ["gaps"])
    # 200 µs of idleness after 500 µs, a quarter of it on each side.
    assert "#at=450000..750000&mark=500000..700000&device=0" in _links(section)


def test_long_names_are_cut_and_whole_in_the_tooltip() -> None:
    (section,) = show_tables(_panes(), "0ns..600000ns", ["kernels"])
    texts = _texts(section)
    assert "k" * 59 + "…" in texts
    assert "later" not in texts
    assert "<b>one</b>" in texts


def test_names_of_tables_that_do_not_exist_are_left_out() -> None:
    (section,) = show_tables(_panes(), None, ["nothing", "../kernels"])
    assert not [text for text in _texts(section) if "nothing" in text]


def test_every_analysis_can_be_shown_or_says_why_not() -> None:
    (section,) = show_tables(_panes(), "  ", TABLE_NAMES)
    assert sum(text in TABLE_NAMES for text in _texts(section)) >= len(TABLE_NAMES)


def test_small_further_tables_and_the_meaning_of_columns_are_shown() -> None:
    (section,) = show_tables(_panes(), "all", ["breakdown"])
    assert {"H3", "P"} <= {type(child).__name__ for child in section.children[2].children}
    titles = [cell.title for cell in _all(section, html.Th)]
    assert "duration of the window, without the parts that were not recorded" in titles


def test_findings_come_with_the_verdict_in_the_words_of_the_page() -> None:
    builder = TraceBuilder().device(0, "H100")
    for i in range(4):
        at = 1_000_000 * i
        builder.step(at, at + 1_000_000, i).kernel("gemm", at, at + 900_000)
    panes = [open_pane("one", run_of(Ranks.of(builder.build())))]
    texts = _texts(show_tables(panes, None, ["findings"]))
    assert [text for text in texts if text.startswith("1× H100 (workload unknown: ")]
    assert [text for text in texts if text.startswith("GPU-bound. GPU time per step of 1.00 ms: ")]
    assert [text for text in texts if text.startswith("Next: traceprof ")]
    assert not [
        text for text in _texts(show_tables(panes, None, ["kernels"])) if "GPU-bound" in text
    ]


def _all(component: Any, kind: type) -> list[Any]:
    if isinstance(component, list):
        return [found for item in component for found in _all(item, kind)]
    own = [component] if isinstance(component, kind) else []
    return own + _all(getattr(component, "children", None) or [], kind) if component else own


def test_a_run_shows_the_ranks_of_its_processes() -> None:
    run = run_of(place_run(make_run(Plan(n_ranks=2))))
    (section,) = show_tables([open_pane("run", run)], "all", ["steps"])
    heads = [text for cell in _all(section, html.Th) for text in _texts(cell)]
    assert "rank" in heads
    assert "process" not in heads


def test_another_window_computes_no_fact_of_the_whole_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed: Counter[tuple[Any, ...]] = Counter()

    class Counting(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            is_of_window = any(isinstance(one, TimeWindow) for one in key[1])
            if sys._getframe(1).f_locals["of"].uncut is None and not is_of_window:
                computed[key] += 1  # a fact of the whole is computed
            return super().setdefault(key, default)

    monkeypatch.setattr(facts, "_compute_locks", Counting())
    for run in (
        run_of(place_run(make_run(Plan(n_ranks=2)))),
        run_of(Ranks.of(make_run(Plan(n_ranks=1)).members[0].trace)),
    ):
        panes = [open_pane("run", run)]
        show_tables(panes, "step:3", TABLE_NAMES)
        before = Counter(computed)
        assert len(before) > 20
        show_tables(panes, "step:4", TABLE_NAMES)
        show_tables(panes, "first:1s", TABLE_NAMES)
        assert computed == before
        assert set(computed.values()) == {1}
