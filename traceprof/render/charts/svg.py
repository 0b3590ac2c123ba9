"""What charts are drawn with: elements of SVG, axes, legends, colors of both themes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import Final

from traceprof.render.escape import html_text
from traceprof.render.palette import category_of

_KEY_STYLE: Final = (
    ".key{display:flex;flex-wrap:wrap;gap:4px 14px;list-style:none;margin:0 0 8px;padding:0;"
    "font-size:12px;color:var(--muted)}"
    ".key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}"
)


def element(name: str, body: str = "", **attributes: object) -> str:
    """Return an element of SVG; numbers with a point get one decimal, `class_` is ``class``.

    ``body`` is SVG already: texts are escaped by who writes them.
    """
    told = name
    for key, value in attributes.items():
        written = f"{value:.1f}" if isinstance(value, float) else value
        told += f' {key.rstrip("_").replace("_", "-")}="{written}"'
    return f"<{told}>{body}</{name}>" if body else f"<{told}/>"


def text(x: float, y: float, words: object, anchor: str = "", **attributes: object) -> str:
    """Return words at a place; ``anchor`` is what of them stands there ("end", "middle")."""
    more = {"text_anchor": anchor} if anchor else {}
    return element("text", html_text(words), x=x, y=y, **more, **attributes)


def drawing(size: tuple[int, float], kind: str, label: str, *parts: str, top: int = 0) -> str:
    """Return a whole picture as wide and high as ``size``, of a class, with what it shows."""
    width, height = size
    return (
        f'<svg viewBox="0 {top} {width} {height:.0f}" class="{kind}" role="img" '
        f'aria-label="{html_text(label)}">{"".join(parts)}</svg>'
    )


def legend(entries: Iterable[tuple[str, str]], kind: str = "legend") -> str:
    """Return what colors mean: pairs of a color, as CSS has it, and words."""
    items = "".join(
        f'<li><i style="background:{color}"></i>{html_text(words)}</li>' for color, words in entries
    )
    return f'<ul class="{kind}">{items}</ul>'


def theme_style(variables: Callable[[str], str], *, is_light_on_paper: bool = False) -> str:
    """Return variables of a page, for each theme ("light", "dark") those that it has."""
    dark = f"[data-theme=dark]{{{variables('dark')}}}"
    dark = f"@media screen{{{dark}}}" if is_light_on_paper else dark
    return f":root{{{variables('light')}}}{dark}"


def chart_style(kind: str, keys: Iterable[str], more: str = "") -> str:
    """Return the style of a chart of a class, light and dark, and of what explains its colors.

    Colors of the categories ``keys`` are variables: ``--KIND-KEY``.
    """
    named = [(f"--{kind}-{key}", category_of(key)) for key in keys]
    variables = theme_style(
        lambda theme: "".join(f"{name}:{getattr(one, theme)};" for name, one in named)
    )
    return (
        f"{variables}.{kind}{{width:100%;height:auto}}.{kind} text{{font-size:11px;"
        f"fill:var(--muted)}}.{kind} .grid{{stroke:var(--line)}}{more}{_KEY_STYLE}"
    )


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return some ``about`` values from ``low`` to ``high``: by 1, 2 or 5 in a power of ten."""
    rough = (high - low) / max(about, 1)
    if not rough > 0:
        return [low]
    power = 10.0 ** floor(log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def round_factors(low: float, high: float, about: int = 7) -> list[float]:
    """Return round values between two, by factors: 1, 2 and 5 of each power of ten, or fewer."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for units in ((1, 2, 5), (1, 3), (1,)):
        found = [unit * 10.0**power for power in powers for unit in units]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= about:
            return found
    return found[:: ceil(len(found) / about)]


_LOGARITHMS: Final[Mapping[int, Callable[[float], float]]] = {0: float, 2: log2, 10: log10}


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``.

    With a ``base``, 2 or 10, it goes by factors: low and high are exponents then.
    """

    low: float
    high: float
    start: float
    end: float
    base: int = 0

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; all stand in the middle where there is but one."""
        return self.start + (self.end - self.start) * self._share(value)

    def value(self, share: float) -> float:
        """Return the value at a share of the axis."""
        at = self.low + share * (self.high - self.low)
        return self.base**at if self.base else at

    def _share(self, value: float) -> float:
        if self.high <= self.low:
            return 0.5
        at = _LOGARITHMS[self.base](value)
        return (at - self.low) / (self.high - self.low)
