"""The history of a run: step time by minute, when it changed, and what changed at the same time.

It is read from the status files of the processes (`status`) and from the minutes of each host,
which its launcher writes (`node_history`). Minutes without steps are not recorded; they are no
zeros.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import UsageError
from traceprof.formats.runs.manifest import NOTES
from traceprof.recording.live.status import PERIOD_FIELDS, LiveRun, Process, read_periods

HOSTS: Final = "history.*.jsonl*"
"""The files of the minutes of the hosts, in the folder of the live status."""
_MAX_HOST_BYTES: Final = 32 << 20
_MIN_CHANGE_RATIO: Final = 0.05
_MIN_MINUTES: Final = 3
_NEAR_MINUTES: Final = 30
_MAX_CHANGES: Final = 50
_THRESHOLD: Final = 30.0
"""How much of the squared noise a change of the mean must explain."""
_MAX_CORRELATION: Final = 0.95
_CAUSE_SHARE: Final = 0.3
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SPAN: Final = re.compile(r"(\S*?)\s*(?:(\d{1,2}):(\d\d)\.\.(\d{1,2}):(\d\d))?")

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of the step time at the beginning of a minute (since 1970), with its causes."""

    minute: int
    before_ns: float
    after_ns: float
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """A run by minute (``minutes`` since 1970). Arrays have one value per recorded minute.

    ``step_ns`` is the typical step of the median rank; ``data_ns`` the data loading per step, of
    the rank that loads longest; ``in_steps_ratio`` the share of the minute inside of steps, of the
    part of the minute in which the process ran.
    ``restarts`` are minutes and labels. ``hosts``: "host: value" → minute → value.
    """

    minutes: npt.NDArray[np.int64]
    step_ns: Values
    data_ns: Values
    in_steps_ratio: Values
    samples_per_step: Values
    n_ranks: Values
    n_steps: int
    restarts: tuple[tuple[int, str], ...] = ()
    hosts: Mapping[str, Mapping[int, float]] | None = None

    def of(self, span: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """Return which minutes are in a span (first minute, minute after the last)."""
        inside: npt.NDArray[np.bool_] = (self.minutes >= span[0]) & (self.minutes < span[1])
        return inside


def is_history(folder: Path) -> bool:
    """Return whether a folder is that of a live run and has no trace, not even of a capture."""
    live, traces = folder / "live", (*folder.glob("*.sqlite"), *folder.glob("capture-*"))
    is_live = any(live.glob("status.*")) or (live / NOTES).is_file()
    return is_live and not traces


def read_history(folder: Path) -> History:
    """Return the history of the run in ``folder``.

    Raises:
        TraceError: the run has no live status.
    """
    run = LiveRun(folder)
    processes = run.refresh()
    by_minute: dict[int, dict[str, list[int]]] = {}
    for process in processes:
        with suppress(OSError):
            for row in read_periods(process.path).tolist():
                covered_ns = _covered_ns(process, row[0])
                by_minute.setdefault(row[0], {})[_label_of(process)] = [*row, covered_ns]
    at = {name: index for index, name in enumerate(PERIOD_FIELDS)}
    minutes = np.array(sorted(by_minute), np.int64)
    rows = [np.array(list(by_minute[minute].values()), np.float64) for minute in minutes.tolist()]
    return History(
        minutes=minutes,
        step_ns=np.array([np.median(row[:, at["typical_sum_ns"]] / row[:, 1]) for row in rows]),
        data_ns=np.array([np.max(row[:, at["data_ns"]] / row[:, 1]) for row in rows]),
        in_steps_ratio=np.array([np.median(row[:, at["sum_ns"]] / row[:, -1]) for row in rows]),
        samples_per_step=np.array([np.median(row[:, at["samples"]] / row[:, 1]) for row in rows]),
        n_ranks=np.array([float(len(row)) for row in rows]),
        n_steps=_count_steps(processes),
        restarts=tuple(_restarts(processes)),
        hosts=_read_hosts(run.live),
    )


def _count_steps(processes: Sequence[Process]) -> int:
    """Return the number of steps of the rank with most steps, over all its attempts."""
    counts: Counter[str] = Counter()
    for process in processes:
        counts[_label_of(process)] += process.header.n_steps
    return max(counts.values(), default=0)


def _covered_ns(process: Process, minute: int) -> int:
    """Return how long a process has run in a minute, up to its last step."""
    header, begin_ns = process.header, minute * 60_000_000_000
    end_ns = min(begin_ns + 60_000_000_000, header.offset_ns + header.last_step_ns)
    covered_ns = end_ns - max(begin_ns, header.started_ns)
    return covered_ns if covered_ns > 0 else 60_000_000_000


def _label_of(process: Process) -> str:
    rank = process.header.rank
    return f"rank {rank}" if rank is not None else process.path.name


def _restarts(processes: Sequence[Process]) -> Iterator[tuple[int, str]]:
    """Yield the minute of each start of a rank that had run before."""
    known = set()
    for process in sorted(processes, key=lambda process: process.header.started_ns):
        label = _label_of(process)
        if label in known:
            yield process.header.started_ns // 60_000_000_000, label
        known.add(label)


def _read_hosts(live: Path) -> dict[str, dict[int, float]]:
    """Return the values of the hosts by minute; damaged lines are skipped."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(live.glob(HOSTS), reverse=True):
        with suppress(OSError), path.open("rb") as file:
            for line in file.read(_MAX_HOST_BYTES).splitlines():
                with suppress(ValueError, KeyError, TypeError, AttributeError):
                    document = json.loads(line)
                    for name, value in document["values"].items():
                        key = f"{document['host']}: {name}"
                        found.setdefault(key, {})[int(document["minute"])] = float(value)
    return found


def find_changes(history: History) -> list[LevelChange]:
    """Return the changes of the step time by at least 5% that exceed the noise, oldest first."""
    if not len(history.minutes):
        return []
    values = np.log(np.maximum(history.step_ns, 1.0))
    edges = [0, *sorted(_splits(values, 0, len(values)))[:_MAX_CHANGES], len(values)]
    changes = []
    for first, split, end in zip(edges, edges[1:], edges[2:], strict=False):
        before = slice(max(first, split - _NEAR_MINUTES), split)
        after = slice(split, min(end, split + _NEAR_MINUTES))
        changes.append(_change_at(history, before, after))
    return changes


def _splits(values: Values, first: int, end: int) -> Iterator[int]:
    """Yield the indices at which the level of ``values[first:end]`` changes."""
    part = values[first:end]
    n = len(part)
    if n < 2 * _MIN_MINUTES:
        return
    clipped = np.clip(part, *np.percentile(part, [1, 99])) if n >= 100 else part
    sums = np.cumsum(clipped)
    sizes = np.arange(1, n)
    left, right = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (n - sizes)
    gains = sizes * (n - sizes) / n * (left - right) ** 2
    gains[: _MIN_MINUTES - 1] = gains[n - _MIN_MINUTES :] = 0
    split = int(np.argmax(gains)) + 1
    levels = float(np.median(part[:split])), float(np.median(part[split:]))
    residuals = part - np.where(np.arange(n) < split, *levels)
    spread = 1.4826 * float(np.median(np.abs(residuals - np.median(residuals)))) + 1e-3
    limited = np.clip(residuals, -3 * spread, 3 * spread)
    variance = float(np.mean(limited**2)) + 1e-12
    correlation = float(np.mean(limited[1:] * limited[:-1])) / variance
    correlation = min(max(correlation, 0.0), _MAX_CORRELATION)
    noise = max(variance, 1e-6) * (1 + correlation) / (1 - correlation)
    is_change = abs(levels[1] - levels[0]) >= np.log1p(_MIN_CHANGE_RATIO)
    if gains[split - 1] > _THRESHOLD * noise:
        if is_change:
            yield first + split
        yield from _splits(values, first, first + split)
        yield from _splits(values, first + split, end)


def _change_at(history: History, before: slice, after: slice) -> LevelChange:
    """Return the change between two spans of minutes, with what else changed."""
    old, new = (float(np.median(history.step_ns[part])) for part in (before, after))
    minute = int(history.minutes[after.start])
    causes = [
        *_loader_cause(history, before, after, new - old),
        *_count_causes(history, before, after),
        *_host_causes(history, before, after),
    ]
    restarted = [label for at, label in history.restarts if abs(at - minute) <= 2]
    if restarted:
        causes.append(f"{', '.join(restarted[:4])} restarted")
    return LevelChange(minute, old, new, tuple(causes))


def _loader_cause(history: History, before: slice, after: slice, change_ns: float) -> Iterator[str]:
    old, new = (float(np.median(history.data_ns[part])) for part in (before, after))
    if (new - old) / change_ns >= _CAUSE_SHARE:
        yield f"data loading {old / 1e6:.3g} → {new / 1e6:.3g} ms per step"


def _count_causes(history: History, before: slice, after: slice) -> Iterator[str]:
    for name, values in (
        ("ranks", history.n_ranks),
        ("samples per step of a rank", history.samples_per_step),
    ):
        old, new = (float(np.median(values[part])) for part in (before, after))
        if old and new and abs(new / old - 1) >= _MIN_CHANGE_RATIO:
            yield f"{name} {old:.6g} → {new:.6g}"
    old, new = (float(np.median(history.in_steps_ratio[part])) for part in (before, after))
    if abs(new - old) >= 0.1:
        yield f"time outside of steps (evaluation, checkpoints) {1 - old:.0%} → {1 - new:.0%}"


def _host_causes(history: History, before: slice, after: slice) -> Iterator[str]:
    """Yield the values of the hosts that changed by 5%, and at least by 5 percent points."""
    for name, by_minute in (history.hosts or {}).items():
        parts = []
        for part in (before, after):
            known = [by_minute[at] for at in history.minutes[part].tolist() if at in by_minute]
            parts.append(float(np.median(known)) if known else None)
        old, new = parts
        if old is None or new is None:
            continue
        scale = 1.0 if name.endswith("_ratio") or "throttled" in name else max(abs(old), 1.0)
        if abs(new - old) >= max(_MIN_CHANGE_RATIO * scale, 1e-9):
            yield f"{name} {old:.4g} → {new:.4g}"


def parse_span(text: str, history: History) -> tuple[int, int]:
    """Return (first minute, minute after the last) of a time such as "monday 14:00..16:00".

    A weekday is the last one in the history. The times are those of the local clock.

    Raises:
        UsageError: the text is not a time, or the history has no minute in it.
    """
    found = _SPAN.fullmatch(text.strip().lower())
    day = _day_of(found[1], history) if found else None
    if found is None or day is None:
        raise UsageError(
            f"{text!r}: expected a weekday, today, yesterday, or a date such as 2026-11-29, "
            "optionally with times: monday 14:00..16:00"
        )
    begin, end = day, day + timedelta(days=1)
    if found[2] is not None:
        hours = [int(part) for part in found.groups()[1:]]
        begin = day + timedelta(hours=hours[0], minutes=hours[1])
        end = day + timedelta(hours=hours[2], minutes=hours[3])
    span = round(begin.timestamp()) // 60, round(end.timestamp()) // 60
    if not history.of(span).any():
        raise UsageError(f"{text!r}: the run has no steps at this time")
    return span


def _day_of(word: str, history: History) -> datetime | None:
    """Return the beginning of a day; None if the word names no day."""
    last_s = 60 * int(history.minutes[-1]) if len(history.minutes) else time.time()
    last = datetime.fromtimestamp(last_s).replace(hour=0, minute=0)
    today = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
    if word in _DAYS:
        return last - timedelta(days=(last.weekday() - _DAYS.index(word)) % 7)
    known = {"": last, "today": today, "yesterday": today - timedelta(days=1)}
    if word in known:
        return known[word]
    with suppress(ValueError):
        return datetime.strptime(word, "%Y-%m-%d")
    return None
