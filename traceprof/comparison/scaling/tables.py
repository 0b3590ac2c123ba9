"""The rows of the tables, each size and each loss in its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, nan
from typing import Any

from traceprof.comparison.scaling.groups import Group
from traceprof.comparison.scaling.laws import amdahl_share
from traceprof.comparison.scaling.measured import Measured
from traceprof.comparison.scaling.points import SAMPLES, STEPS, TOKENS, Point

__all__ = ["label_rows", "law_rows", "loss_rows", "run_rows", "scaling_rows"]


def scaling_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield a row for each group, size and batch."""
    for one in found:
        rate, first = one.cell.rate, one.cell.first
        is_rate = not first.is_factor
        kinds = {point.ranks for point in one.cell.points}
        yield {
            **_keys(one),
            **_rates(first.counts, rate.value),
            "speedup": one.speedup,
            "efficiency_ratio": one.efficiency.value,
            "lost_to": one.largest_losses or "",
            "scaling": one.kind,
            "printed_ratio": one.printed_ratio,
            "printed_is": one.printed_is,
            "low_ratio": one.efficiency.low,
            "high_ratio": one.efficiency.high,
            "ranks": ", ".join(sorted(filter(None, kinds))),
            "base_count": one.base_size,
            "ideal_per_s": rate.value / one.efficiency.value if is_rate else nan,
            "low_per_s": rate.low,
            "high_per_s": rate.high,
            "karp_flatt_ratio": one.karp_flatt,
            "time_to_train_ns": one.cell.time_ns,
            "time_speedup": one.time_speedup,
            "step_ns": first.step_ns,
            "runs_count": len(one.cell.points),
        }


def loss_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield what each size lost, the largest loss of a size first."""
    for one in found:
        whole = one.step_ns
        for loss in sorted(one.losses, key=lambda own: -own.lost_ns):
            yield {
                **_keys(one),
                "loss": loss.name,
                "lost_ratio": loss.lost_ns / whole if whole else nan,
                "lost_ns": loss.lost_ns,
                "own_ns": loss.own_ns,
                "base_ns": loss.base_ns,
            }


def _rates(counts: str, value: float) -> dict[str, float]:
    """Return a throughput by what it counts."""
    return {f"{own}_per_s": value if own == counts else nan for own in (SAMPLES, TOKENS, STEPS)}


def _keys(one: Measured) -> dict[str, Any]:
    first = one.cell.first
    return {
        "group": one.group.name,
        "devices_count": first.devices,
        "nodes_count": first.nodes,
        "global_batch_count": one.cell.batch,
    }


def law_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the serial share of each group of which more than the base is known."""
    for name in dict.fromkeys(one.group.name for one in found):
        own = [one for one in found if one.group.name == name and isfinite(one.karp_flatt)]
        if not own:
            continue
        share = amdahl_share([(one.cell.size / one.base_size, one.speedup) for one in own])
        yield {
            "group": name,
            "serial_ratio": share,
            "limit_speedup": 1 / share if share > 0 else nan,
            "is_exceeded": share > 0 and max(one.speedup for one in own) * share > 1,
            "karp_flatt_first_ratio": own[0].karp_flatt,
            "karp_flatt_last_ratio": own[-1].karp_flatt,
            "sizes_count": len(own),
        }


def label_rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """Yield the labels of each group."""
    for group in groups:
        for label, value in group.labels.items():
            yield {"group": group.name, "label": label, "value": value}


def run_rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """Yield the runs, each once for every group that it is in."""
    for group in groups:
        for point in sorted(group.points, key=lambda own: own.devices):
            yield {"run": point.run.name, "group": group.name, **_of_run(point)}


def _of_run(point: Point) -> dict[str, Any]:
    return {
        "devices_count": point.devices,
        "nodes_count": point.nodes,
        **_rates(point.counts, point.rate.value),
        "ranks": point.ranks,
        "origin": point.run.origin,
    }
