"""When a line was written, and how long something took: the times that logs print."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["Clock", "seconds_of"]

_MONTHS: Final = {
    name: i + 1
    for i, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    )
}
_TIME: Final = r"(?P<h>\d\d):(?P<min>\d\d):(?P<s>\d\d)(?:[.,](?P<part>\d{1,9}))?"
_STAMPS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<y>(?:19|20)\d\d)[-/](?P<mon>\d\d)[-/](?P<d>\d\d)[ T_]" + _TIME,
        r"(?P<name>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) " + _TIME + r" (?P<y>(?:19|20)\d\d)",
        r"(?P<d>\d{1,2}) (?P<name>[A-Z][a-z]{2}) (?P<y>(?:19|20)\d\d) " + _TIME,
        r"(?<![\w/])(?P<mon>\d\d)/(?P<d>\d\d) " + _TIME,
        r"(?<!\w)[DIWEF](?P<mon>\d\d)(?P<d>\d\d) " + _TIME,
        r"(?P<name>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) " + _TIME,
    )
)
_WHERE: Final = 600
_LEAP_YEAR: Final = 2000
_HALF_A_YEAR_S: Final = 182 * 86_400
_CLOCK: Final = re.compile(
    r"(?:(?P<d>\d+) days?,? *|(?P<d2>\d+)[d-] *)?(?:(?:(?P<h>\d+):)?(?P<min>\d+):)?"
    r"(?P<s>\d+(?:\.\d+)?)"
)


class Clock:
    """Reads the time stamps of one log, in seconds after the first of them.

    ``base_s`` is that first one, in whole seconds since 1970 on the log's own clock.

    Stamps without a year get that of the last one that had one, and a later one where they jump
    back by months: logs over New Year.
    """

    def __init__(self) -> None:
        self.base_s: int | None = None
        self._year: int | None = None
        self._last_s: int | None = None

    def read(self, text: str) -> float | None:
        """Return the time at which ``text`` says that it was written; None where it does not."""
        text = text[:_WHERE]
        for stamp in _STAMPS:
            match = stamp.search(text)
            if match is None:
                continue
            found = self._seconds(match)
            if found is not None:
                return found
        return None

    def since(self, whole_s: int, part_s: float) -> float:
        """Return a time, given as whole and part of a second since 1970, after the first one."""
        if self.base_s is None:
            self.base_s = whole_s
        return whole_s - self.base_s + part_s

    def _seconds(self, match: re.Match[str]) -> float | None:
        own = match.groupdict()
        month = _MONTHS.get(own["name"]) if own.get("name") else int(own["mon"])
        year = int(own["y"]) if own.get("y") else (self._year or _LEAP_YEAR)
        if month is None:
            return None
        try:
            seconds = _instant(own, year, month)
            if own.get("y"):
                self._year = year
            elif self._last_s is not None and seconds < self._last_s - _HALF_A_YEAR_S:
                self._year = year + 1
                seconds = _instant(own, year + 1, month)
        except ValueError:
            return None
        self._last_s = seconds
        return self.since(seconds, float(f"0.{own['part']}") if own.get("part") else 0.0)


def _instant(own: dict[str, str], year: int, month: int) -> int:
    day, hour, minute, second = (int(own[name]) for name in ("d", "h", "min", "s"))
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


def seconds_of(text: str) -> float | None:
    """Return what "1:42:42", "00:08", "1 day, 2:03:04" or "12.5" are in seconds; else None."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    days = match["d"] or match["d2"] or 0
    hours, minutes = match["h"] or 0, match["min"] or 0
    return int(days) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(match["s"])
