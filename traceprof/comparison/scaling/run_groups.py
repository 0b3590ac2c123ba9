"""Groups of runs that scaling compares: by network, cluster, program, and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from traceprof.comparison.records import program_of
from traceprof.comparison.scaling.points import (
    INDEPENDENT,
    SYNCHRONIZED,
    ScalingPoint,
)

BY_GPUS: Final = "gpus"
BY_NODES: Final = "nodes"
SIZES: Final = (BY_GPUS, BY_NODES)
_SIZE_LABELS: Final = frozenset({"gpus", "nodes", "devices", "ranks", "world_size", "nnodes"})
SYNCHRONIZATION: Final = "synchronization"
"""Pseudo-label that separates synchronized from independent ranks, if runs of both kinds exist."""


PROGRAM: Final = "program"
COMMAND: Final = "command"
"""Pseudo-labels: the script of the command, which separates groups if it differs; the command."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of several sizes with equal labels; ``name`` lists the labels that distinguish it."""

    name: str
    labels: Mapping[str, str]
    points: tuple[ScalingPoint, ...]


def groups_of(
    points: Sequence[ScalingPoint], by: Sequence[str], ignored: Sequence[str]
) -> list[RunGroup]:
    """Group runs by labels; groups that differ in the labels ``by`` are adjacent.

    A run without a label also joins the groups with that label that lack its size. For example, a
    run on one GPU uses no network, and is the base for every network.
    """
    names = _label_names(points, by, ignored)
    keys = [tuple(_label_value(point, name) for name in names) for point in points]
    distinct = list(dict.fromkeys(keys))
    complete = [
        key for key in distinct if not any(_is_less_specific(key, other) for other in distinct)
    ]
    found: dict[tuple[str, ...], list[int]] = {
        key: [i for i, other_key in enumerate(keys) if other_key == key] for key in complete
    }
    used = {i for rows in found.values() for i in rows}
    for key, rows in list(found.items()):
        sizes = {points[i].size for i in rows}
        shared = [
            i
            for i, other_key in enumerate(keys)
            if _is_less_specific(other_key, key) and points[i].size not in sizes
        ]
        found[key] = [*rows, *shared]
        used |= set(shared)
    for i, key in enumerate(keys):
        if i not in used:
            found.setdefault(key, []).append(i)
    distinguishing = [i for i, _ in enumerate(names) if len({key[i] for key in found}) > 1]
    groups = []
    for key, rows in sorted(found.items(), key=lambda item: _sort_key(item[0], names, by)):
        name = ", ".join(key[i] for i in distinguishing if key[i])
        labels = dict(zip(names, key, strict=True))
        groups.append(RunGroup(name, labels, tuple(points[i] for i in rows)))
    return groups


def _label_names(
    points: Sequence[ScalingPoint], by: Sequence[str], ignored: Sequence[str]
) -> list[str]:
    """Return the labels that separate groups."""
    requested = [name for name in by if name not in SIZES]
    left_out = _SIZE_LABELS | set(ignored)
    labels = [name for point in points for name in point.run.labels]
    known = list(dict.fromkeys(name for name in (*labels, *requested) if name not in left_out))
    kinds = {point.ranks for point in points}
    programs = {_label_value(point, PROGRAM) for point in points} - {""}
    differ = {SYNCHRONIZATION: {INDEPENDENT, SYNCHRONIZED} <= kinds, PROGRAM: len(programs) > 1}
    return [*known, *(name for name in differ if differ[name] and name not in (*known, *ignored))]


def _label_value(point: ScalingPoint, name: str) -> str:
    """Return a label of a run, otherwise its environment setting or measure of that name."""
    run = point.run
    if name in run.labels:
        return str(run.labels[name])
    if name in run.environment:
        return str(run.environment[name])
    if name == PROGRAM:
        # Logs name the benchmark; recordings only tell training from inference.
        return program_of(run.command) or run.workload * run.origin.startswith("log:")
    if name == COMMAND:
        return run.command
    if name == SYNCHRONIZATION:
        return point.ranks if point.ranks in (INDEPENDENT, SYNCHRONIZED) else ""
    if name == "batch" and isfinite(point.batch) and isfinite(point.devices):
        return f"{point.batch / point.devices:g}"
    value = run.measure(name)
    return "" if value is None else f"{value:g}"


def _is_less_specific(key: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether ``key`` has a subset of the values of ``other``."""
    return key != other and all(not a or a == b for a, b in zip(key, other, strict=True))


def _sort_key(key: Sequence[str], names: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
    """Return the sort key of a group: requested labels last, so that their groups are adjacent."""
    requested = [i for i, name in enumerate(names) if name in by]
    others = [i for i, _ in enumerate(names) if i not in requested]
    return tuple(key[i] for i in (*others, *requested))
