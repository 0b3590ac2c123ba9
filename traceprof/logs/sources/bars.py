"""Parse progress bars (tqdm, Rich), and measure speed from their redraws."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from traceprof.logs.lines import seconds_of
from traceprof.logs.source import number

_CLOSED_BAR: Final = re.compile(
    r"(?:(?P<pct>\d{1,3})%)?\|[^|]{0,400}\|\s*(?P<n>\d+)/(?P<total>\d+|\?)"
    r"\s*\[(?P<elapsed>\d[\d:]*)<(?P<eta>[\d:?]+(?: days?, [\d:]+)?)"
    r"(?:,\s*(?P<rate>[\d.]+(?:e[+-]?\d+)?|\?)\s*(?P<unit>[A-Za-z]*/s|s/[A-Za-z]+))?"
    r"(?:,\s*(?P<postfix>[^\]\[]*(?:\[[^\]]*\][^\]\[]*)*))?\]?"
)
_OPEN_BAR: Final = re.compile(
    r"(?<![\w.])(?P<n>\d+)it \[(?P<elapsed>\d[\d:]*)"
    r"(?:,\s*(?P<rate>[\d.]+(?:e[+-]?\d+)?|\?)\s*(?P<unit>[A-Za-z]*/s|s/[A-Za-z]+))?"
    r"(?:,\s*+(?P<postfix>[^\[\]]*+))?[\[\]]"
)
_RICH_BAR: Final = re.compile(
    r"(?P<desc>Epoch\s++\d++)(?:/\S++)?+\s++[━╸╺][━╸╺ ]*+(?<= )(?P<n>\d+)/(?P<total>\d+)\s++"
    r"(?P<elapsed>\d[\d:]*) • (?P<eta>[\d:-]+)\s++(?P<rate>[\d.]+)(?P<unit>it/s)(?P<postfix>.*)"
)
_RICH_PAIR: Final = re.compile(r"(?<![\w./-])[\d./-]*+(?P<key>[A-Za-z_][\w./-]*+): (?P<value>\S+)")
_PAIR: Final = re.compile(r"(?:^|,)\s*+(?P<key>[A-Za-z_][\w ./@%-]*+)\s*+=\s*+(?P<value>[^,]*+)")
MIN_INTERVAL_S: Final = 30.0
"""Shortest time between two bar states from which a speed is computed."""


class ProgressBar(NamedTuple):
    """One state of a progress bar.

    ``period_s`` is the smoothed time per step that the bar prints; None if it prints none.
    """

    title: str
    n: int
    total: int | None
    elapsed_s: float
    period_s: float | None
    values: dict[str, str]

    @property
    def pass_s(self) -> float:
        """The duration of a complete pass, from the last rate of tqdm, which is its mean."""
        of_rate = self.n * (self.period_s or 0.0)  # elapsed_s is a whole number of seconds
        return of_rate if self.elapsed_s <= of_rate < self.elapsed_s + 1 else self.elapsed_s


def bars_in(text: str) -> list[ProgressBar]:
    """Return the progress bar states that a line contains."""
    if "━" in text and "•" in text:
        return _parse_rich_bar(text)
    if "[" not in text or ("|" not in text and "it [" not in text):
        return []
    found, before = [], 0
    for match in _CLOSED_BAR.finditer(text) if "|" in text else _OPEN_BAR.finditer(text):
        groups = match.groupdict()
        title, before = text[before : match.start()], match.end()
        elapsed = seconds_of(groups["elapsed"])
        if elapsed is None:
            continue
        title, total = title.strip().rstrip(":").strip(), groups.get("total")
        values = {
            m["key"].rstrip(): m["value"].strip() for m in _PAIR.finditer(groups["postfix"] or "")
        }
        of_total = int(total) if total and total != "?" else None
        period = _period_of_rate(groups["rate"], groups["unit"])
        found.append(ProgressBar(title, int(groups["n"]), of_total, elapsed, period, values))
    return found


def _parse_rich_bar(text: str) -> list[ProgressBar]:
    match = _RICH_BAR.search(text)
    elapsed = None if match is None else seconds_of(match["elapsed"])
    if match is None or elapsed is None:
        return []
    period, n_done = _period_of_rate(match["rate"], match["unit"]), int(match["n"])
    values = {m["key"]: m["value"] for m in _RICH_PAIR.finditer(match["postfix"])}
    return [ProgressBar(match["desc"], n_done, int(match["total"]), elapsed, period, values)]


def _period_of_rate(rate: str | None, unit: str | None) -> float | None:
    value = number(rate)
    if not value or not unit:
        return None
    return value if unit.startswith("s/") else 1 / value


@dataclass(slots=True)
class ProgressSpeed:
    """Measure the speed between bar states that are at least ``MIN_INTERVAL_S`` apart.

    The minimum is necessary because bars print whole seconds.
    """

    n: int = 0
    elapsed_s: float = 0.0
    is_set: bool = False

    def period_s(self, bar: ProgressBar) -> float | None:
        """Return the seconds per step since the last returned value; None if it is too early."""
        if not self.is_set or bar.n < self.n or bar.elapsed_s < self.elapsed_s:
            self.n, self.elapsed_s, self.is_set = bar.n, bar.elapsed_s, True
            return None
        steps, seconds = bar.n - self.n, bar.elapsed_s - self.elapsed_s
        if steps <= 0 or seconds < MIN_INTERVAL_S:
            return None
        self.n, self.elapsed_s = bar.n, bar.elapsed_s
        return seconds / steps
