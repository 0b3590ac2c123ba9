"""Compare the compute kernels of a rank with those of the other ranks: more work, or slower work.

The same kernel with the same grid does the same work. If it takes longer, the GPU is slower. More
kernels or more thread blocks are more work. A kernel whose grid is fixed (one block per SM) does
not show its amount of work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.collectives.members import find_members, member_of_rows
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.facts import of_window
from traceprof.measures.rows import lengths_of, owner_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import grouped_by, groups_of, numbered, rows_by_value
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name

_SUMS: Final = ("n", "ns", "blocks")
_MIN_MORE_FACTOR: Final = 1.02


_EXPERTS: Final = re.compile(
    r"(?i)group(ed)?_?(gemm|mm|matmul)|GroupProblemShape|PtrArray"
    r"|(^|[^a-z])(moe|gmm|experts?)[^a-z]"
)
_MIN_EXPERTS_RATIO: Final = 0.8


@dataclass(frozen=True, slots=True)
class KernelExcess:
    """What the compute kernels of a rank take longer than those of the median of the other ranks.

    ``slower_ns`` is the extra time of kernels with the same grid, ``factor`` their slowdown, and
    ``more_ns`` the extra time of more kernels or larger grids. ``kernel`` is the name of the kernel
    with the most extra work ("" if none). ``count_ratio`` and ``blocks_ratio`` compare its launches
    and its thread blocks with the other ranks (NaN: unknown grids, or no other rank runs it).
    ``has_grids`` is whether the grids of all kernels of the rank are known. ``experts_ratio`` is
    the share of grouped GEMMs (experts) in the extra time of the kernels that take longer in total.
    """

    slower_ns: int
    factor: float
    more_ns: int
    kernel: str
    count_ratio: float
    blocks_ratio: float
    has_grids: bool
    experts_ratio: float = 0.0

    @property
    def is_of_experts(self) -> bool:
        """Whether the extra time is that of experts with more tokens.

        Grouped GEMMs often have one block per SM, so their grid does not show the number of tokens.
        """
        return self.experts_ratio >= _MIN_EXPERTS_RATIO

    @property
    def slower_text(self) -> str:
        """The name of the extra time of the same kernels."""
        if self.is_of_experts:
            return "its experts take longer (grouped GEMMs)"
        same_grid = " with the same grid" if self.has_grids else ""
        return f"the same kernels{same_grid} take longer"

    @property
    def more_text(self) -> str:
        """The name of the extra work: more kernels, or larger ones."""
        is_larger = self.count_ratio < _MIN_MORE_FACTOR <= self.blocks_ratio
        return "larger kernels (more thread blocks)" if is_larger else "more kernels"

    def describe_work(self) -> Note | None:
        """Return a note on the kernel with the most extra work; None if there is none."""
        ratio = self.count_ratio if self.more_text == "more kernels" else self.blocks_ratio
        if not self.kernel or not ratio >= _MIN_MORE_FACTOR:
            return None
        noun = "launches" if self.more_text == "more kernels" else "thread blocks"
        text = f"{{kernel}}: {{ratio:factor}} the {noun} of the median of the other ranks"
        return Note.of(text, kernel=short_name(self.kernel), ratio=ratio)


@of_window
def kernels_of_members(ranks: Ranks) -> Table:
    """Return the compute kernels of each rank by name and grid.

    Columns: member (position in `find_members`), name, grid (blocks of a launch; `ABSENT` if
    unknown), n, ns, and blocks (of all launches).
    """
    return _summed(ranks, Table.stacked(ranks.each(_sum_kernels)), "member", "name", "grid")


def kernels_of_steps(ranks: Ranks, steps: Table) -> list[Table]:
    """Return the same as `kernels_of_members` for the kernels of each step.

    ``steps`` has the columns process, place (0, 1, … of the step in the result), start_ns, and
    end_ns.
    """
    kernels = Table.stacked(ranks.each(_sum_kernels, steps))
    table = _summed(ranks, kernels, "member", "name", "grid", "place")
    rows = rows_by_value(table["place"])
    n_steps = int(steps["place"].max(initial=-1)) + 1
    return [table.take(rows.get(place, np.empty(0, np.int64))) for place in range(n_steps)]


def _summed(ranks: Ranks, kernels: Table, *keys: str) -> Table:
    """Return the sums of ``kernels`` by ``keys``."""
    kernels = kernels.assign(member=member_of_rows(find_members(ranks), kernels))
    found, groups = grouped_by(kernels, *keys)
    return found.assign(**{column: groups.reduced(np.add, kernels[column]) for column in _SUMS})


def _sum_kernels(part: Trace, steps: Table | None = None) -> Table:
    """Return n, ns, and blocks of compute kernels by process, device, name, grid, and place."""
    shapes = launch_shapes(part.whole)
    grid = shapes.table["grid_blocks"][shapes.of_kernel[part.rows_in_whole("kernels")]]
    kernels = part.kernels.assign(grid=grid)
    kernels = kernels.take(kernels["activity"] != Activity.COMMUNICATION.value)
    place = np.zeros(len(kernels), np.int64)
    if steps is not None:
        row = owner_of(steps, kernels["process"], kernels["start_ns"])
        kernels, place = kernels.take(row >= 0), steps["place"][row[row >= 0]]
    kernels = kernels.assign(place=place)
    found, groups = grouped_by(kernels, "process", "device", "name", "grid", "place")
    return found.assign(
        n=groups.counts,
        ns=groups.reduced(np.add, lengths_of(kernels)),
        blocks=groups.reduced(np.add, kernels["grid"]),
    )


def compare_kernels(kernels: Table, member: int) -> KernelExcess | None:
    """Compare the ``kernels`` of ``member`` with the median of the other ranks.

    ``kernels`` has the columns of `kernels_of_members`. None if only one rank runs kernels.
    """
    is_mine = kernels["member"] == member
    n_others = len(np.unique(kernels["member"][~is_mine]))
    if not is_mine.any() or not n_others:
        return None
    same = groups_of(kernels["name"], kernels["grid"]).number
    names, texts = numbered(kernels["name"])
    mine, others = kernels.take(is_mine), kernels.take(~is_mine)
    usual = groups_of(same[~is_mine])
    mean_ns = np.full(int(same.max()) + 1, np.nan)
    mean_ns[usual.values[0]] = usual.quantiles(others["ns"] / others["n"])
    expected = mine["n"] * mean_ns[same[is_mine]]
    is_known = ~np.isnan(expected)
    factor = float(mine["ns"][is_known].sum() / max(expected[is_known].sum(), 1))
    factor = factor if is_known.any() else 1.0
    # Kernels with a grid that no other rank uses are assumed to have the same slowdown.
    slower = mine["ns"] - np.where(is_known, expected, mine["ns"] / max(factor, 1e-9))
    found = {
        column: np.bincount(names[is_mine], mine[column], minlength=len(texts)) for column in _SUMS
    }
    number = groups_of(others["member"]).number * len(texts) + names[~is_mine]
    medians = {
        column: np.median(
            np.bincount(number, others[column], minlength=n_others * len(texts)).reshape(
                n_others, len(texts)
            ),
            axis=0,  # ranks without the kernel count as 0
        )
        for column in _SUMS
    }
    more = found["ns"] - medians["ns"]
    more -= np.bincount(names[is_mine], slower, minlength=len(texts))
    top = int(more.argmax())
    has_grids = bool((kernels["grid"] >= 0).all())
    extra = np.maximum(found["ns"] - medians["ns"], 0)
    is_expert = np.array([_EXPERTS.search(name) is not None for name in kernels["name"][texts]])
    count_ratio, blocks_ratio = (
        float(found[column][top] / medians[column][top]) if medians[column][top] > 0 else np.nan
        for column in ("n", "blocks")
    )
    return KernelExcess(
        slower_ns=round(float(slower.sum())),
        factor=factor,
        more_ns=round(float(more.sum())),
        kernel=str(kernels["name"][texts[top]]) if more[top] > 0 else "",
        count_ratio=count_ratio,
        blocks_ratio=blocks_ratio if (kernels["grid"][names == top] >= 0).all() else np.nan,
        has_grids=has_grids,
        experts_ratio=float(extra[is_expert].sum() / max(extra.sum(), 1)),
    )
