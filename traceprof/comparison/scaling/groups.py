"""Which runs are held against one another: those that agree in all labels but their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from traceprof.comparison.scaling.points import Point
from traceprof.values import dataclass

__all__ = ["BY_GPUS", "BY_NODES", "SIZES", "Group", "groups_of"]

BY_GPUS: Final = "gpus"
BY_NODES: Final = "nodes"
SIZES: Final = (BY_GPUS, BY_NODES)
_OF_SIZE: Final = frozenset({"gpus", "nodes", "devices", "ranks", "world_size", "nnodes"})
_BATCH: Final = "batch"


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of several sizes that agree in their labels; ``name`` says those that differ."""

    name: str
    labels: Mapping[str, str]
    points: tuple[Point, ...]


def groups_of(
    points: Sequence[Point], by: Sequence[str], ignored: Sequence[str], *, by_nodes: bool
) -> list[Group]:
    """Return the groups, those of the labels ``by`` beside one another.

    A run that does not say a label stands in for the sizes which the groups of that label lack:
    one GPU has no network, and is the base of every network.
    """
    names = _names(points, by, ignored)
    keys = [tuple(_value(point, name) for name in names) for point in points]
    distinct = list(dict.fromkeys(keys))
    complete = [key for key in distinct if not any(_is_vaguer(key, other) for other in distinct)]
    found: dict[tuple[str, ...], list[int]] = {key: [] for key in complete}
    for i, key in enumerate(keys):
        if key in found:
            found[key].append(i)
    used = {i for rows in found.values() for i in rows}
    for key, rows in list(found.items()):
        sizes = {points[i].size(by_nodes) for i in rows}
        joining = [
            i
            for i, own in enumerate(keys)
            if _is_vaguer(own, key) and points[i].size(by_nodes) not in sizes
        ]
        found[key] = [*rows, *joining]
        used |= set(joining)
    for i, key in enumerate(keys):
        if i not in used:
            found.setdefault(key, [])
            found[key].append(i)
    telling = [i for i, _ in enumerate(names) if len({key[i] for key in found}) > 1]
    return [
        Group(
            _name(key, telling), dict(zip(names, key, strict=True)), tuple(points[i] for i in rows)
        )
        for key, rows in sorted(found.items(), key=lambda item: _order(item[0], names, by))
    ]


def _names(points: Sequence[Point], by: Sequence[str], ignored: Sequence[str]) -> list[str]:
    labels = dict.fromkeys(name for point in points for name in point.run.labels)
    asked = [name for name in by if name not in SIZES]
    left_out = _OF_SIZE | set(ignored)
    return list(dict.fromkeys(name for name in (*labels, *asked) if name not in left_out))


def _value(point: Point, name: str) -> str:
    """Return a label of a run, else what its environment or its measures say of that name."""
    run = point.run
    if name in run.labels:
        return str(run.labels[name])
    if name in run.environment:
        return str(run.environment[name])
    if name == _BATCH and isfinite(point.batch) and isfinite(point.devices):
        return f"{point.batch / point.devices:g}"
    value = run.measure(name)
    return "" if value is None else f"{value:g}"


def _is_vaguer(key: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether ``other`` says all that ``key`` says, and more."""
    return key != other and all(not a or a == b for a, b in zip(key, other, strict=True))


def _name(key: Sequence[str], telling: Sequence[int]) -> str:
    return ", ".join(key[i] for i in telling if key[i])


def _order(key: Sequence[str], names: Sequence[str], by: Sequence[str]) -> tuple[str, ...]:
    """Return what to sort by: what was asked for last, so that its groups are neighbours."""
    asked = [i for i, name in enumerate(names) if name in by]
    rest = [i for i, _ in enumerate(names) if i not in asked]
    return tuple(key[i] for i in (*rest, *asked))
