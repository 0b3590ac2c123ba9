"""Load imbalance: in each step, the rank with the most work, and what it costs the other ranks.

A step takes as long as the rank with the most work. With balanced work, it would take the mean of
the ranks. If one rank has the most work in most steps, it is a straggler. If the rank changes from
step to step, no rank is to blame: the work varies, for example the lengths of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.members import find_members
from traceprof.measures.facts import of_window
from traceprof.measures.ranks.kernels import compare_kernels, kernels_of_steps
from traceprof.measures.ranks.pipeline import find_stages
from traceprof.measures.ranks.steps import aligned_steps
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Names, Table

MIN_STEPS: Final = 4
"""Minimum number of steps to analyze which rank is late."""
_MIN_NOTABLE_RATIO: Final = 0.01  # of the mean step time
_MOST_RATIO: Final = 2 / 3
"""Share of steps, beyond chance, in which a straggler has the most work. 0 is the share of a rank
if every rank has the most work equally often, 1 is all steps."""


@of_window
def find_imbalance(ranks: Ranks) -> Table:
    """Return the load imbalance of each step that all ranks recorded, in the window.

    Columns: step, member (the rank with the most work, by position in `find_members`), excess_ns
    (the work of that rank minus the mean of all ranks; 0 within the accuracy of the clocks), late
    (the positions of all ranks whose work is closer to the most than to the least), beyond_ns (the
    most work minus the mean of the ranks that are not late), start_ns, and end_ns. Empty if ranks
    are stages of a pipeline, which have different work by design, or if waiting cannot be
    attributed.
    """
    steps, _, work_ns = aligned_steps(ranks.whole)
    place = {member.process: i for i, member in enumerate(find_members(ranks))}
    table = steps.table.assign(work_ns=work_ns)
    starts, ends = table["device_start_ns"], table["device_end_ns"]
    is_inside = ranks.span.times.covered_ns(starts, ends) == ends - starts
    is_rank = np.isin(table["process"], list(place))
    table = table.take(is_inside & is_rank)
    n_ranks = len(np.unique(table["process"]))
    by_step = groups_of(table["step"])
    table = table.take((by_step.counts == n_ranks)[by_step.number])
    is_unusable = n_ranks < 2 or find_blame(ranks).why_not or find_stages(ranks)
    if is_unusable or len(place) < len(find_members(ranks)):
        table = table.take(np.empty(0, np.int64))
    by_step = groups_of(table["step"])
    work = table["work_ns"][by_step.order].reshape(-1, max(n_ranks, 1))
    processes = table["process"][by_step.order].reshape(work.shape)
    most = work.argmax(axis=1) if len(work) else np.empty(0, np.int64)
    rows = np.arange(len(work))
    excess = np.rint(work.max(axis=1, initial=0) - work.mean(axis=1)).astype(np.int64)
    ends = work.min(axis=1), work.max(axis=1)
    is_late = work > (ends[0] + ends[1])[:, None] / 2
    n_early = np.maximum((~is_late).sum(axis=1), 1)
    late = [
        " ".join(str(place[process]) for process in sorted(of_step[chosen].tolist()))
        for of_step, chosen in zip(processes, is_late, strict=True)
    ]
    return Table(
        {
            "step": by_step.values[0],
            "member": np.array([place[p] for p in processes[rows, most].tolist()], np.int64),
            "excess_ns": np.where(excess > find_blame(ranks).residual_ns, excess, 0),
            "late": Names.of(late),
            "beyond_ns": ends[1] - work.sum(axis=1, where=~is_late) / n_early,
            "start_ns": by_step.reduced(np.minimum, table["device_start_ns"]),
            "end_ns": by_step.reduced(np.maximum, table["device_end_ns"]),
        }
    )


def notable_steps(steps: Table) -> Table:
    """Return the steps of `find_imbalance` with an excess of at least 1% of the mean step time."""
    if steps.empty:
        return steps
    mean_ns = float((steps["end_ns"] - steps["start_ns"]).mean())
    return steps.take(steps["excess_ns"] >= max(_MIN_NOTABLE_RATIO * mean_ns, 1))


@of_window
def changes_rank(ranks: Ranks, member: int) -> bool:
    """Return whether ``member`` is only one of several ranks that have the most work in turn.

    False if there are too few steps to analyze.
    """
    steps = find_imbalance(ranks)
    late = notable_steps(steps)
    if len(steps) < MIN_STEPS or late.empty:
        return False
    is_last = late["member"] == member
    chance = 1 / len(find_members(ranks))
    shares = (
        float(is_last.mean()),
        float(late["excess_ns"][is_last].sum() / late["excess_ns"].sum()),
    )
    return max(shares) < chance + _MOST_RATIO * (1 - chance)


@dataclass(frozen=True, slots=True)
class ImbalanceCause:
    """What the late ranks of the steps take longer for than the other ranks, summed over steps.

    ``more_ns``: more or larger kernels. ``slower_ns``: the same kernels with the same grid.
    ``other_ns``: the rest, time without compute (the CPU, copies). ``example`` describes the kernel
    with the most extra work in the step with the most extra work. ``is_of_experts``: most of the
    extra kernel time is that of experts with more tokens.
    """

    more_ns: int
    slower_ns: int
    other_ns: int
    example: Note | None
    is_of_experts: bool = False


def cause_of_imbalance(ranks: Ranks, late: Table) -> ImbalanceCause:
    """Return why ranks are late in the steps ``late`` of `find_imbalance`."""
    steps, _, _ = aligned_steps(ranks.whole)
    table = steps.table
    place = np.searchsorted(late["step"], table["step"])
    place = np.minimum(place, len(late) - 1)
    is_late = late["step"][place] == table["step"]
    spans = Table(
        {
            "process": table["process"],
            "place": place,
            "start_ns": table["device_start_ns"],
            "end_ns": table["device_end_ns"],
        }
    ).take(is_late)
    more = slower = other = experts = 0
    examples: list[tuple[int, Note]] = []
    n_ranks = len(find_members(ranks))
    kernels = kernels_of_steps(ranks, spans)
    for member, mean_excess, of_step in zip(
        late["member"].tolist(), late["excess_ns"].tolist(), kernels, strict=True
    ):
        excess = mean_excess * n_ranks // (n_ranks - 1)  # beyond the mean of the other ranks
        found = compare_kernels(of_step, member)
        more_ns, slower_ns = (found.more_ns, found.slower_ns) if found else (0, 0)
        more, slower = more + more_ns, slower + slower_ns
        experts += more_ns + slower_ns if found and found.is_of_experts else 0
        other += max(excess - max(more_ns, 0) - max(slower_ns, 0), 0)
        if found and (note := found.describe_work()):
            examples.append((more_ns, note))
    example = max(examples, key=lambda item: item[0])[1] if examples else None
    return ImbalanceCause(more, slower, other, example, 2 * experts > more + slower)


def describe_turns(ranks: Ranks, late: Table) -> Note:
    """Return a note on which rank had the most work in how many of the steps ``late``."""
    members = find_members(ranks)
    counts = np.bincount(late["member"], minlength=len(members))
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    listed = [f"{members[i].label} in {counts[i]}" for i in order[:_MAX_LISTED_RANKS]]
    more = ", …" if len(order) > _MAX_LISTED_RANKS else ""
    return Note.of(
        "the slowest rank changes from step to step: {ranks} of {n:count} steps",
        ranks=", ".join(listed) + more,
        n=len(late),
    )


_MAX_LISTED_RANKS: Final = 8
