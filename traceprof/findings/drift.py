"""The rule on steps that get slower: from which step on, and what takes longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import Claim, ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.machine import notes_on_machine
from traceprof.findings.rules import Finding, rule
from traceprof.measures.collectives.members import find_members
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.rows import floats, lengths_of, mean_of, owner_of
from traceprof.measures.steps.drift import Drift
from traceprof.measures.steps.ledger import ledger_of_window
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import BETWEEN_STEPS, DEVICE_PARTS
from traceprof.measures.steps.steadiness import MIN_STEPS_FOR_RISE
from traceprof.model.activity import Activity
from traceprof.model.grouping import grouped_by
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.names.ranges import PHASES

_MIN_PART_RATIO: Final = 0.1
"""Minimum share of a part in the growth, to be in the evidence."""
_N_KERNELS: Final = 2
# Minimum share of the growth in which the compute of one rank grows more than on the others.
_MIN_LATE_RATIO: Final = 0.5
_SIDES: Final = ("before", "after")
_HOST: Final = (*(f"{name}_ns" for name in (*PHASES, BETWEEN_STEPS)), "outside_ns")
_UNNAMED: Final = "outside named phases"
_CLOCK: Final = "sm_clock_mhz"
_SLOWER: Final = "The same kernels run slower."
_SLOWER_OR_LARGER: Final = (
    "Kernels of the same name take longer. Their grids were not recorded, so the kernels are "
    "larger or the GPU is slower. Compare batch sizes and sequence lengths of early and late steps."
)
_COOL: Final = "Improve cooling, or raise the power limit (`nvidia-smi -pl WATTS`)."
_LOG_CLOCK: Final = (
    "Log clock, power, and temperature during the run (`nvidia-smi --query-gpu=clocks.sm,"
    "power.draw,temperature.gpu --format=csv -l 1`): a hot GPU needs better cooling."
)
_LOOK_FOR_OTHERS: Final = "Look for other processes on the GPU (`nvidia-smi`)."
_MORE_WORK: Final = (
    "The later steps run more or larger kernels. Compare batch sizes and sequence lengths of early "
    "and late steps. Look for a cache or an autograd graph that grows: store `loss.item()`, not "
    "`loss`."
)
_ACTIONS: Final = {
    "exposed_communication_ns": "The later steps wait longer for communication. Find the late "
    "ranks (`traceprof show ranks --by straggler`), and look for other traffic on the network.",
    "exposed_transfer_ns": "The later steps wait longer for copies between CPU and GPU. Compare "
    "their number and size in early and late steps.",
    "device_memory_ns": "The later steps copy or set more GPU memory. Compare the number and size "
    "of these copies in early and late steps.",
    "idle_ns": "The GPU waits longer for the CPU in later steps. Look for lists, caches, or logs "
    "that grow, for garbage collection, and for slower file I/O.",
    "data_ns": "The GPU waits longer for data in later steps. Use more DataLoader workers, "
    "prefetching, or faster storage, and look for caches in the dataset that grow.",
}


@rule(
    "step time variation",
    "steps that get slower with time",
    about=STEPS,
    show="steps",
)
def slower_steps(context: Context) -> Iterator[Finding]:
    """Find a lasting growth of the step time, and the part of the step that grew."""
    if len(np.unique(context.steps.table["step"][context.is_usual])) < MIN_STEPS_FOR_RISE:
        raise NotRecordedError(
            f"too few usual steps to detect a trend ({MIN_STEPS_FOR_RISE} are needed)"
        )
    drift = context.drift
    if drift is None:
        return
    change, ends = drift.notes()
    evidence, action = _explain(context, drift)
    yield Finding(
        title=change,
        claims=(Claim({}, ClaimKind.DRIFT),),
        kind=Kind.BOUNDED,
        evidence=(ends, *evidence),
        action=f"{action} Compare a late step with an early step: `traceprof explain TRACE "
        f"step:{drift.last_step} --against step:{drift.first_step}`.".strip(),
        caveat="A schedule can make later steps longer on purpose (batch size, sequence length, "
        "unfrozen layers). The savings of other findings exclude this growth.",
        window=f"step:{drift.step}..{drift.last_step}",
    )


def _explain(context: Context, drift: Drift) -> tuple[list[Note], str]:
    """Return notes on what grew, and advice on the part that grew most."""
    table = measured_steps(context.ranks).table
    before, after = table.take(drift.before), table.take(drift.after)
    parts = _growth(before, after, DEVICE_PARTS)
    main = next(iter(parts), "")
    evidence = [*_notes_on_growth(parts, drift)]
    is_waiting = main == "exposed_communication_ns" and "compute_ns" in table
    process = _late_process(table, drift) if is_waiting else None
    if process is not None:
        rows = (side[table["process"][side] == process] for side in (drift.before, drift.after))
        notes, action = _explain(context, replace(drift, **dict(zip(_SIDES, rows, strict=True))))
        late = next(one.label for one in find_members(context.ranks) if one.process == process)
        who = Note.of(
            "the other ranks wait for {late}, and the following values are of this rank", late=late
        )
        return [*evidence, who, *notes], f"Check {late}. {action}"
    machine = [*notes_on_machine(table, drift.after, drift.before)]
    if main != "compute_ns":
        host = _growth(before, after, _HOST) if main in ("", "idle_ns") else {}
        evidence += _notes_on_growth(host, drift, "on the CPU, ")
        return evidence + machine, _ACTIONS.get(next(iter(host), ""), _ACTIONS.get(main, ""))
    kernels = _kernel_growth(context, drift)
    if kernels["more_ns"].sum() > kernels["longer_ns"].sum():
        return [*evidence, *_notes_on_more(kernels), *machine], _MORE_WORK
    evidence += _notes_on_longer(kernels)
    if any("clock" in note.values for note in machine):
        return evidence + machine, f"{_SLOWER} {_COOL}"
    grown_ns = np.maximum(floats(kernels, "longer_ns")[0], 0.0)
    lead = (
        _SLOWER
        if 2 * grown_ns.sum(where=kernels["blocks"] != ABSENT) >= grown_ns.sum()
        else _SLOWER_OR_LARGER
    )
    if _CLOCK not in table:
        machine.append(Note("the GPU clock was not recorded"))
        return evidence + machine, f"{lead} {_LOG_CLOCK} {_LOOK_FOR_OTHERS}"
    clocks = {"before": mean_of(before[_CLOCK]), "after": mean_of(after[_CLOCK])}
    machine.append(
        Note.of("GPU clock {before:count} MHz before, {after:count} MHz after", **clocks)
    )
    return evidence + machine, f"{lead} {_LOOK_FOR_OTHERS}"


def _late_process(table: Table, drift: Drift) -> int | None:
    """Return the process whose compute grew most, if it explains most of the growth of the steps.

    None if all processes grow by the same amount, or if there is only one process.
    """
    processes = np.unique(table["process"][drift.before])
    after, before = (
        np.array(
            [mean_of(table["compute_ns"][rows][table["process"][rows] == p]) for p in processes]
        )
        for rows in (drift.after, drift.before)
    )
    grown_ns = after - before
    least, most = np.sort(grown_ns)[[-2, -1]] if len(grown_ns) > 1 else (0.0, 0.0)
    is_late = most - least >= _MIN_LATE_RATIO * (drift.after_ns - drift.before_ns)
    return int(processes[grown_ns.argmax()]) if is_late else None


def _growth(before: Table, after: Table, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Return the mean before and after of each column that grew, the largest growth first."""
    means = {
        name: (mean_of(before[name]), mean_of(after[name])) for name in names if name in before
    }
    grown = {name: ends for name, ends in means.items() if ends[1] > ends[0]}
    return dict(sorted(grown.items(), key=lambda item: item[1][0] - item[1][1]))


def _notes_on_growth(
    growth: dict[str, tuple[float, float]], drift: Drift, words: str = ""
) -> Iterator[Note]:
    """Yield notes on the parts with a large share of the growth of the step time."""
    min_ns = _MIN_PART_RATIO * (drift.after_ns - drift.before_ns)
    for name, (before_ns, after_ns) in growth.items():
        if after_ns - before_ns >= min_ns:
            yield Note.of(
                f"{words}{{part}}: {{before:ns}} per step before, {{after:ns}} after",
                part=_UNNAMED if name == "outside_ns" else name[:-3].replace("_", " "),
                before=before_ns,
                after=after_ns,
            )


def _kernel_growth(context: Context, drift: Drift) -> Table:
    """Return the growth of kernel time per step, one row per kernel name and number of blocks.

    Columns: name, blocks (`ABSENT` if unknown). n_before and n_after: launches per step. ns_before
    and ns_after: time per step. longer_ns: growth because the later launches take longer. more_ns:
    the rest of the growth, because of more launches or other numbers of blocks.
    """
    ledger = ledger_of_window(context.ranks).select("process", "device_start_ns", "device_end_ns")
    steps = Table.stacked(
        [
            ledger.take(rows).assign(is_after=np.full(len(rows), is_after))
            for rows, is_after in ((drift.before, False), (drift.after, True))
        ]
    )
    steps = steps.assign(start_ns=steps["device_start_ns"], end_ns=steps["device_end_ns"])
    rows = context.rows(_kernels_in_steps, steps.in_order("process", "start_ns"))
    found, groups = grouped_by(rows, "name", "blocks")
    lengths = {"before": len(drift.before), "after": len(drift.after)}
    sums = {
        f"{measure}_{side}": groups.sums(rows[f"{measure}_{side}"]) / n
        for side, n in lengths.items()
        for measure in ("n", "ns")
    }
    table = found.assign(**sums)
    n_before, n_after, ns_before, ns_after = floats(
        table, "n_before", "n_after", "ns_before", "ns_after"
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 (not a number) where all launches are new, or none is left.
        longer_ns = np.nan_to_num((ns_after / n_after - ns_before / n_before) * n_after)
    return table.assign(longer_ns=longer_ns, more_ns=ns_after - ns_before - longer_ns)


def _kernels_in_steps(part: Trace, steps: Table) -> Table:
    """Return the launches and times of the compute kernels that start in ``steps``.

    One row per kernel name and number of blocks, with sums over the earlier and the later steps.
    """
    kernels = part.kernels
    step = owner_of(steps, kernels["process"], kernels["start_ns"])
    rows = np.flatnonzero((step >= 0) & (kernels["activity"] != Activity.COMMUNICATION.value))
    shapes = launch_shapes(part)
    blocks = shapes.table["grid_blocks"][shapes.of_kernel[part.rows_in_whole("kernels")].wide()]
    keys = Table({"name": kernels["name"][rows], "blocks": blocks[rows]})
    found, groups = grouped_by(keys, "name", "blocks")
    is_after, ns = steps["is_after"][step[rows]], lengths_of(kernels)[rows]
    return found.assign(
        n_before=groups.sums(~is_after),
        n_after=groups.sums(is_after),
        ns_before=groups.sums(ns * ~is_after),
        ns_after=groups.sums(ns * is_after),
    )


def _notes_on_longer(kernels: Table) -> Iterator[Note]:
    """Yield notes on the kernels that grew most at an equal number of blocks."""
    for row in kernels.take(kernels["longer_ns"] > 0).in_order("-longer_ns").rows()[:_N_KERNELS]:
        grid = "with the same grid" if row["blocks"] != ABSENT else "(grid not recorded)"
        before_ns, after_ns = (row[f"ns_{side}"] / row[f"n_{side}"] for side in ("before", "after"))
        yield Note.of(
            f"{{name}} {grid}: {{before:ns}} before, {{after:ns}} after ({{n:factor}})",
            name=short_name(row["name"]),
            before=before_ns,
            after=after_ns,
            n=after_ns / before_ns,
        )


def _notes_on_more(kernels: Table) -> Iterator[Note]:
    """Yield notes on the kernels that grew most because of more launches or blocks."""
    names, groups = grouped_by(kernels, "name")
    for side in ("before", "after"):
        n, blocks = kernels[f"n_{side}"], kernels["blocks"]
        total = np.where((blocks == ABSENT) & (n > 0), np.nan, n * blocks)
        names = names.assign(**{f"n_{side}": groups.sums(n), f"blocks_{side}": groups.sums(total)})
    names = names.assign(more_ns=groups.sums(kernels["more_ns"]))
    for row in names.take(names["more_ns"] > 0).in_order("-more_ns").rows()[:_N_KERNELS]:
        text = "{name}: {n_before:count} launch(es) per step before, {n_after:count} after"
        if not np.isnan(row["blocks_before"] + row["blocks_after"]):
            text += "; {blocks_before:count} blocks per step before, {blocks_after:count} after"
        yield Note.of(text, **row | {"name": short_name(row["name"])})
