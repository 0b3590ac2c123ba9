"""Bars of progress (tqdm), and what their redraws tell of speed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from traceprof.logs.lines import seconds_of
from traceprof.logs.source import number

_BAR: Final = re.compile(
    r"(?:(?P<pct>\d{1,3})%)?\|[^|]{0,400}\|\s*(?P<n>\d+)/(?P<total>\d+|\?)"
    r"\s*\[(?P<elapsed>\d[\d:]*)<(?P<eta>[\d:?]+(?: days?, [\d:]+)?)"
    r"(?:,\s*(?P<rate>[\d.]+(?:e[+-]?\d+)?|\?)\s*(?P<unit>[A-Za-z]*/s|s/[A-Za-z]+))?"
    r"(?:,\s*(?P<postfix>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*))?\]?"
)
_OPEN: Final = re.compile(
    r"(?<![\w.])(?P<n>\d+)it \[(?P<elapsed>\d[\d:]*)"
    r"(?:,\s*(?P<rate>[\d.]+(?:e[+-]?\d+)?|\?)\s*(?P<unit>[A-Za-z]*/s|s/[A-Za-z]+))?"
    r"(?:,\s*+(?P<postfix>[^\[\]]*+))?[\[\]]"
)
_RICH: Final = re.compile(
    r"(?P<desc>Epoch \d+)/\S+\s++[━╸╺][━╸╺ ]*+(?<= )(?P<n>\d+)/(?P<total>\d+)\s++"
    r"(?P<elapsed>\d[\d:]*) • (?P<eta>[\d:-]+)\s++(?P<rate>[\d.]+)(?P<unit>it/s)(?P<postfix>.*)"
)
_RICH_PAIR: Final = re.compile(r"(?<![\w./-])[\d./-]*+(?P<key>[A-Za-z_][\w./-]*+): (?P<value>\S+)")
_PAIR: Final = re.compile(r"(?:^|,)\s*+(?P<key>[A-Za-z_][\w ./@%-]*+)\s*+=\s*+(?P<value>[^,]*+)")
_SHORTEST_S: Final = 30.0


class ProgressBar(NamedTuple):
    """One state of a bar; ``period_s`` is what it says of the speed, smoothed; None: nothing."""

    title: str
    n: int
    total: int | None
    elapsed_s: float
    period_s: float | None
    values: dict[str, str]


def bars_in(text: str) -> list[ProgressBar]:
    """Return the states of bars that stand in a line."""
    if "━" in text and "•" in text:
        return _rich(text)
    if "[" not in text or ("|" not in text and "it [" not in text):
        return []
    found, before = [], 0
    for match in _BAR.finditer(text) if "|" in text else _OPEN.finditer(text):
        own = match.groupdict()
        title, before = text[before : match.start()], match.end()
        elapsed = seconds_of(own["elapsed"])
        if elapsed is None:
            continue
        title, total = title.strip().rstrip(":").strip(), own.get("total")
        values = {
            m["key"].rstrip(): m["value"].strip() for m in _PAIR.finditer(own["postfix"] or "")
        }
        of_total = int(total) if total and total != "?" else None
        period = _period(own["rate"], own["unit"])
        found.append(ProgressBar(title, int(own["n"]), of_total, elapsed, period, values))
    return found


def _rich(text: str) -> list[ProgressBar]:
    match = _RICH.search(text)
    elapsed = None if match is None else seconds_of(match["elapsed"])
    if match is None or elapsed is None:
        return []
    period, done = _period(match["rate"], match["unit"]), int(match["n"])
    values = {m["key"]: m["value"] for m in _RICH_PAIR.finditer(match["postfix"])}
    return [ProgressBar(match["desc"], done, int(match["total"]), elapsed, period, values)]


def _period(rate: str | None, unit: str | None) -> float | None:
    value = number(rate)
    if not value or not unit:
        return None
    return value if unit.startswith("s/") else 1 / value


@dataclass(slots=True)
class ProgressSpeed:
    """The speed between states of a bar that are far enough apart: it prints whole seconds."""

    n: int = 0
    elapsed_s: float = 0.0
    is_set: bool = False

    def period_s(self, bar: ProgressBar) -> float | None:
        """Return s per step since the last time that this returned something."""
        if not self.is_set or bar.n < self.n or bar.elapsed_s < self.elapsed_s:
            self.n, self.elapsed_s, self.is_set = bar.n, bar.elapsed_s, True
            return None
        steps, seconds = bar.n - self.n, bar.elapsed_s - self.elapsed_s
        if steps <= 0 or seconds < _SHORTEST_S:
            return None
        self.n, self.elapsed_s = bar.n, bar.elapsed_s
        return seconds / steps
