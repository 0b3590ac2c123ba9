from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.host.range_work import is_outermost_of
from traceprof.measures.idle.lanes import innermost_pieces
from traceprof.model.nesting import (
    find_nearest_ancestors,
    find_outermost_ancestors,
    has_ancestor_with_same_code,
    levels_of,
    parents_of,
    sum_of_chains,
)


@st.composite
def forests(draw: st.DrawFn) -> npt.NDArray[np.int64]:
    """Parents in any order: each is that of one before it in some numbering."""
    n = draw(st.integers(0, 30))
    parents = [draw(st.integers(max(-1, i - 3), i - 1)) for i in range(n)]
    renamed = draw(st.permutations(range(n)))
    found = np.full(n, -1, np.int64)
    for place, parent in enumerate(parents):
        found[renamed[place]] = renamed[parent] if parent >= 0 else -1
    return found


def chain_of(parents: npt.NDArray[np.int64], place: int) -> list[int]:
    """Return what is around ``place``, the innermost first."""
    chain: list[int] = []
    while (place := int(parents[place])) >= 0:
        chain.append(place)
    return chain


@given(forests(), st.data())
def test_chains_are_followed_to_their_ends(
    parents: npt.NDArray[np.int64], data: st.DataObject
) -> None:
    n = len(parents)
    codes = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)
    asked, chains = codes == 0, [chain_of(parents, i) for i in range(n)]
    outer, near = find_outermost_ancestors(parents, asked), find_nearest_ancestors(parents, asked)
    sums, alike = sum_of_chains(codes, parents), has_ancestor_with_same_code(codes, parents)
    for i, chain in enumerate(chains):
        assert outer[i] == next((one for one in [*chain[::-1], i] if asked[one]), -1)
        assert near[i] == next((one for one in chain if asked[one]), -1)
        assert sums[i] == codes[[i, *chain]].sum()
        assert alike[i] == (codes[i] in codes[chain])


@given(st.lists(st.integers(0, 4), max_size=30))
def test_parents_are_the_last_before_that_are_one_less_deep(depths: list[int]) -> None:
    expected = [
        next((j for j in range(i - 1, -1, -1) if depths[j] == depth - 1), -1)
        for i, depth in enumerate(depths)
    ]
    assert parents_of(np.array(depths, np.int64)).tolist() == expected
    levels = [rows.tolist() for rows in levels_of(np.array(depths, np.int64))]
    each = [[i for i, own in enumerate(depths) if own == depth] for depth in sorted({*depths})]
    assert levels == each


class Counted(np.ndarray):
    """An array that counts the values of every array that is made of it."""

    n_values = 0

    def __array_finalize__(self, of: object) -> None:
        Counted.n_values += self.size


def n_values_looked_at(n: int) -> int:
    """Return how many values are handled for as many spans in one another."""
    parents = np.arange(-1, n - 1).view(Counted)
    codes, depths = (np.arange(n) % 7).view(Counted), np.arange(n).view(Counted)
    Counted.n_values = 0
    find_outermost_ancestors(parents, codes == 0)
    find_nearest_ancestors(parents, codes == n)
    has_ancestor_with_same_code(codes, parents)
    parents_of(depths)
    innermost_pieces(np.arange(n).view(Counted), np.arange(3 * n, 2 * n, -1).view(Counted))
    is_outermost_of(codes, parents)
    return Counted.n_values


def test_work_grows_with_the_spans_however_deep_they_nest() -> None:
    assert n_values_looked_at(4_000) < 5 * n_values_looked_at(1_000)
