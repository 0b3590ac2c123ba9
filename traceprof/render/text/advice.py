"""Advice in a terminal: what costs how much, the evidence, what to do, when not to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from traceprof.model.results import Unit
from traceprof.render.formatting import value_text
from traceprof.render.shown import Row
from traceprof.render.wording import saving_words

__all__ = ["brief", "findings_in_brief", "findings_view"]

_INDENT: Final = "   "
_PROFILED: Final = "a launch of it (where the recording began with the program)"


def findings_in_brief(findings: Iterable[Row], width: int, per: str) -> Iterator[Text]:
    """Return findings in a few lines each: what and how much, the evidence, what to do.

    ``per`` says what the savings are a share of.
    """
    for number, finding in enumerate(findings, 1):
        yield _title(number, finding, per)
        inner = width - len(_INDENT)
        evidence = brief(Text(_text(finding["evidence"])), inner, 1)
        for line in (*evidence, *brief(_action(finding), inner)):
            yield Text.assemble(_INDENT, line)


def brief(text: Text, width: int, most: int = 2) -> Iterator[Text]:
    """Return the first ``most`` lines of a text, the last of them cut."""
    lines = text.wrap(Console(width=width), width)
    yield from lines[: most - 1]
    if len(lines) >= most:
        rest = Text(" ", style=text.style).join(lines[most - 1 :])
        rest.truncate(width, overflow="ellipsis")
        yield rest


def findings_view(findings: Iterable[Row]) -> RenderableType:
    """Return findings (rows of the table "findings"), numbered."""
    lines: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        title = _title(number, finding)
        body = Text(_text(finding["evidence"]))
        if finding.get("model"):
            body.append(f"\nestimated: {_text(finding['model'])}", style="dim")
        body.append("\n").append_text(_action(finding))
        body.append(f"\nnot if: {_text(finding['caveat'])}", style="dim")
        if finding.get("ncu"):
            body.append(f"\nlook into {_PROFILED}: {_text(finding['ncu'])}", style="dim")
        lines += [title, Padding(body, (0, 0, 0, len(_INDENT)))]
    return Group(*lines)


def _title(number: int, finding: Row, per: str = "") -> Text:
    title = Text(f"{number}. {_text(finding['title'])}", style="bold")
    if words := saving_words(finding, per):
        title.append(f"  {words}", style="not bold yellow")
    return title


def _action(finding: Row) -> Text:
    return Text(f"→ {_text(finding['action'])}", style="green")


def _text(value: Any) -> str:
    return value_text(Unit.TEXT, value)
