"""Figures of a page, read back from its HTML."""

from __future__ import annotations

import json
import re
from typing import Any

_FIGURE = re.compile(
    r'<figure class="plotly-chart" aria-label="([^"]*)"[^>]*>'
    r'<script type="application/json">(.*?)</script></figure>'
)

_FLAME = re.compile(r'<figure class="flame"[^>]*><script type="application/json">(.*?)</script>')


def flames_in(html: str) -> list[Any]:
    """Return the data of every flame graph of a page."""
    return [json.loads(text) for text in _FLAME.findall(html)]


def figures_in(html: str) -> dict[str, Any]:
    """Return every figure of a page as plotly gets it, by what it shows."""
    return {label: json.loads(text) for label, text in _FIGURE.findall(html)}


def traces_in(html: str) -> dict[str, Any]:
    """Return the visible traces of the only figure of a piece of HTML, by their names."""
    (figure,) = figures_in(html).values()
    return {trace["name"]: trace for trace in figure["data"] if trace.get("visible", True)}
