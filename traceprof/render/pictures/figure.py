"""Draw the timeline as a plotly figure of bounded size, for notebooks and pictures.

Long events are bars with tooltips, at most 1,500 of them. All other events are one picture behind
the bars. A notebook shows the figure as wide as the page; it works offline and sends no data. To
write a picture file, plotly passes the figure to Kaleido, which draws it in a browser.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from traceprof.errors import UsageError
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plotly_text
from traceprof.render.page.document import PLOTLY_CONFIG, Fragment, plotly_bundle, write_document
from traceprof.render.palette import STATES, category_of
from traceprof.render.pictures.lines import (
    PictureLine,
    Pixels,
    bar_trace,
    choose_lines,
    find_bars,
    png_data_url,
    shortest_bar,
    state_legend,
    state_strip,
    strip,
    without_bars,
)
from traceprof.render.timeline.drawn import with_states
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.marks import describe_steps

_CONFIG: Final = dict(PLOTLY_CONFIG) | {"responsive": True}
_FRAME: Final = (
    '<iframe title="{title}" sandbox="allow-scripts allow-downloads" srcdoc="{page}" '
    'style="width:100%;height:{height}px;border:0"></iframe>'
)
_STYLE: Final = (
    "body{{background:{paper}}}#figure{{width:100%;height:{height}px}}"
    "image{{image-rendering:pixelated}}"
)
_DEFAULT_HEIGHT_PX: Final = 450


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A plotly figure without plotly's upload button in any form of display or output.

    A notebook shows the figure in its own frame, which contains plotly.js (2 MB). The frame needs
    no network and no extension, and takes the available width.
    """

    _ipython_display_ = None
    """Not plotly's way of showing figures in notebooks, which knows nothing of the settings."""

    def _repr_html_(self) -> str:
        height = self.layout.height or _DEFAULT_HEIGHT_PX
        title = (self.layout.title.text or "") or "Timeline"
        page = escape(_page(self, height), quote=True)
        return _FRAME.format(title=escape(title, quote=True), page=page, height=height + 8)

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": "<timeline figure>"}

    def show(self, *args: Any, **options: Any) -> None:
        """Show the figure as plotly does, without the upload button."""
        super().show(*args, **({"config": _CONFIG} | options))

    def to_html(self, *args: Any, **options: Any) -> str:
        """Return the HTML page that plotly writes, without the upload button."""
        return str(super().to_html(*args, **({"config": _CONFIG} | options)))

    def write_html(self, *args: Any, **options: Any) -> None:
        """Write the HTML page that plotly writes, without the upload button."""
        super().write_html(*args, **({"config": _CONFIG} | options))


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """A whole page, such as the interactive timeline, that a notebook shows in a frame.

    ``html`` is the page. It can also be written to a file.
    """

    html: str
    title: str
    height: int

    def __repr__(self) -> str:
        return f"<timeline {self.title}>"

    def _repr_html_(self) -> str:
        title, page = (escape(text, quote=True) for text in (self.title, self.html))
        return _FRAME.format(title=title, page=page, height=self.height)


def _page(figure: go.Figure, height: int) -> str:
    """Return a page that shows only the figure and loads nothing from the network."""
    bundle = plotly_bundle()
    # A notebook is JSON: a control character of a denser encoding would take six characters.
    packed = base64.b64encode(bundle.gzip).decode()
    figure_json = figure.to_json().replace("<", "\\u003c")
    fragment = Fragment(
        html="",
        data=(
            f'<script type="text/plain" id="plotly">{packed}</script>\n'
            f'<script type="application/json" id="told">{figure_json}</script>\n'
            f'<script type="application/json" id="config">{json.dumps(_CONFIG)}</script>'
        ),
        style=_STYLE.format(paper=figure.layout.paper_bgcolor or "#fff", height=height),
        script=(files(__package__) / "figure.js").read_text(encoding="utf-8"),
        csp_sources=(bundle.csp_source,),
    )
    return write_document("figure", '<div id="figure"></div>', (), fragment)


_DEFAULT_WIDTH_PX: Final = 1_280
_STRIP_PX: Final = 10
_LINE_PX: Final = 19
_LABEL_PX: Final = 62
_LEGEND_PX: Final = 112
_MAX_STEP_LINES: Final = 40
_INK: Final = {
    "light": ("#1b2330", "#ffffff", "#e3e7ec"),
    "dark": ("#e4e9f0", "#171e28", "#2a3442"),
}
THEMES: Final = tuple(_INK)


def timeline_figure(
    trace: Trace,
    *,
    window: TimeWindow | None = None,
    title: str = "",
    theme: str = "light",
    width: int | None = 1_280,
) -> NotebookFigure:
    """Return the figure of a trace; its axis is in ms after the start of the trace.

    Args:
        trace: the trace to draw.
        window: draw only events that overlap this window; the whole trace by default.
        title: the heading; untrusted text is fine.
        theme: "light" or "dark".
        width: of the plot in pixels, which decides which events are long enough for a bar;
            None for a plot as wide as the page that shows it.
    """
    span = window or trace.span
    duration = max(1, span.duration_ns)
    lanes = with_states(build_lanes(trace, span), duration)
    lines, n_hidden = choose_lines(lanes)
    pixels_wide = width or _DEFAULT_WIDTH_PX
    shortest = shortest_bar(lines, duration, pixels_wide)
    figure = NotebookFigure()
    offset_ns = span.start_ns - trace.span.start_ns
    for category, bars in find_bars(lanes.names, lines, shortest, duration).items():
        colors = (_color(category, theme), _INK[theme][1])
        figure.add_bar(**bar_trace(category, bars, colors, offset_ns))
    for category in _states_without_bars(lines):
        figure.add_bar(**state_legend(category, _color(category, theme)))
    pixels = np.concatenate(
        [_line_pixels(line, shortest, duration, pixels_wide, theme) for line in lines]
    )
    figure.update_layout(
        **_layout(lines, theme, width),
        title={"text": plotly_text(title), "x": 0.01},
        images=[_image(pixels, offset_ns, duration, len(lines))],
        shapes=_step_lines(trace, span, offset_ns, theme),
    )
    left, right = offset_ns / 1e6, (offset_ns + duration) / 1e6
    hidden = f" · {n_hidden} more lanes not shown" if n_hidden else ""
    figure.update_xaxes(range=[left, right], title={"text": f"time since trace start, ms{hidden}"})
    return figure


def _states_without_bars(lines: Sequence[PictureLine]) -> list[str]:
    """Return the device states that no bar shows. They need their own entries in the legend."""
    drawn = {channel.category for line in lines for channel in line.states}
    categories = (category_of(key) for key in STATES if key in drawn)
    return [category.key for category in categories if category.part is None and not category.like]


def _line_pixels(
    line: PictureLine, shortest: float, duration: int, width: int, theme: str
) -> Pixels:
    """Return the (`_STRIP_PX`, width) RGBA pixels behind the bars of one line."""
    pixels = np.zeros((_STRIP_PX, width, 4), np.uint8)
    if line.states:
        # Times that were not recorded stay blank.
        states = [channel for channel in line.states if channel.category in STATES]
        ordered = sorted(states, key=lambda c: STATES.index(c.category))
        layers = [(c, _color(c.category, theme)) for c in ordered]
        pixels[1:-1] = state_strip(layers, (0, duration), (width, _STRIP_PX - 2))
    elif line.row:
        layers = [
            (without_bars(c, shortest, duration), _color(c.category, theme))
            for c in line.row.channels
        ]
        pixels[1:-1] = strip(layers, (0, duration), width)[None]
    return pixels


def _color(category: str, theme: str) -> str:
    return str(getattr(category_of(category), theme))


def _image(pixels: Pixels, offset_ns: int, duration: int, n_lines: int) -> dict[str, Any]:
    """Return plotly's description of the picture behind the bars."""
    return {
        "source": png_data_url(pixels),
        "xref": "x",
        "yref": "y",
        "x": offset_ns / 1e6,
        "y": -0.5,
        "sizex": duration / 1e6,
        "sizey": n_lines,
        "sizing": "stretch",
        "xanchor": "left",
        "yanchor": "top",
        "layer": "below",
    }


def _layout(lines: list[PictureLine], theme: str, width: int | None) -> dict[str, Any]:
    """Return plotly's layout; ``width`` of the plot is in pixels, None for the page width."""
    ink, paper, grid = _INK[theme]
    # Processes and devices are bold, streams and ranges below them are not.
    labels = [
        plotly_text(line.label, 34) if line.row else f"<b>{plotly_text(line.label, 38)}</b>"
        for line in lines
    ]
    return {
        "barmode": "overlay",
        "template": "none",
        "paper_bgcolor": paper,
        "plot_bgcolor": paper,
        "font": {"color": ink, "size": 11},
        "width": None if width is None else width + 4 * _LABEL_PX,
        "height": len(lines) * _LINE_PX + 48 + _LEGEND_PX,
        "margin": {"l": 4 * _LABEL_PX - 24, "r": 24, "t": 40, "b": 8 + _LEGEND_PX},
        "hovermode": "closest",
        "dragmode": "pan",
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "separators": ".,",
        "xaxis": {"gridcolor": grid, "zeroline": False, "separatethousands": True},
        "yaxis": {
            "range": [len(lines) - 0.5, -0.5],
            "tickvals": list(range(len(lines))),
            "ticktext": labels,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    }


def _step_lines(trace: Trace, span: TimeWindow, offset_ns: int, theme: str) -> list[dict[str, Any]]:
    """Return a dotted vertical line at the start of each step, at most `_MAX_STEP_LINES`.

    If there are more steps, only every nth step has a line.
    """
    starts = [start for start in describe_steps(trace, span)["starts"] if start > 0]
    stride = max(1, -(-len(starts) // _MAX_STEP_LINES))
    line = {"width": 1, "dash": "dot", "color": _INK[theme][0]}
    return [
        {
            "type": "line",
            "x0": (start + offset_ns) / 1e6,
            "x1": (start + offset_ns) / 1e6,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "line": line,
            "opacity": 0.35,
        }
        for start in starts[::stride]
    ]


_PNG_SCALE: Final = 2


def render_picture(figure: go.Figure, format_name: str) -> bytes:
    """Return the figure as a picture ("png" at twice its size, or "svg").

    Raises:
        UsageError: Kaleido or a browser is missing, or the picture could not be drawn.
    """
    try:
        picture = figure.to_image(
            format=format_name, scale=_PNG_SCALE if format_name == "png" else 1
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(
            f"cannot write {format_name}: it requires Kaleido (`pip install kaleido`) and Chrome "
            "or Chromium. Install both, or write .html instead"
        ) from error
    return bytes(picture)
