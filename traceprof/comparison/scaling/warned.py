"""Warnings about scaling: unlike repeats, ranks passed as runs, printed efficiencies, caveats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from traceprof.comparison.scaling.laws import CUT_OFF, NOT_FROM_RATES
from traceprof.comparison.scaling.measured import Measured
from traceprof.comparison.scaling.points import ScalingPoint
from traceprof.comparison.sides import are_ranks_of_one
from traceprof.model.results import Note
from traceprof.session.caveats import caveats_of_run

_MAX_REPEATS_FACTOR: Final = 1.1
"""Maximum factor between the throughputs of repeats without a warning."""
_MAX_NAMES: Final = 6
_NOT_TRACES: Final = ("log", "table")


def repeat_warnings(found: Sequence[Measured], what: str) -> Iterator[Note]:
    """Yield a warning for each size whose repeats differ too much to be runs of one program."""
    for measured in found:
        points = measured.cell.points
        rates = [point.rate.value for point in points]
        if max(rates) <= _MAX_REPEATS_FACTOR * min(rates):
            continue
        command = " Their commands differ." * (len({point.run.command for point in points}) > 1)
        yield Note.of(
            "{where}{n:number} {what}: the throughput is the mean of {names}, which differ by a "
            f"factor of {{factor:number}}.{command} Separate unlike runs with --by command, or "
            "with labels.",
            where=f"{measured.group.name}, " if measured.group.name else "",
            n=measured.cell.size,
            what=what.removesuffix("s") if measured.cell.size == 1 else what,
            names=", ".join(point.run.name for point in points[:_MAX_NAMES])
            + (" and others" if len(points) > _MAX_NAMES else ""),
            factor=max(rates) / min(rates),
        )


def one_job_warnings(points: Sequence[ScalingPoint]) -> Iterator[Note]:
    """Yield a warning about runs that are ranks of one job: each would count as the whole job."""
    runs = [point.run for point in points]
    names = [run.name for run in runs if any(are_ranks_of_one(run, other) for other in runs)]
    if names:
        yield Note.of(
            "{names} are ranks of one job, not repeats. Put the files of a job in one folder and "
            "pass the folder.",
            names=", ".join(dict.fromkeys(names)),
        )


def caveat_notes(points: Iterable[ScalingPoint]) -> Iterator[Note]:
    """Yield the caveats of all runs, and all notes of logs and tables.

    Equal notes of several runs, such as the rows of one table, are listed once.
    """
    notes: dict[tuple[str, str], list[tuple[str, Note]]] = {}
    for point in points:
        yield from caveats_of_run(point.run.name, point.run.notes)
        if point.run.origin.startswith(_NOT_TRACES):
            for note in point.run.notes:
                notes.setdefault((note.text, repr(sorted(note.values.items()))), []).append(
                    (point.run.name, note)
                )
    for (run, note), *others in notes.values():
        yield note if others else Note.of("{run}: {note}", run=run, note=note)


def printed_warnings(found: Sequence[Measured], what: str) -> Iterator[Note]:
    """Yield a warning for each printed efficiency that does not match the printed rates."""
    named: set[str] = set()
    for measured in found:
        base = measured.absent_base
        if base is not None and measured.group.name not in named:
            named.add(measured.group.name)
            yield Note.of(
                "The printed efficiencies{where} refer to a base that is not among the runs. About "
                "{rate:1/s} at size 1 explains them.",
                where=f" of {measured.group.name}" if measured.group.name else "",
                rate=base.value,
            )
        if measured.printed_is not in (CUT_OFF, NOT_FROM_RATES):
            continue
        low, high = measured.extremes
        within = " (rounding of the rates allows {low:ratio} to {high:ratio})"
        yield Note.of(
            "{where}{n:number} {what}: printed efficiency {printed:number}% {how}. The rates give "
            "{computed:ratio}" + (within if high > low else "") + ".",
            where=f"{measured.group.name}, " if measured.group.name else "",
            n=measured.cell.size,
            what=what,
            printed=measured.cell.first.printed_percent,
            how="is truncated, not rounded"
            if measured.printed_is == CUT_OFF
            else measured.printed_is,
            computed=measured.printed_rates.efficiency / 100,
            low=low,
            high=high,
        )
