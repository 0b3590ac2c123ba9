"""Changes in the page of a comparison: coloured where they are known to be better or worse."""

from __future__ import annotations

from typing import Any

import pytest

from traceprof.model.results import Unit
from traceprof.render.report.compared import delta


def row(**more: Any) -> dict[str, Any]:
    return {"base": 0.1, "new": 0.2, "change_ratio": 1.0, "better": "lower", **more}


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"verdict": "worse"}, "delta worse"),
        ({"verdict": "better", "better": "higher"}, "delta better"),
        ({"verdict": "no difference shown"}, "delta"),
        ({"verdict": "not judged"}, "delta"),
        ({}, "delta"),
    ],
)
def test_a_change_has_a_colour_where_it_is_more_than_chance(more: Any, kind: str) -> None:
    assert delta(row(**more), Unit.NS).startswith(f'<span class="{kind}">+100.0 %')


def test_what_did_not_change_has_no_words() -> None:
    assert delta(row(new=0.1), Unit.RATIO) == ""
