"""Format the state of a running program: a page for a terminal, one line, or JSON.

All texts of a run are untrusted, so they are escaped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Final

from traceprof.recording.live.status import Node
from traceprof.recording.live.view import RankView, RunView, Straggler
from traceprof.render.escape import plain_text
from traceprof.render.text.page import sparkline
from traceprof.units import (
    NS_PER_S,
    SENTENCE_DIGITS,
    format_bytes,
    format_duration,
    format_number,
    format_ratio,
    sentence_duration,
)

_MIN_WIDTH: Final = 40
_MAX_RANKS: Final = 16
_MAX_NODES: Final = 8
_OLD_S: Final = 15.0
_MAX_FRAMES: Final = 6
_MAX_METRICS: Final = 6
_MAX_NAME: Final = 40
_MIN_TREND_RATIO: Final = 0.03
_PLACES: Final = {
    "data": "data loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "other": "Python code outside the forward pass, backward pass, and optimizer",
}
_SCHEMA: Final = 1
_NO_STEP: Final = (
    "no process has begun a step yet (a program without PyTorch marks steps with traceprof.step())"
)
_STATES: Final = ("stalled", "lost", "killed", "failed", "finished", "running")


def watch_text(view: RunView, nodes: Sequence[Node], name: str, width: int = 100) -> str:
    """Return the page of a run for a terminal of ``width`` columns."""
    if not view.ranks:
        return f"{plain_text(name, _MAX_NAME)}: {_NO_STEP}\n"
    lines = [head_of(view, name)]
    for label, text in facts_of(view, nodes):
        lines += _labeled(label, text, width)
    table = [line[:width].rstrip() for line in _table(view)]
    return "\n".join([*lines, "", *table]) + "\n"


def facts_of(view: RunView, nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """Return the labeled facts of a run, each in one text without control characters."""
    hosts = [_node(node) for node in nodes[:_MAX_NODES]]
    if len(nodes) > _MAX_NODES:
        hosts.append(f"{len(nodes) - _MAX_NODES} more hosts")
    parts = (
        ("Step time", _step_time(view)),
        ("Phases", _phases(view)),
        ("Progress", _progress(view)),
        ("Metrics", _metrics(view)),
        ("Ranks", _ranks(view)),
        ("Problem", problems(view)),
        ("Host", hosts),
    )
    return [(label, text) for label, texts in parts for text in texts]


def watch_line(view: RunView) -> str:
    """Return the state of a run in one line."""
    parts = [*_step_time(view, with_bars=False)[:1], *_ranks(view), *problems(view)]
    clock = time.strftime("%H:%M:%S", time.localtime(view.time_s))
    step = f" step {view.step}:" if view.step is not None else ""
    return f"{clock}{step} {'; '.join(parts) or _NO_STEP}\n"


def watch_json(view: RunView, nodes: Sequence[Node]) -> str:
    """Return the state of a run as one line of JSON; times are ns, unknown values are null."""
    document: dict[str, Any] = {
        "schema": _SCHEMA,
        **asdict(view),
        "nodes": [
            {field: getattr(node, field) for field in node.__struct_fields__} for node in nodes
        ],
    }
    document["stalled"] = [rank.label for rank in view.stalled]
    return json.dumps(document, default=str) + "\n"


def head_of(view: RunView, name: str) -> str:
    """Return the first line of a page: the name of the run, its ranks, its step, and the time."""
    n_running = sum(rank.state in ("running", "stalled") for rank in view.ranks)
    step = f"  ·  step {view.step}" if view.step is not None else ""
    clock = time.strftime("%H:%M:%S", time.localtime(view.time_s))
    n_ranks = f"{n_running} of {len(view.ranks) + (view.missing or 0)} ranks running"
    return f"{plain_text(name, _MAX_NAME)}  ·  {n_ranks}{step}  ·  {clock}"


def _labeled(label: str, text: str, width: int) -> list[str]:
    """Return ``text`` with its label, wrapped to ``width`` columns."""
    first, indent = f"{label:11} ", " " * 12
    return wrap(text, max(width, _MIN_WIDTH), initial_indent=first, subsequent_indent=indent)


def _step_time(view: RunView, *, with_bars: bool = True) -> list[str]:
    """Return the step time, its rate, and its trend."""
    if view.step_ns is None:
        return []
    rates = []
    if view.steps_per_s:
        rates.append(f"{format_number(round(view.steps_per_s, 2), SENTENCE_DIGITS)} steps/s")
    if view.samples_per_s:
        rates.append(f"{format_number(round(view.samples_per_s, 1), SENTENCE_DIGITS)} samples/s")
    if view.tokens_per_s:
        rates.append(f"{format_number(round(view.tokens_per_s, 1), SENTENCE_DIGITS)} tokens/s")
    rate = f" ({', '.join(rates)})" if rates else ""
    trend = ""
    if view.usual_ns:
        change = view.step_ns / view.usual_ns - 1
        is_steady = abs(change) < _MIN_TREND_RATIO
        trend = "  steady" if is_steady else f"  {change:+.0%} vs. the steps before"
    bars = "  " + sparkline(view.bars_ns, 32) if with_bars and len(view.bars_ns) > 1 else ""
    return [f"{sentence_duration(view.step_ns)}{rate}{trend}{bars}"]


def _phases(view: RunView) -> list[str]:
    if not view.step_ns or not any(view.phases_ns.values()):
        return []
    shares = ((name, ns / view.step_ns) for name, ns in view.phases_ns.items() if ns)
    text = " · ".join(f"{name} {format_ratio(share)}" for name, share in shares)
    return [f"{text}  ({view.shown})" if len(view.ranks) > 1 else text]


def _progress(view: RunView) -> list[str]:
    """Return how far the run and the epoch are, and the time to their ends, if it is known."""
    texts = []
    for kind, unit in (("run", ""), ("epoch", " batches")):
        progress = view.progress.get(kind)
        if progress is None:
            continue
        done, total = (format_number(round(value, 2)) for value in (progress.done, progress.total))
        source = plain_text(progress.source, _MAX_NAME)
        text = f"{done} of {total}{unit} of the {kind} ({source})"
        if progress.left_ns is not None:
            text += f", about {_clock_time(progress.left_ns)} to its end"
        texts.append(text)
    return [" · ".join(texts)] if texts else []


def _clock_time(ns: float) -> str:
    """Return a time in its two largest units: "3 d 4 h", "2 min 5 s", "40 s"."""
    minutes, seconds = divmod(round(ns / NS_PER_S), 60)
    hours = minutes // 60
    values = ((hours // 24, "d"), (hours % 24, "h"), (minutes % 60, "min"), (seconds, "s"))
    first = next((at for at, (value, _) in enumerate(values) if value), len(values) - 1)
    return " ".join(f"{value} {unit}" for value, unit in values[first : first + 2])


def _metrics(view: RunView) -> list[str]:
    shown = list(view.metrics.items())[:_MAX_METRICS]
    texts = [
        f"{plain_text(name, _MAX_NAME)} {_metric_text(value)} (step {step})"
        for name, (value, step) in shown
    ]
    return [" · ".join(texts)] if texts else []


def _metric_text(value: float | None) -> str:
    return "NaN or infinite" if value is None else format_number(value)


def _ranks(view: RunView) -> list[str]:
    """Return who waits for whom, or why this is unknown."""
    if view.straggler is not None:
        return [straggler_text(view.straggler)]
    return [view.why_no_straggler] if view.why_no_straggler else []


def straggler_text(straggler: Straggler) -> str:
    """Return the sentence about a straggler."""
    place = _PLACES.get(straggler.place)
    where = f", in {place}" if place else ""
    return (
        f"rank {straggler.rank} is the straggler: its work takes "
        f"{sentence_duration(straggler.excess_ns)} longer per step{where}; the other ranks wait "
        f"{sentence_duration(straggler.waited_ns)} per step"
    )


def problems(view: RunView) -> list[str]:
    """Return the stalls, lost processes, and missing data, one text each."""
    texts = [*_stalls(view)]
    for state, one, several in (
        (
            "lost",
            "does not respond (its process hangs, or its host is down)",
            "do not respond (their processes hang, or their hosts are down)",
        ),
        ("killed", "was killed", "were killed"),
        ("failed", "ended with an error", "ended with an error"),
    ):
        found = [rank for rank in view.ranks if rank.state == state]
        if found:
            texts.append(f"{_labels(found)} {one if len(found) == 1 else several}")
    if view.missing and not view.is_over:
        texts.append(f"{view.missing} ranks have not begun a step")
    restarted = [rank for rank in view.ranks if rank.attempts > 1]
    if restarted:
        verb = "was" if len(restarted) == 1 else "were"
        texts.append(f"{_labels(restarted)} {verb} restarted; the last attempt is shown")
    unwritten = [rank for rank in view.ranks if rank.n_errors]
    if unwritten:
        texts.append(f"{_labels(unwritten)} could not write its status (disk full?)")
    if view.n_damaged:
        texts.append(f"{view.n_damaged} status files cannot be read")
    return texts


def _stalls(view: RunView) -> list[str]:
    """Return which ranks are stalled, where, and which of them the others wait for."""
    texts = []
    waiting = [rank for rank in view.stalled if rank.pending]
    suspects = [rank for rank in view.stalled if not rank.pending]
    absent = suspects or [rank for rank in view.ranks if rank.state in ("lost", "killed", "failed")]
    if waiting and absent:
        operator = plain_text(waiting[0].pending, _MAX_NAME)
        texts.append(
            f"{_labels(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in {operator}; "
            f"{_labels(absent)} {'has' if len(absent) == 1 else 'have'} not reached it"
        )
    for rank in suspects or waiting[:1]:
        inside = f" in {plain_text(rank.phase, _MAX_NAME)}" if rank.phase else ""
        frames = " ← ".join(plain_text(frame, 120) for frame in rank.stack[:_MAX_FRAMES])
        texts.append(
            f"{rank.label} is stalled{inside}: no step for {sentence_duration(rank.since_step_ns)}"
            f"{'; stack: ' if frames else ''}{frames}"
        )
    return texts


def _labels(ranks: Sequence[RankView]) -> str:
    """Return the labels of ranks: at most four, and the number of the others."""
    shown = ", ".join(rank.label for rank in ranks[:4])
    return shown if len(ranks) <= 4 else f"{shown} and {len(ranks) - 4} more"


def _node(node: Node) -> str:
    """Return the use of a host and of its GPUs."""
    parts = [plain_text(node.host, _MAX_NAME)]
    age_s = time.time() - node.time_s
    if age_s > _OLD_S:
        return f"{parts[0]} · no data for {sentence_duration(1e9 * age_s)}"
    if node.cpu_ratio is not None:
        parts.append(f"CPU {format_ratio(node.cpu_ratio)} of {node.n_cpus} cores")
    if node.memory_bytes and node.memory_used_bytes is not None:
        used, total = format_bytes(node.memory_used_bytes), format_bytes(node.memory_bytes)
        parts.append(f"memory {used} of {total}")
    for name, values in list(node.gpus.items())[:_MAX_RANKS]:
        parts.append(_gpu(name, values))
    return " · ".join(parts)


def _gpu(name: str, values: dict[str, float]) -> str:
    texts = []
    if "utilization_percent" in values:
        texts.append(f"{values['utilization_percent']:.0f}% busy")
    if "memory_used_bytes" in values:
        texts.append(format_bytes(values["memory_used_bytes"]))
    if "power_watts" in values:
        texts.append(f"{values['power_watts']:.0f} W")
    if "sm_clock_mhz" in values:
        texts.append(f"{values['sm_clock_mhz']:.0f} MHz")
    if "temperature_celsius" in values:
        texts.append(f"{values['temperature_celsius']:.0f} °C")
    if values.get("throttled_by_heat"):
        texts.append("throttled by heat")
    return f"GPU {plain_text(name.removeprefix('gpu:'), _MAX_NAME)}: {', '.join(texts) or '–'}"


def rank_rows(view: RunView) -> list[tuple[str, ...]]:
    """Return the titles and rows of the ranks: all of them, or the slowest and the problems."""
    shown = list(view.ranks)
    if len(shown) > _MAX_RANKS:
        slow = view.straggler.rank if view.straggler else None
        order = sorted(
            shown,
            key=lambda rank: (
                rank.rank is None or rank.rank != slow,
                _STATES.index(rank.state),
                -(rank.work_ns or 0),
            ),
        )
        shown = sorted(order[:_MAX_RANKS], key=lambda rank: (rank.rank is None, rank.rank or 0))
    titles = ("", "step", "step time", "work", "waiting", "CPU", "memory", "state")
    return [titles, *map(_row, shown)]


def _table(view: RunView) -> list[str]:
    """Return the lines of the table of ranks."""
    rows = rank_rows(view)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if index in (0, len(row) - 1) else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    n_hidden = len(view.ranks) - len(rows) + 1
    if n_hidden:
        lines.append(f"{n_hidden} other ranks are not shown")
    return lines


def _row(rank: RankView) -> tuple[str, ...]:
    return (
        rank.label,
        "–" if rank.step is None else str(rank.step),
        format_duration(rank.step_ns),
        format_duration(rank.work_ns),
        format_duration(rank.wait_ns),
        "–" if rank.cpu_ratio is None else f"{rank.cpu_ratio:.0%}",
        format_bytes(rank.memory_bytes),
        rank.state,
    )
