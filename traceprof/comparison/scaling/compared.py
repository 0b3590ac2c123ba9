"""Compare runs of several sizes: speedup, efficiency, and the causes of lost efficiency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from typing import Any, Final

from traceprof.comparison import SCALING, Comparison
from traceprof.comparison.scaling.laws import amdahl_share
from traceprof.comparison.scaling.measured import (
    MIXED,
    STRONG,
    UNKNOWN,
    WEAK,
    Measured,
    measured_group,
)
from traceprof.comparison.scaling.points import (
    INDEPENDENT,
    SAMPLES,
    STEPS,
    TOKENS,
    ScalingPoint,
    point_of,
)
from traceprof.comparison.scaling.run_groups import BY_GPUS, BY_NODES, PROGRAM, RunGroup, groups_of
from traceprof.comparison.scaling.warned import (
    caveat_notes,
    one_job_warnings,
    printed_warnings,
    repeat_warnings,
)
from traceprof.comparison.sides import table_of
from traceprof.comparison.specs_of_many import SCALING_SPEC, SCALING_SUMMARY
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.results import Note, Result
from traceprof.model.summary import Summary
from traceprof.session.caveats import refused


def scaling_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield a row for each group, size and batch."""
    for measured in found:
        rate, first = measured.cell.rate, measured.cell.first
        is_rate = not first.is_factor
        kinds = {point.ranks for point in measured.cell.points}
        joules, cost = (measured.cell.of_step(name) for name in ("step_joules", "step_cost"))
        yield {
            **_keys(measured),
            **_rates(first.counts, rate.value),
            "speedup": measured.speedup,
            "efficiency_ratio": measured.efficiency.value,
            "lost_to": measured.largest_losses or "",
            "scaling": measured.kind,
            "printed_ratio": first.printed_percent / 100,
            "printed_is": measured.printed_is,
            "expected_ratio": measured.expected_ratio,
            "low_ratio": measured.efficiency.low,
            "high_ratio": measured.efficiency.high,
            "ranks": ", ".join(sorted(filter(None, kinds))),
            "base_count": measured.base_size,
            "ideal_per_s": rate.value / measured.efficiency.value if is_rate else nan,
            "low_per_s": rate.low,
            "high_per_s": rate.high,
            "karp_flatt_ratio": measured.karp_flatt,
            "time_to_train_ns": measured.cell.time_ns,
            "time_speedup": measured.time_speedup,
            "step_ns": first.step_ns,
            "mfu_ratio": measured.cell.mfu,
            "step_joules": joules,
            "sample_joules": joules / (measured.cell.batch or nan),
            "step_cost": cost,
            "million_samples_cost": 1e6 * cost / (measured.cell.batch or nan),
            "runs_count": len(measured.cell.points),
        }


def loss_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the losses of each size, the largest loss first."""
    for measured in found:
        whole = measured.step_ns
        for loss in sorted(measured.losses, key=lambda item: -item.lost_ns):
            yield {
                **_keys(measured),
                "loss": loss.name,
                "lost_ratio": loss.lost_ns / whole if whole else nan,
                "lost_ns": loss.lost_ns,
                "actual_ns": loss.actual_ns,
                "base_ns": loss.base_ns,
            }


def _rates(counts: str, value: float) -> dict[str, float]:
    """Return a throughput as a column for the unit that it counts; the other columns are NaN."""
    return {f"{unit}_per_s": value if unit == counts else nan for unit in (SAMPLES, TOKENS, STEPS)}


def _keys(measured: Measured) -> dict[str, Any]:
    first = measured.cell.first
    return {
        "group": measured.group.name,
        "devices_count": first.devices,
        "nodes_count": first.nodes,
        "global_batch_count": measured.cell.batch,
    }


def law_rows(found: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the serial share of each group that has a size besides its base."""
    for name in dict.fromkeys(measured.group.name for measured in found):
        scaled = [
            measured
            for measured in found
            if measured.group.name == name and isfinite(measured.karp_flatt)
        ]
        if not scaled:
            continue
        share = amdahl_share(
            [(measured.cell.size / measured.base_size, measured.speedup) for measured in scaled]
        )
        yield {
            "group": name,
            "serial_ratio": share,
            "limit_speedup": 1 / share if share > 0 else nan,
            "is_exceeded": share > 0 and max(measured.speedup for measured in scaled) * share > 1,
            "karp_flatt_first_ratio": scaled[0].karp_flatt,
            "karp_flatt_last_ratio": scaled[-1].karp_flatt,
            "sizes_count": len(scaled),
        }


def run_rows(groups: Sequence[RunGroup]) -> Iterator[dict[str, Any]]:
    """Yield a row for each run in each of its groups."""
    for group in groups:
        for point in sorted(group.points, key=lambda run_point: run_point.devices):
            yield {
                "run": point.run.name,
                "group": group.name,
                "devices_count": point.devices,
                "nodes_count": point.nodes,
                **_rates(point.counts, point.rate.value),
                "ranks": point.ranks,
                "origin": point.run.origin,
            }


def failure_rows(points: Sequence[ScalingPoint]) -> Iterator[dict[str, Any]]:
    """Yield the runs that failed without a throughput, with the reason."""
    for point in points:
        events = table_of(point.run, "events")
        why = events["text"][events["kind"] == "failure"].tolist()
        if why and not point.rate.value > 0:
            yield {
                "run": point.run.name,
                "labels": ", ".join(point.run.labels.values()),
                "devices_count": point.devices,
                "nodes_count": point.nodes,
                "global_batch_count": point.batch,
                "why": str(why[0]),
            }


KINDS: Final = (WEAK, STRONG)
_MAX_VERDICTS: Final = 4
_MAX_FAILURES: Final = 8


def scaling(
    runs: Sequence[Summary],
    *,
    base: float | None = None,
    by: Sequence[str] = (),
    ignored: Sequence[str] = (),
    assumed: str = "",
) -> Comparison:
    """Return how the throughput of ``runs`` grows with their size.

    Args:
        runs: runs of several sizes; runs of the same group, size and batch are repeats.
        base: the size that counts as ideal; None: the smallest size of each group.
        by: the unit of the size ("gpus", "nodes"), and labels whose groups are listed together.
        ignored: labels that do not separate groups: runs that differ only in them are repeats.
        assumed: "weak" or "strong" for runs with unknown batches.

    Raises:
        NotRecordedError: no run has both a size and a throughput.
        UsageError: an argument is invalid.
    """
    if BY_GPUS in by and BY_NODES in by:
        raise UsageError("--by gpus and --by nodes exclude each other: pass only one")
    if assumed and assumed not in KINDS:
        raise UsageError(f"--scaling {assumed!r}: expected {' or '.join(KINDS)}")
    by_nodes = BY_NODES in by
    points = [point_of(run, by_nodes=by_nodes) for run in runs]
    usable = [point for point in points if point.size > 0 and point.rate.value > 0]
    if not usable:
        error = NotRecordedError(_no_data_message(points, by_nodes=by_nodes))
        raise refused(error, (note for run in runs for note in run.notes))
    groups = groups_of(usable, by, ignored)
    found = [point for group in groups for point in measured_group(group, base, assumed)]
    what = "nodes" if by_nodes else _devices(usable)
    sizes = sorted({point.size for point in usable})
    listed = ", ".join(f"{size:g}" for size in sizes)
    counted = "1 run" if len(usable) == 1 else f"{len(usable)} runs"
    return Comparison(
        title=f"{counted} on {listed} {what.removesuffix('s') if sizes == [1] else what}",
        results={SCALING: _result(found, groups, points, by_nodes=by_nodes, base=base)},
        verdict=tuple(_verdict(found, what)),
        notes=tuple(_notes(found, points, base, what)),
        warnings=(
            *one_job_warnings(usable),
            *repeat_warnings(found, what),
            *printed_warnings(found, what),
            *caveat_notes(usable),
        ),
        about={SCALING: SCALING_SUMMARY},
    )


def _no_data_message(points: Sequence[ScalingPoint], *, by_nodes: bool) -> str:
    """Return the error message if no run has both a size and a throughput."""
    what, label = ("nodes", "nodes=2") if by_nodes else ("GPUs or ranks", "gpus=8")
    if not any(point.size > 0 for point in points):
        return (
            f"no run contains the number of {what}: set it as a label, for example with "
            f"`traceprof runs add --label {label} RUN`"
        )
    return "no run contains a throughput: record steps, or pass a table of rates"


def _result(
    found: Sequence[Measured],
    groups: Sequence[RunGroup],
    points: Sequence[ScalingPoint],
    *,
    by_nodes: bool,
    base: float | None,
) -> Result:
    rows: dict[str, Iterable[dict[str, Any]]] = {
        "scaling": scaling_rows(found),
        "losses": loss_rows(found),
        "laws": law_rows(found),
        "groups": [
            {"group": group.name, "label": label, "value": value}
            for group in groups
            for label, value in group.labels.items()
        ],
        "runs": run_rows(groups),
        "failures": failure_rows(points),
    }
    tables = {
        name: SCALING_SPEC.table(name).of_rows(list(table_rows))
        for name, table_rows in rows.items()
    }
    kept = {name: table for name, table in tables.items() if name == SCALING or len(table)}
    scalars = {
        "by": BY_NODES if by_nodes else BY_GPUS,
        "devices": _devices(point for group in groups for point in group.points),
        "base": "" if base is None else f"{base:g}",
    }
    return Result(SCALING, SCALING_SPEC, kept, scalars, tuple(_notes_of_table(found)))


def _devices(points: Iterable[ScalingPoint]) -> str:
    return "ranks" if any(point.of_hosts for point in points) else "GPUs"


def _verdict(found: Sequence[Measured], what: str) -> Iterator[Note]:
    """Yield the efficiency at the largest size of each group, and the largest losses."""
    last = {measured.group.name: measured for measured in found if measured.is_reported}
    for measured in list(last.values())[:_MAX_VERDICTS]:
        name = f"{measured.group.name}: " if measured.group.name else ""
        yield Note.of(
            "{name}{efficiency:ratio} scaling efficiency on {n:number} {what}, {speedup:number} "
            "times the throughput of {base:number} {unit}{kind}.",
            name=name,
            efficiency=measured.efficiency.value,
            n=measured.cell.size,
            what=what,
            speedup=measured.speedup,
            base=measured.base_size,
            unit=what.removesuffix("s") if measured.base_size == 1 else what,
            kind=f" ({measured.kind} scaling)" if measured.kind in (*KINDS, MIXED) else "",
        )
        if measured.time_speedup == measured.time_speedup:
            yield Note.of(
                "Time to train: {own:ns}, compared with {base:ns} ({times:number} times as fast).",
                own=measured.cell.time_ns,
                base=measured.cell.time_ns * measured.time_speedup,
                times=measured.time_speedup,
            )
        if lost := measured.largest_losses:
            yield Note.of("Efficiency lost to: {lost}.", lost=lost)
    if (omitted := len(last) - _MAX_VERDICTS) > 0:
        yield Note.of("The table lists {n:count} more group(s).", n=omitted)


def _notes(
    found: Sequence[Measured], points: Sequence[ScalingPoint], base: float | None, what: str
) -> Iterator[Note]:
    for point in points:
        yield from point.notes
    yield from _expected_notes(found, what)
    failed = {row["run"]: row for row in failure_rows(points)}
    yield from _failure_notes(list(failed.values()), what)
    excluded = [
        point.run.name
        for point in points
        if not (point.size > 0 and point.rate.value > 0) and point.run.name not in failed
    ]
    if excluded:
        yield Note.of(
            "Excluded, because the size or throughput is not recorded: {names}.",
            names=", ".join(excluded),
        )
    programs = sorted({measured.group.labels.get(PROGRAM, "") for measured in found} - {""})
    if len(programs) > 1:
        yield Note.of(
            "Runs of different programs are separate groups: {programs}. --ignore program treats "
            "them as one program.",
            programs=", ".join(programs),
        )
    not_compared = {measured.group.name for measured in found}
    not_compared -= {measured.group.name for measured in found if measured.is_compared}
    if not_compared and base is None:
        yield Note.of(
            "Groups with only one size, so without a comparison: {n:count}.", n=len(not_compared)
        )
    elif not_compared:
        yield Note.of(
            "Groups without size {base:number}, or with no other size: {n:count}.",
            base=base,
            n=len(not_compared),
        )


def _expected_notes(found: Sequence[Measured], what: str) -> Iterator[Note]:
    """Yield the throughput as a share of the expected throughput."""
    for measured in found:
        if isfinite(measured.expected_ratio):
            yield Note.of(
                "{where}{n:number} {what}: {rate:1/s}, {share:ratio} of the expected "
                "{expected:1/s}.",
                where=f"{measured.group.name}, " if measured.group.name else "",
                n=measured.cell.size,
                what=what.removesuffix("s") if measured.cell.size == 1 else what,
                rate=measured.cell.rate.value,
                expected=measured.cell.rate.value / measured.expected_ratio,
                share=measured.expected_ratio,
            )


def _failure_notes(rows: Sequence[dict[str, Any]], what: str) -> Iterator[Note]:
    """Yield a note for each run that failed without a throughput."""
    for row in rows[:_MAX_FAILURES]:
        yield Note.of(
            "{where}{n:number} {what}{batch}: {why}",
            where=f"{row['labels']}, " if row["labels"] else "",
            n=row["devices_count"],
            what=what,
            batch=f", batch {row['global_batch_count']:g}" if row["global_batch_count"] > 0 else "",
            why=row["why"],
        )
    if (omitted := len(rows) - _MAX_FAILURES) > 0:
        yield Note.of("The table failures lists {n:count} more run(s).", n=omitted)


def _notes_of_table(found: Sequence[Measured]) -> Iterator[Note]:
    kinds = {measured.kind for measured in found}
    if any(
        measured.kind == UNKNOWN and not measured.cell.first.counts_samples for measured in found
    ):
        yield Note(
            "Batch sizes are not recorded, so steps of different sizes are not comparable. Pass "
            "--scaling weak (same samples per GPU) or --scaling strong (same samples in total)."
        )
    elif UNKNOWN in kinds:
        yield Note("Weak or strong scaling is not known, because batch sizes are not recorded.")
    if MIXED in kinds:
        yield Note(
            "Mixed scaling: the global batch neither stays constant nor grows with the number of "
            "GPUs. Compute per sample may differ between batch sizes."
        )
    if any(point.ranks == INDEPENDENT for measured in found for point in measured.cell.points):
        yield Note(
            "Independent ranks: no collective was recorded, so the ranks do not wait for each "
            "other. traceprof averages them. Synchronized ranks share one step time."
        )
    if any(measured.cell.first.of_hosts for measured in found):
        yield Note(
            "No GPU activity was recorded. Losses are from host phases. The backward pass includes "
            "collectives that overlap with it."
        )
