"""Advice in a terminal: what costs how much, the evidence, what to do, when not to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from traceprof.model.results import Unit
from traceprof.render.formatting import value_text
from traceprof.render.shown import Row
from traceprof.render.wording import saving_words

__all__ = ["findings_view"]


def findings_view(findings: Iterable[Row]) -> RenderableType:
    """Return findings (rows of the table "findings"), numbered."""
    lines: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        title = Text(f"{number}. {_text(finding['title'])}", style="bold")
        if words := saving_words(finding):
            title.append(f"  {words}", style="not bold yellow")
        body = Text(_text(finding["evidence"]))
        if finding.get("model"):
            body.append(f"\nestimated: {_text(finding['model'])}", style="dim")
        body.append(f"\n→ {_text(finding['action'])}", style="green")
        body.append(f"\nnot if: {_text(finding['caveat'])}", style="dim")
        lines += [title, Padding(body, (0, 0, 0, 3))]
    return Group(*lines)


def _text(value: Any) -> str:
    return value_text(Unit.TEXT, value)
