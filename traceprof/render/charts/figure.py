"""Charts that one explores: figures of plotly, drawn by the page that holds plotly.js.

A figure is plain data, traces and a layout as plotly has them; plotly itself is not imported.
A color may be a variable of the page ("var(--compute)"), which has one for each theme. The page
draws a figure when it comes into view, again when the theme changes, and light for paper.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.results import Unit
from traceprof.render.escape import html_text, plotly_text
from traceprof.render.page.document import PLOTLY_CONFIG

Trace = Mapping[str, Any]
"""A trace of plotly. ``meta={"links": …}`` has an address of the page for each point; a name
instead of a list is that of other links in the ``meta`` of the layout.
"""

_LINE: Final = "var(--line)"
_AXIS: Final[Mapping[str, Any]] = {
    "gridcolor": _LINE,
    "linecolor": _LINE,
    "zerolinecolor": _LINE,
    "automargin": True,
    # Units stand in the title: no "10k" or "1e-3" on ticks.
    "exponentformat": "none",
    "separatethousands": True,
    "fixedrange": False,
}
_LAYOUT: Final[Mapping[str, Any]] = {
    "font": {"color": "var(--muted)", "size": 11},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 56, "r": 16, "t": 8, "b": 52},
    "hovermode": "closest",
    "hoverlabel": {
        "bgcolor": "var(--card)",
        "bordercolor": "var(--muted)",
        "font": {"color": "var(--fg)"},
        "namelength": -1,
    },
    "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    "separators": ". ",
    "uirevision": "kept",
}
_CONFIG: Final = {
    **PLOTLY_CONFIG,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "responsive": True,
}
_HEIGHT: Final = 300
_DIGITS: Final = 6


def figure_html(
    traces: Iterable[Trace],
    label: str,
    *,
    x: str = "",
    y: str = "",
    height: int = _HEIGHT,
    **layout: Any,
) -> str:
    """Return a figure as a piece of HTML; names in it must have gone through `plotly_text`.

    Args:
        traces: what is drawn.
        label: what the figure shows, for who cannot see it.
        x: the title of the axis, with its unit.
        y: the same of the other one.
        height: in pixels; it is as wide as the page.
        layout: more of plotly's layout; axes are completed by what all have.
    """
    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}} | {
        name: value for name, value in layout.items() if "axis" in name
    }
    for name, title in (("xaxis", x), ("yaxis", y)):
        axes[name] = {"title": {"text": title}, **axes[name]}
    told = {
        "data": list(traces),
        "layout": {
            **_LAYOUT,
            "height": height,
            **layout,
            **{name: {**_AXIS, **axis} for name, axis in axes.items()},
        },
        "config": _CONFIG,
    }
    text = json.dumps(told, default=_plain, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # no end of the script within a name
    return (
        f'<figure class="plotly-chart" aria-label="{html_text(label)}" style="height:{height}px">'
        f'<script type="application/json">{text}</script></figure>'
    )


def figures_script() -> str:
    """Return the script that draws the figures of a page, once plotly.js is there."""
    return (files(__package__) / "figures.js").read_text(encoding="utf-8")


def _plain(value: Any) -> Any:
    """Return arrays as JSON has them: six digits, and null for what is not known."""
    if isinstance(value, np.ndarray):
        return (
            [_plain(one) for one in value.tolist()] if value.dtype.kind == "f" else value.tolist()
        )
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
    if isinstance(value, np.generic):
        return _plain(value.item())
    raise TypeError(f"{type(value)} in a figure")


@dataclass(frozen=True, slots=True)
class Scale:
    """What an axis counts in: ``unit`` is named in its title, ``size`` is one of it."""

    unit: str
    size: float

    def __call__(self, values: Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return values in the unit."""
        return np.asarray(values, np.float64) / self.size

    def hover(self, axis: str) -> str:
        """Return what a hover template shows of the value on an axis ("x", "y")."""
        return f"%{{{axis}:.4~g}} {self.unit}".strip()


_BYTES: Final = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_UNITS: Final[Mapping[Unit, Sequence[tuple[str, float]]]] = {
    Unit.NS: (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)),
    Unit.BYTES: _BYTES,
    Unit.BYTES_PER_S: tuple((f"{name}/s", size) for name, size in _BYTES),
    Unit.RATIO: (("%", 0.01),),
    Unit.PER_S: (("/s", 1.0),),
}
_UNITS_OF_TIME: Final = {Unit.AT_NS: Unit.NS}


def scale_of(unit: Unit, *values: Sequence[float] | npt.NDArray[Any]) -> Scale:
    """Return the largest unit of which the largest of ``values`` is one at least."""
    known = [np.abs(np.asarray(own, np.float64)) for own in values]
    largest = max((float(own[np.isfinite(own)].max(initial=0.0)) for own in known), default=0.0)
    named = _UNITS.get(_UNITS_OF_TIME.get(unit, unit), (("", 1.0),))
    fitting = [one for one in named if one[1] <= largest]
    return Scale(*(fitting[-1] if fitting else named[0]))


def choice(
    names: Sequence[str], sizes: Sequence[int], titles: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Return a menu that shows the traces of one name; nothing where there is but one.

    The traces of each name, of which there are ``sizes``, follow one another. ``titles`` is what
    of the layout changes with each.
    """
    if len(names) == 1:
        return {}
    ends = np.cumsum(sizes).tolist()
    layouts = titles or [{}] * len(names)
    buttons = [
        {
            "label": plotly_text(name, 60),
            "method": "update",
            "args": [{"visible": [end - size <= i < end for i in range(ends[-1])]}, layout],
        }
        for name, size, end, layout in zip(names, sizes, ends, layouts, strict=True)
    ]
    place = {"x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    look = {"bgcolor": "var(--card)", "bordercolor": "var(--muted)", "font": {"size": 11}}
    return {"updatemenus": [{"buttons": buttons, "active": 0, **place, **look}]}


_COLORS: Final = ("compute", "communication", "h2d", "d2d", "d2h", "memset", "p2p", "overlap")
MOST_LINES: Final = len(_COLORS)
"""How many lines of one figure can be told apart."""


def color_of_line(place: int) -> str:
    """Return the color of one of several lines of equal rank."""
    return f"var(--{_COLORS[place % MOST_LINES]})"


def note(words: str) -> str:
    """Return a line of HTML that says what a figure shows; names in it must be escaped."""
    return f'<p class="note">{words}</p>'
