"""Write interactive plotly figures as data that the page draws with plotly.js.

A figure is plain data: plotly's traces and layout. This module does not import plotly. A color can
be a variable of the page ("var(--compute)"), which has a value for each theme. The page draws a
figure when it comes into view, and again when the theme changes. Printed pages use the light theme.
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
"""A plotly trace.

``meta={"links": …}`` has a page address for each point. If the value is a name instead of a list,
the links are under that name in the ``meta`` of the layout.
"""

_LINE: Final = "var(--line)"
_AXIS: Final[Mapping[str, Any]] = {
    "gridcolor": _LINE,
    "linecolor": _LINE,
    "zerolinecolor": _LINE,
    "automargin": True,
    # The title contains the unit, so ticks must not show "10k" or "1e-3".
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
    "separators": ".,",
    "uirevision": "kept",
}
_CONFIG: Final = {
    **PLOTLY_CONFIG,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "responsive": True,
}
_HEIGHT: Final = 300
_JSON_DIGITS: Final = 6


def figure_html(
    traces: Iterable[Trace],
    label: str,
    *,
    x: str = "",
    y: str = "",
    height: int = _HEIGHT,
    **layout: Any,
) -> str:
    """Return a figure as HTML. Names in it must have passed through `plotly_text`.

    Args:
        traces: the plotly traces.
        label: a description of the figure for screen readers.
        x: the title of the x axis, with its unit.
        y: the title of the y axis, with its unit.
        height: in pixels; the figure is as wide as the page.
        layout: more entries of plotly's layout; axes get the default axis settings.
    """
    titles = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    axes = titles | {name: value for name, value in layout.items() if "axis" in name}
    figure = {
        "data": list(traces),
        "layout": {
            **_LAYOUT,
            "height": height,
            **layout,
            **{name: {**_AXIS, **titles.get(name, {}), **axis} for name, axis in axes.items()},
        },
        "config": _CONFIG,
    }
    text = json.dumps(figure, default=_to_json, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # a name must not end the script element
    return (
        f'<figure class="plotly-chart" aria-label="{html_text(label)}" style="height:{height}px">'
        f'<script type="application/json">{text}</script></figure>'
    )


def figures_script() -> str:
    """Return the script that draws the figures of a page when plotly.js is loaded."""
    return (files(__package__) / "figures.js").read_text(encoding="utf-8")


def _to_json(value: Any) -> Any:
    """Convert arrays and floats for JSON: six digits, and null for unknown values.

    Raises:
        TypeError: the value has another type.
    """
    if isinstance(value, np.ndarray):
        return (
            [_to_json(item) for item in value.tolist()]
            if value.dtype.kind == "f"
            else value.tolist()
        )
    if isinstance(value, float):
        return float(f"{value:.{_JSON_DIGITS}g}") if np.isfinite(value) else None
    if isinstance(value, np.generic):
        return _to_json(value.item())
    raise TypeError(f"{type(value)} in a figure")


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of an axis: ``unit`` is its name, ``size`` the value of one unit."""

    unit: str
    size: float

    def __call__(self, values: Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return values in the unit."""
        return np.asarray(values, np.float64) / self.size

    def hover(self, axis: str) -> str:
        """Return the part of a hover template for the value on an axis ("x", "y")."""
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
    """Return the largest unit that is not larger than the largest of ``values``."""
    known = [np.abs(np.asarray(array, np.float64)) for array in values]
    largest = max(
        (float(array[np.isfinite(array)].max(initial=0.0)) for array in known), default=0.0
    )
    named = _UNITS.get(_UNITS_OF_TIME.get(unit, unit), (("", 1.0),))
    fitting = [unit_size for unit_size in named if unit_size[1] <= largest]
    return Scale(*(fitting[-1] if fitting else named[0]))


def choice(
    names: Sequence[str], sizes: Sequence[int], titles: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Return a menu that shows the traces of one name; {} if there is only one name.

    The traces of each name are consecutive; ``sizes`` holds their numbers. ``titles`` holds the
    layout changes of each name.
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
"""Number of distinct line colors of a figure."""


def color_of_line(place: int) -> str:
    """Return the color of the line with index ``place``, among lines of equal importance."""
    return f"var(--{_COLORS[place % MOST_LINES]})"


def note(words: str) -> str:
    """Return a line of HTML that explains a figure; names in it must be escaped."""
    return f'<p class="note">{words}</p>'
