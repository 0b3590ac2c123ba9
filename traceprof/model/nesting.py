"""Nested spans: parents, ancestors, and sums along ancestor chains of properly nested spans."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


def parents_of(depths: _Int64Array) -> _Int64Array:
    """Return the index of the parent of each span; -1 for outermost spans.

    ``depths`` are the nesting depths of properly nested spans in order of their starts.
    """
    n = len(depths)
    order = np.argsort(depths, kind="stable")
    keys = depths[order] * n + order  # by depth, then by index
    parents = np.full(n, -1, np.int64)
    if n:
        before = np.searchsorted(keys, keys - n) - 1
        found = order[np.maximum(before, 0)]
        is_parent = (before >= 0) & (depths[found] == depths[order] - 1)
        parents[order] = np.where(is_parent, found, -1)
    return parents


def levels_of(depths: _Int64Array) -> list[_Int64Array]:
    """Return the span indices of each depth, outermost first, in ascending order."""
    if not len(depths):
        return []
    order = np.argsort(depths, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depths[order])) + 1)


def find_outermost_ancestors(parents: _Int64Array, is_candidate: _BoolArray) -> _Int64Array:
    """Return the outermost candidate among each span and its ancestors; -1: none."""
    found = np.where(is_candidate, np.arange(len(parents)), -1)
    for rows, ancestors in _ancestors(parents):
        outer = found[ancestors]
        found[rows] = np.where(outer >= 0, outer, found[rows])
    return found


def find_nearest_ancestors(parents: _Int64Array, is_candidate: _BoolArray) -> _Int64Array:
    """Return the nearest ancestor of each span that is a candidate; -1: none."""
    found = parents.copy()
    rows = np.flatnonzero(found >= 0)
    while len(rows := rows[~is_candidate[found[rows]]]):
        found[rows] = found[found[rows]]
        rows = rows[found[rows] >= 0]
    return found


def sum_of_chains(values: npt.ArrayLike, parents: _Int64Array) -> _Int64Array:
    """Return the sum of ``values`` over each span and all its ancestors."""
    sums = np.array(values, np.int64)
    for rows, ancestors in _ancestors(parents):
        sums[rows] += sums[ancestors]
    return sums


def _ancestors(parents: _Int64Array) -> Iterator[tuple[_Int64Array, _Int64Array]]:
    """Yield the spans that have an ancestor 1, 2, 4 … levels up, with these ancestors.

    Pointer doubling: by merging values at each step, a caller covers the levels in between.
    """
    next_up = parents.copy()
    rows = np.flatnonzero(next_up >= 0)
    while len(rows):
        ancestors = next_up[rows]
        yield rows, ancestors
        next_up[rows] = next_up[ancestors]
        rows = rows[next_up[rows] >= 0]


def has_ancestor_with_same_code(codes: _Int64Array, parents: _Int64Array) -> _BoolArray:
    """Return which spans have an ancestor with the same code."""
    first, after = _preorder(parents)
    order = np.lexsort((first, codes))
    code, begin, end = codes[order], first[order], after[order]
    # Running end of earlier spans with the same code; codes are sorted.
    _, code = np.unique(code, return_inverse=True)
    reach = np.maximum.accumulate(code * (len(codes) + 1) + end)
    found = np.zeros(len(codes), np.bool_)
    found[order[1:]] = reach[:-1] > code[1:] * (len(codes) + 1) + begin[1:]
    return found


def _preorder(parents: _Int64Array) -> tuple[_Int64Array, _Int64Array]:
    """Return the preorder index of each span, and the index after its last descendant."""
    sizes = np.ones(len(parents), np.int64)
    for rows in reversed(levels_of(sum_of_chains(sizes, parents))):
        inside = rows[parents[rows] >= 0]
        np.add.at(sizes, parents[inside], sizes[inside])
    order = np.argsort(parents, kind="stable")
    before = np.cumsum(sizes[order]) - sizes[order]
    opens = np.append(True, np.diff(parents[order]) != 0)[: len(order)]
    of_siblings = before - before[np.maximum.accumulate(np.where(opens, np.arange(len(order)), 0))]
    offset = np.empty(len(parents), np.int64)
    offset[order] = of_siblings
    first = sum_of_chains(offset + (parents >= 0), parents)
    return first, first + sizes
