"""The verdict on the results of a window: the bottleneck in a few words, and where time is spent.

All numbers come from the results on the page, so no number is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from traceprof.measures import shown_by
from traceprof.measures.steps.base import ITERATION, WINDOW
from traceprof.measures.steps.between import CHECKPOINT, EVALUATION
from traceprof.measures.steps.costs import GARBAGE, WARMUP, notes_on_occasions
from traceprof.model.activity import IDLE
from traceprof.model.results import Note, Result
from traceprof.model.table import Table, is_known
from traceprof.session.host_time import on_host_time, on_phases, on_ranges
from traceprof.session.pace import MAX_STEADY_RATIO, on_pace
from traceprof.session.shares import (
    BY_HOST,
    COMMUNICATION,
    CONSIDERABLE,
    LEAST_SHARE,
    idle_by_cause,
    notes_on_missing_work,
    on_compute,
    on_idle,
    on_peak,
    on_waiting,
    parts_of,
    shares_of_causes,
    some_of,
    table_of,
    waits_of_roles,
    with_shares,
)

_MAIN_RATIO: Final = 0.5
_NOT_RECORDABLE: Final = ("profiler overhead", "CPU availability", "SM utilization")
"""Subjects that nobody would record again for."""
_OPTION_WORDS: Final = ("record ", "record`", "name parts", "--", "traceprof.step()", ".profiler")
"""Words in reasons that name an option which provides the data."""

_PART_NAMES: Final = {
    "exposed_transfer": "exposed transfers",
    "device_memory": "memsets and copies within the GPU",
}
_GPU_BOUND: Final = "GPU-bound"
_NO_KERNEL: Final = "no kernel ran"
_MIN_FULLY_BUSY_RATIO: Final = 0.8
_MIN_SECOND_RATIO: Final = 0.8
_MIN_NAMED_RATIO: Final = 0.1
_BOUND_BY: Final = {
    "exposed_communication": "communication-bound",
    "waiting": "waiting in collectives",
    "exposed_transfer": "transfer-bound",
    "data": "input-bound",
    "launch": "launch-bound",
    "synchronizing": "synchronization-bound",
    "host": "host-bound",
    "profiler": "slowed by the profiler",
    "peer": "waiting for other devices",
    "role": "waiting for another role",
    "edge": "active only part of the time",
    "unknown": "idle for a reason that was not recorded",
}
"""The bottleneck by the part with the most time; idle time counts by its cause."""
_NEVER_SECOND: Final = ("edge", "unknown")
_PAID_ONCE: Final = "mostly one-time costs"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a window.

    ``bound_by`` is the bottleneck in a few words ("": unknown). ``sentences`` are about step time
    (also in ``pace``) and about where time is spent. ``parts`` is the share of each of the five
    parts ({} without GPU activity). ``idle`` is the share of idle time by cause, the largest first.
    ``made_of`` are sentences on kernel classes, MFU, and idle causes. ``has_steps``: the window
    contains steps. ``fine`` are subjects that were checked without a finding, and ``fine_seen``
    lists them with the events that rules saw. ``is_enough``: subjects on GPU activity are among
    them. ``unknown`` are subjects that could not be analyzed, with the reason. ``once`` are
    one-time costs, and ``periodic`` are costs such as an evaluation every 50 steps; neither is part
    of the sentences.
    ``lost`` describes missing GPU activity: what is missing, why, and what to do. If too little GPU
    activity is left, the verdict omits the devices. ``next_command`` is the next command to run,
    with TRACE for the file.
    """

    bound_by: str
    sentences: tuple[Note, ...]
    fine: tuple[str, ...] = ()
    fine_seen: tuple[Note, ...] = ()
    is_enough: bool = True
    unknown: tuple[Note, ...] = ()
    once: tuple[Note, ...] = ()
    next_command: str = ""
    periodic: tuple[Note, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    has_steps: bool = False
    lost: tuple[Note, ...] = ()
    pace: tuple[Note, ...] = ()
    idle: Mapping[str, float] = field(default_factory=dict)
    made_of: tuple[Note, ...] = ()


def make_verdict(
    results: Mapping[str, Result],
    recorded: frozenset[str],
    one_off: Table,
    n_gpus: int | None = None,
) -> Verdict:
    """Return the verdict on ``results``.

    ``n_gpus`` is the number of GPUs that the devices share (None: unknown). ``recorded`` are the
    recorded tables. ``one_off`` are the one-time costs (`traceprof.measures.steps.costs`).
    """
    steps = results.get("steps")
    has_any = steps is not None and not steps.table.empty
    occasions = (*notes_on_occasions(steps.table),) if steps is not None and has_any else ()
    findings, lost = results.get("findings"), notes_on_missing_work(results)
    is_known = findings is None or bool(findings.scalars.get("is_idle_known", True))
    # If kernels were requested but none was recorded, the steps of the host are not enough.
    has_kernel_table = "kernels" in recorded
    base = steps.scalars["base"] if steps is not None else WINDOW
    is_pattern = steps is not None and bool(steps.scalars["is_pattern"])
    recorded_parts = parts_of(results)
    parts = recorded_parts if is_known else {}
    where = _where_time_is_spent(results, parts, n_gpus) if is_known or not recorded_parts else ()
    outside = _costs_outside(one_off, occasions)
    if findings is not None and "warmup" in findings.table["rule"].tolist():
        # The finding has the cost: the excess over usual steps, with compilation.
        outside = (note for note in outside if note.values["kind"] != WARMUP)
    periodic, once = _split_repeated(occasions, [*outside])
    idle = idle_by_cause(results) if parts else {}
    pace = tuple(on_pace(steps))
    bottleneck = bound_by(results, parts)
    is_analyzed = bool(parts) and bottleneck != _NO_KERNEL
    checked = table_of(results, "findings", "checked")
    visible = [*_visible_problems(parts, steps, (*once, *periodic))]
    if len(checked):
        checked = checked.take(~np.isin(checked["subject"].astype(str), visible))
    fine = checked.take(checked["is_fine"].astype(bool)) if len(checked) else checked
    fine = fine if is_analyzed or (has_any and not has_kernel_table) else fine.head(0)
    return Verdict(
        bound_by=bottleneck,
        sentences=(*pace, *where),
        fine=tuple(fine["subject"].tolist()) if len(fine) else (),
        fine_seen=tuple(_on_checks(fine)) if len(fine) else (),
        is_enough=len(fine) > 0 and bool((fine["seen"] != _STEPS).any()),
        unknown=_not_analyzed(results, checked),
        once=once,
        next_command=_next_command(results) if is_known else f"{shown_by('quality')} TRACE",
        periodic=periodic,
        parts=parts,
        has_steps=has_any and (base != WINDOW or not is_pattern),
        lost=lost,
        pace=pace,
        idle=idle,
        made_of=(
            *on_compute(results, parts),
            *on_peak(results, base),
            *on_idle(idle, base),
            *on_ranges(results),
            *on_waiting(checked),
        ),
    )


def bound_by(results: Mapping[str, Result], parts: Mapping[str, float]) -> str:
    """Return the bottleneck in words. Without GPU activity, "" unless roles wait for each other."""
    of_roles = waits_of_roles(results)
    is_waiting = of_roles is not None and of_roles.ratio >= _MIN_NAMED_RATIO
    if not parts:
        return of_roles.text if of_roles is not None and is_waiting else ""
    shares = _with_causes(results, parts)
    working = shares.pop("compute") + shares.pop("device_memory", 0.0)
    largest, second = sorted(shares, key=lambda name: -shares[name])[:2]
    if of_roles is not None and is_waiting and of_roles.ratio >= shares[largest]:
        return of_roles.text
    findings = table_of(results, "findings")
    if better_known := _bottleneck_of_rule(findings):
        return better_known
    if working >= _MAIN_RATIO and not parts["compute"] + parts["exposed_communication"]:
        return _NO_KERNEL
    if working >= _MAIN_RATIO:
        is_in_part = working < _MIN_FULLY_BUSY_RATIO and shares[largest] >= _MIN_NAMED_RATIO
        whom = _whom_ranks_wait_for(findings, largest, shares[largest]) or _BOUND_BY.get(largest)
        # "GPU-bound" alone would hide that the GPU is idle for a considerable part.
        is_second = _can_be_second(largest) or largest == "unknown"
        second_words = whom if is_in_part and is_second else ""
        return _GPU_BOUND + (f", partly {second_words}" if second_words else "")
    is_once = is_known(findings["one_time_ns"]) if len(findings) else None
    if is_once is not None and findings["claimed_ratio"][is_once].sum() >= _MAIN_RATIO:
        return _PAID_ONCE
    words = _whom_ranks_wait_for(findings, largest) or _BOUND_BY.get(largest, "mostly idle")
    words += _backend_in_words(findings) if largest == COMMUNICATION else ""
    # A second part with nearly as much time is a bottleneck as well.
    min_second = max(_MIN_NAMED_RATIO, _MIN_SECOND_RATIO * shares[largest])
    if shares[second] >= min_second and _can_be_second(second):
        words += f" and {_BOUND_BY[second]}"
    return words


def _with_causes(results: Mapping[str, Result], parts: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of ``parts``, with the causes of idle time instead of idle time.

    Waiting is the exposed communication that findings show to be waiting for other ranks.
    """
    shares = dict(parts)
    idle_ratio = shares.pop(IDLE)
    causes = shares_of_causes(results)
    found = table_of(results, "findings")
    waiting = sum(row["claimed_ratio"] for row in found.rows() if row["rule"] in _WAITING)
    shares["waiting"] = min(waiting, shares[COMMUNICATION])
    shares[COMMUNICATION] += causes.pop(BY_HOST, 0.0) - shares["waiting"]
    return {**shares, **causes} if causes else {**shares, "unknown": idle_ratio}


def _bottleneck_of_rule(found: Table) -> str:
    """Return the bottleneck of a rule that describes most of the time more precisely, or ""."""
    rules = (row["rule"] for row in found.rows() if row["claimed_ratio"] >= _MAIN_RATIO)
    return next((_NAMED_BY_RULE[rule] for rule in rules if rule in _NAMED_BY_RULE), "")


_NAMED_BY_RULE: Final = {
    "managed_memory": "waiting for pages of managed memory",
    "few_blocks": f"{_GPU_BOUND}, but the GPU is nearly empty",
}


def _can_be_second(name: str) -> bool:
    """Return whether a part may be named as the second bottleneck."""
    return name in _BOUND_BY and name not in _NEVER_SECOND


def _whom_ranks_wait_for(found: Table, largest: str, share: float = 0.0) -> str:
    """Return words on the rank that others wait for in half of the ``share`` that is largest."""
    if found.empty or largest != COMMUNICATION or 2 * found["claimed_ratio"][0] < share:
        return ""
    first = found.row(0)
    names = first["title"].values if isinstance(first["title"], Note) else {}
    name = next((names[key] for key in ("slow", "name") if key in names), "")
    return f"waiting for {name}" if name and first["rule"] in _SLOW else ""


def _backend_in_words(found: Table) -> str:
    """Return words on the backend of CPU communication, or ""."""
    for row in found.rows():
        if row["rule"] == "host_communication" and isinstance(row["title"], Note):
            return f" on {row['title'].values['backend']}"
    return ""


_SLOW_STEPS: Final = "slow_steps"
_SLOW: Final = ("straggler", "slow_host")
_WAITING: Final = ("collective_waits", "load_imbalance")
"""Rules that only claim waiting in collectives."""


def _where_time_is_spent(
    results: Mapping[str, Result], parts: Mapping[str, float], n_gpus: int | None
) -> Iterable[Note]:
    """Yield notes on the shares of step time on the devices, or else on the host."""
    steps = results.get("steps")
    start, values = _base_in_words(steps)
    if parts:
        shares = {
            _PART_NAMES.get(part, part.replace("_", " ")): share for part, share in parts.items()
        }
        values["devices"] = len(results["breakdown"].table)
        of = " (mean of {devices:count} GPUs)" if values["devices"] > 1 else ""
        if n_gpus is not None and n_gpus < values["devices"]:
            values["gpus"] = n_gpus
            of = " (mean over {devices:count} ranks that share {gpus:count} GPU(s))"
        yield from with_shares(f"GPU time {start}{of}", shares, values)
        yield from on_phases(results, *_base_in_words(steps), only_rollouts=True)
        return
    yield from on_host_time(results, start, values)


def _base_in_words(steps: Result | None) -> tuple[str, dict[str, Any]]:
    """Return the base of shares in words, and its values."""
    if steps is None or steps.scalars["base"] == WINDOW:
        return "in the window", {}
    values = {"step": steps.scalars["base_ns"]}
    if steps.scalars["base"] == ITERATION:
        return "per iteration of {step:ns}", values
    kind = "step" if steps.scalars["confidence_ratio"] == 1 else "inferred step"
    return f"per {kind} of {{step:ns}}", values


_REPEATED: Final = (EVALUATION, CHECKPOINT, GARBAGE)
"""Kinds with the same cost each time; for compiling and loading, only the total matters."""


def _split_repeated(
    occasions: Iterable[Note], outside: Iterable[Note]
) -> tuple[tuple[Note, ...], tuple[Note, ...]]:
    """Return notes on periodic costs and notes on one-time costs.

    A cost that occurred once in the window, and again ``outside`` of it, is part of the total.
    """
    sides: tuple[list[Note], list[Note]] = [], []
    summed = {note.values["kind"] for note in outside if note.values["n"] > 1}
    for note in occasions:
        if note.values["n"] > 1 or note.values["kind"] not in summed & {*_REPEATED}:
            sides[note.values["n"] == 1].append(note)
    for note in outside:
        sides[note.values["n"] == 1 or note.values["kind"] not in _REPEATED].append(note)
    return tuple(sides[0]), tuple(sides[1])


def _costs_outside(one_off: Table, occasions: Iterable[Note]) -> Iterable[Note]:
    """Yield notes on costs that are not all in the window, of the process with the largest cost.

    ``occasions`` are the costs in the window, which are already reported. For repeated costs, they
    contain all of them.
    """
    is_repeated = {note.values["kind"]: note.values["n"] > 1 for note in occasions}
    largest: dict[str, dict[str, Any]] = {}
    for row in one_off.rows():
        kind, ns = row["kind"], row["outside_ns"]
        if ns > largest.get(kind, {"outside_ns": 0})["outside_ns"] and not is_repeated.get(kind):
            largest[kind] = row
    for kind, row in largest.items():
        n = int(row["count"])
        is_sum = kind not in is_repeated or (n > 1 and kind in _REPEATED)
        ns = row["total_ns" if is_sum else "outside_ns"]
        times = ": {n:count} times, {ns:ns} in total" if n > 1 and kind in _REPEATED else " {ns:ns}"
        yield Note.of(f"{{kind}}{times}", kind=kind, n=n, ns=int(ns))


_OCCASIONS_OF: Final = {
    "warm-up": "warm-up",
    "compiling": "kernel loading",
    "loading kernels": "kernel loading",
}
"""The subject that a one-time or periodic cost on the page is about, by kind of cost."""


def _visible_problems(
    parts: Mapping[str, float], steps: Result | None, costs: Iterable[Note]
) -> set[str]:
    """Return the subjects that the page shows as a problem, although no rule found one.

    ``costs`` are the one-time and periodic costs on the page.
    """
    visible = {_OCCASIONS_OF.get(note.values["kind"], "") for note in costs}
    of_parts = {"idle time": IDLE, "interconnect bandwidth": COMMUNICATION}
    visible |= {name for name, part in of_parts.items() if parts.get(part, 0.0) >= CONSIDERABLE}
    if steps is not None and steps.scalars.get("spread_ratio", 0.0) >= MAX_STEADY_RATIO:
        visible.add("step time variation")
    if steps is not None and steps.scalars.get("profiler_overhead_ratio", 0.0) >= CONSIDERABLE:
        visible.add("profiler overhead")
    return visible


_STEPS: Final = "steps"
"""The events of subjects that need no GPU activity."""


_SINGULAR: Final = {
    **{f"{noun}s": noun for noun in ("kernel", "memset", "step", "collective")},
    "copies": "copy",
    "launches": "launch",
    "and": "or",
}


def _singular(nouns: str) -> str:
    """Return the nouns of events for one event: "kernel or copy" for "kernels and copies"."""
    return " ".join(_SINGULAR.get(word, word) for word in nouns.split(" "))


def _on_checks(fine: Table) -> Iterator[Note]:
    """Yield a note on the events that rules saw, then one for each subject without a problem.

    Kinds of events that are part of the kernels and copies are left out; the table `checked` has
    them. A subject has the largest share of the analyzed time that a rule measured, from 1% on.
    """
    from traceprof.findings.amounts import (  # noqa: PLC0415 (tables do not need the rules)
        PARTS_OF_WORK,
        WORK_NOUN,
    )

    seen = dict(zip(fine["seen"].tolist(), fine["seen_count"].tolist(), strict=True))
    whole = {noun: n for noun, n in seen.items() if noun not in PARTS_OF_WORK}
    seen = whole if WORK_NOUN in seen else seen
    words = ", ".join(f"{{n{i}:count}} {{seen{i}}}" for i in range(len(seen)))
    values = {f"n{i}": int(n) for i, n in enumerate(seen.values())}
    nouns = [_singular(noun) if n == 1 else noun for noun, n in seen.items()]
    yield Note.of(words, **values, **{f"seen{i}": noun for i, noun in enumerate(nouns)})
    for row in fine.rows():
        share = row["share_ratio"] or 0.0
        text = "{subject} {share:ratio}" if share >= LEAST_SHARE else "{subject}"
        yield Note.of(text, subject=row["subject"], share=share)


def _not_analyzed(results: Mapping[str, Result], checked: Table) -> tuple[Note, ...]:
    """Return the subjects that were not checked, one note per reason.

    The reasons are too little data, and data that an option or another recording would provide.
    ``checked`` are the subjects of the rules without those that the page shows as a problem.
    """
    not_checked = table_of(results, "findings", "not_checked")
    if checked.empty:
        return ()
    is_open = ~checked["is_evaluated"].astype(bool)
    unchecked = {*checked["subject"][is_open]} - {*_NOT_RECORDABLE}
    subjects: dict[str, dict[str, None]] = {}
    for row in not_checked.rows():
        if row["subject"] in unchecked and any(word in row["reason"] for word in _OPTION_WORDS):
            subjects.setdefault(row["reason"], {})[row["subject"]] = None
    lacks = [(row["lacks"], row["subject"]) for row in checked.rows() if row["lacks"]]
    lacks = [(note, subject) for note, subject in lacks if subject not in _NOT_RECORDABLE]
    partly = [note for note, _ in lacks if "check" in note.values]
    lacks = [one for one in lacks if not one[0].values.keys() & {"check", "waited"}]
    few = some_of([subject for _, subject in lacks])
    return (
        *(
            Note.of(f"{{subjects}}: {note.text}", subjects=few, **note.values)
            for note, _ in lacks[:1]
        ),
        *partly,
        *(
            Note.of("{subjects}: {reason}", subjects=some_of([*names]), reason=reason)
            for reason, names in subjects.items()
        ),
    )


def _next_command(results: Mapping[str, Result]) -> str:
    """Return the command for details on the first finding, else on the most informative table."""
    table = table_of(results, "findings")
    if on_waiting(table_of(results, "findings", "checked")):
        return f"{shown_by('stragglers')} TRACE"  # no finding leads there
    if len(table) and not table["is_minor"][0]:
        first = table.row(0)
        if first["rule"] == _SLOW_STEPS:
            return f"traceprof explain TRACE {first['window']}"
        return f"{shown_by(first['show'])} TRACE"
    for name in ("kernels", "copies", "operators", "range-times", "ranges"):
        if len(table_of(results, name)):
            return f"{shown_by(name)} TRACE"
    return "traceprof info TRACE"
