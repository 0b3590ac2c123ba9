"""Write SVG for charts: elements, axes, legends, and colors of both themes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Final

from traceprof.model.results import Unit
from traceprof.render.escape import html_text
from traceprof.render.formatting import round_text
from traceprof.render.palette import category_of

_KEY_STYLE: Final = (
    ".key{display:flex;flex-wrap:wrap;gap:4px 14px;list-style:none;margin:0 0 8px;padding:0;"
    "font-size:12px;color:var(--muted)}"
    ".key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}"
)


def element(name: str, body: str = "", **attributes: object) -> str:
    """Return an SVG element. Floats get one decimal, and `class_` becomes ``class``.

    ``body`` must be SVG; the caller escapes texts.
    """
    tag = name
    for key, value in attributes.items():
        written = f"{value:.1f}" if isinstance(value, float) else value
        tag += f' {key.rstrip("_").replace("_", "-")}="{written}"'
    return f"<{tag}>{body}</{name}>" if body else f"<{tag}/>"


def text(x: float, y: float, words: object, anchor: str = "", **attributes: object) -> str:
    """Return text; ``anchor`` is the part of the text that is at (x, y): "end" or "middle"."""
    anchor_attribute = {"text_anchor": anchor} if anchor else {}
    return element("text", html_text(words), x=x, y=y, **anchor_attribute, **attributes)


def points_text(x: Axis, y: Axis, points: Iterable[tuple[float, float]]) -> str:
    """Return the attribute ``points`` of a line or an area through (x, y) values."""
    return " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)


def value_grid(y: Axis, x_ends: tuple[int, int], unit: Unit, n_ticks: int = 5) -> Iterator[str]:
    """Yield horizontal grid lines at round values, with labels to the left of the lines."""
    left, right = x_ends
    for value in round_ticks(y.low, y.high, n_ticks):
        at = y(value)
        yield element("line", class_="grid", x1=left, x2=right, y1=at, y2=at)
        yield text(left - 6, at + 4, round_text(unit, value), "end")


def drawing(size: tuple[int, float], kind: str, label: str, *parts: str, top: int = 0) -> str:
    """Return a complete picture of a ``size`` (width, height) with CSS class and description.

    Screen readers treat a picture as one object, unless its parts contain links.
    """
    (width, height), body = size, "".join(parts)
    role = "group" if "<a " in body else "img"
    return (
        f'<svg viewBox="0 {top} {width} {height:.0f}" class="{kind}" role="{role}" '
        f'aria-label="{html_text(label)}">{body}</svg>'
    )


def scrolling(title: str, chart: str) -> str:
    """Return a chart that scrolls in a narrow window, so that its text stays readable."""
    label = html_text(title)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">{chart}</div>'


def legend(entries: Iterable[tuple[str, str]], kind: str = "legend") -> str:
    """Return a legend from pairs of a CSS color and a text."""
    items = "".join(
        f'<li><i style="background:{color}"></i>{html_text(words)}</li>' for color, words in entries
    )
    return f'<ul class="{kind}">{items}</ul>'


def theme_style(variables: Callable[[str], str], *, is_light_on_paper: bool = False) -> str:
    """Return CSS that sets ``variables`` for each theme ("light", "dark").

    With ``is_light_on_paper``, printed pages use the light theme.
    """
    dark = f"[data-theme=dark]{{{variables('dark')}}}"
    dark = f"@media screen{{{dark}}}" if is_light_on_paper else dark
    return f":root{{{variables('light')}}}{dark}"


def chart_style(kind: str, keys: Iterable[str], extra_css: str = "") -> str:
    """Return the CSS of a chart class and of its legend, for both themes.

    The colors of the categories ``keys`` become variables: ``--KIND-KEY``.
    """
    named = [(f"--{kind}-{key}", category_of(key)) for key in keys]
    variables = theme_style(
        lambda theme: "".join(f"{name}:{getattr(category, theme)};" for name, category in named)
    )
    return (
        f"{variables}.{kind}{{width:100%;height:auto}}.{kind} text{{font-size:11px;"
        f"fill:var(--muted)}}.{kind} .grid{{stroke:var(--line)}}{extra_css}{_KEY_STYLE}"
    )


def round_ticks(low: float, high: float, n_ticks: int = 5) -> list[float]:
    """Return about ``n_ticks`` values between the bounds: multiples of 1, 2, or 5 times 10^n."""
    rough = (high - low) / max(n_ticks, 1)
    if not rough > 0:
        return [low]
    power = 10.0 ** floor(log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def round_factors(low: float, high: float, max_ticks: int = 7) -> list[float]:
    """Return at most ``max_ticks`` round values from ``low`` to ``high`` for a logarithmic axis.

    The values are 1, 2, and 5 times each power of ten, or a thinner selection.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for units in ((1, 2, 5), (1, 3), (1,)):
        found = [unit * 10.0**power for power in powers for unit in units]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= max_ticks:
            return found
    return found[:: ceil(len(found) / max_ticks)]


_LOGARITHMS: Final[Mapping[int, Callable[[float], float]]] = {0: float, 2: log2, 10: log10}


@dataclass(frozen=True, slots=True)
class Axis:
    """Map values from ``low`` to ``high`` to pixels from ``start`` to ``end``.

    With a ``base`` (2 or 10), the axis is logarithmic, and ``low`` and ``high`` are exponents.
    """

    low: float
    high: float
    start: float
    end: float
    base: int = 0

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; the middle of the axis if the axis has a single value."""
        return self.start + (self.end - self.start) * self._share(value)

    def value(self, share: float) -> float:
        """Return the value at a share of the axis."""
        at = self.low + share * (self.high - self.low)
        return self.base**at if self.base else at

    def _share(self, value: float) -> float:
        """Return the position of a value on the axis as a share from 0 to 1."""
        if self.high <= self.low:
            return 0.5
        at = _LOGARITHMS[self.base](value)
        return (at - self.low) / (self.high - self.low)
