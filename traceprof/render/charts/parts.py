"""Draw a bar of the five parts of GPU time, without a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from typing import Final

from traceprof.render.charts.svg import legend
from traceprof.render.escape import html_text
from traceprof.render.palette import PART_STYLES, category_of
from traceprof.units import format_ratio

PART_KEYS: Final = tuple(part.key for part in PART_STYLES)
"""The keys of the five parts, in their order."""
_MIN_LABELED_RATIO: Final = 0.06
"""A smaller part of a bar shows no percentage, because the text would not fit."""


def parts_bar(parts: Mapping[str, float]) -> str:
    """Return one bar of the five parts with a legend; ``parts`` maps a known part to its share."""
    parts = {key: parts.get(key, nan) for key in PART_KEYS}
    shares = {key: format_ratio(ratio) for key, ratio in parts.items()}
    return f"{parts_legend(values=shares)}{bar_of_parts('GPU time', parts)}"


def bar_of_parts(title: str, parts: Mapping[str, float]) -> str:
    """Return one bar; ``parts`` maps each part to its share, or NaN. ``title`` is plain text."""
    labels = {key: f"{category_of(key).label} {format_ratio(parts[key])}" for key in PART_KEYS}
    pieces = "".join(
        f'<i style="width:{100 * parts[key]:.3f}%;background:var(--{key});'
        f'color:var(--on-{key})" class="{key}" title="{html_text(label)}">'
        f"{format_ratio(parts[key]) if parts[key] >= _MIN_LABELED_RATIO else ''}</i>"
        for key, label in labels.items()
        if parts[key] > 0
    )
    label = f"{html_text(title, 80)}: {html_text(', '.join(labels.values()))}"
    return f'<div class="bar" role="img" aria-label="{label}">{pieces}</div>'


def parts_legend(
    categories: Iterable[str] = PART_KEYS, values: Mapping[str, str] | None = None
) -> str:
    """Return the legend of ``categories`` (default: the five parts).

    ``values`` maps a category to a text that follows its label.
    """
    return legend(
        (f"var(--{key})", f"{category_of(key).label} {(values or {}).get(key, '')}".strip())
        for key in dict.fromkeys(categories)
    )
