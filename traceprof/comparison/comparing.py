"""Compare two sides: check that they are comparable, test the difference, and explain it.

The inputs are summaries, run names and files that the user passes, or already opened runs. This
module also opens two recordings for a side-by-side view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from traceprof.comparison import Comparison
from traceprof.comparison.difference import difference_of, difference_result, matched_kernels
from traceprof.comparison.judging import (
    Limit,
    evaluate_measures,
    judged_result,
    limits_of,
    parse_limit,
    steps_result,
)
from traceprof.comparison.matched import match_rows, notes_of, rows_result, sides_of
from traceprof.comparison.runs_named import name_of, summaries_of, summary_of
from traceprof.comparison.scaling.points import INDEPENDENT, ONE, SYNCHRONIZED, ranks_of
from traceprof.comparison.settings import not_recorded, settings_of, warnings_of
from traceprof.comparison.side_by_side import (
    host_phases,
    kernels_of,
    metrics_of_sides,
    ranks_of_sides,
    side_by_side,
)
from traceprof.comparison.sides import (
    ITERATION,
    STEP,
    WINDOW,
    Side,
    are_identical,
    are_ranks_of_one,
    common_unit,
    count_measured_units,
    count_omitted,
    devices_of,
    time_unit_of,
    warmup_count_of,
)
from traceprof.comparison.specs import ABOUT, MEASURES
from traceprof.comparison.verdict import verdict_of
from traceprof.errors import RegressionError, UndecidedError, UsageError
from traceprof.model.results import Note, Result
from traceprof.model.summary import Summary
from traceprof.session.caveats import caveats_of_run, is_caveat, is_incomplete
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.session.shares import LEAST_MFU
from traceprof.units import format_ratio


def compare(
    base: Sequence[Summary], new: Sequence[Summary], limits: Sequence[Limit] = ()
) -> Comparison:
    """Compare the runs in ``new`` with the runs in ``base``; the runs of one side are repeats.

    The result "limits" lists each of ``limits`` and whether it is exceeded.

    Raises:
        UsageError: a side has no run, or a limit names a measure that a side has not recorded.
    """
    if not base or not new:
        raise UsageError("compare needs at least one run per side")
    unit = common_unit([*base, *new])
    matched_rows = match_rows(base, new)
    sides = sides_of(matched_rows, base, new, unit)
    is_same = len(base) == len(new) == 1 and are_identical(base[0], new[0])
    evaluated = evaluate_measures(*sides, is_same=is_same)
    missing: dict[str, str] = {}
    matched = matched_kernels(*sides)
    incomplete = _incomplete_runs(sides)
    caveats = (note for run in (*base, *new) for note in caveats_of_run(run.name, run.notes))
    difference = None if incomplete else _difference(sides, matched, missing)
    if incomplete:
        missing["difference"] = f"{' and '.join(incomplete)}: the recording is incomplete"
    unit_warnings = _unit_warnings(sides)
    if unit_warnings:
        difference, missing["difference"] = None, "the times of the two sides have different units"
    settings, measures = settings_of(*sides, matched), _measures(*sides)
    better = dict(zip(measures.table["measure"], measures.table["better"], strict=True))
    rows = rows_result(matched_rows, list(evaluated))
    results = {
        "judged": judged_result(evaluated, *sides),
        "rows": rows,
        "limits": limits_of(limits, evaluated, sides, better) if limits else None,
        "difference": difference,
        "settings": settings,
        **(
            {}
            if unit_warnings
            else {"kernels": kernels_of(*sides, matched), **side_by_side(*sides)}
        ),
        "ranks": ranks_of_sides(*sides),
        "metrics": metrics_of_sides(*sides),
        "steps": steps_result(*sides),
        "measures": measures,
    }
    shown = {
        name: result
        for name, result in results.items()
        if result is not None and not all(table.empty for table in result.tables.values())
    }
    return Comparison(
        title=f"{sides[1].name} compared with {sides[0].name}",
        results={name: shown[name] for name in ABOUT if name in shown},
        verdict=(
            *_incomplete_notes(incomplete),
            *verdict_of(evaluated, difference, sides),
            *notes_of(matched_rows, rows),
        ),
        notes=(*_notes(sides, has_windows=difference is not None), *not_recorded(*sides)),
        warnings=(
            *caveats,
            *[_IDENTICAL] * is_same,
            *unit_warnings,
            *_comparability_warnings(sides),
            *warnings_of(settings),
        ),
        missing=missing,
        about=ABOUT,
    )


def _incomplete_runs(sides: tuple[Side, Side]) -> list[str]:
    """Return the names of runs with missing data, which alone could cause a difference."""
    return [run.name for side in sides for run in side.runs if any(map(is_incomplete, run.notes))]


def _incomplete_notes(incomplete: Sequence[str]) -> Iterator[Note]:
    if incomplete:
        text = "{names} is incomplete" if len(incomplete) == 1 else "{names} are incomplete"
        text += ". traceprof does not explain the difference, because it may be missing data."
        yield Note.of(text, names=" and ".join(incomplete))


def _difference(sides: tuple[Side, Side], matched: Any, missing: dict[str, str]) -> Result | None:
    """Explain the difference by GPU activity, or by host phases without GPU activity.

    Adds the reason to ``missing`` if a side has no GPU activity.
    """
    phases = host_phases(*sides)
    if sides[0].composition is not None and sides[1].composition is not None:
        return difference_of(*sides, matched, phases)
    without_gpu = [side.name for side in sides if side.composition is None]
    missing["difference"] = f"no GPU activity recorded in {', '.join(without_gpu)}"
    if phases is None:
        return None
    length = {name: int(phases[name].sum()) for name in ("difference_ns", "base_ns", "new_ns")}
    return difference_result(sides, length, {"causes": (), "parts": (), "phases": phases})


def _measures(base: Side, new: Side) -> Result:
    """Return the scalar measures that are recorded on both sides."""
    rows: list[dict[str, Any]] = []
    for row in base.runs[0].table("measures").rows():
        name = str(row["measure"])
        values = base.measure(name), new.measure(name)
        if values[0] is None or values[1] is None:
            continue
        change = values[1] / values[0] - 1 if values[0] else float("nan")
        about = {key: row.get(key, "") for key in ("measure", "unit", "better", "scope")}
        if base.groups and not about["better"]:
            continue  # a size, which differs from row to row
        rows.append({**about, "base": values[0], "new": values[1], "change_ratio": change})
    return Result("measures", MEASURES, {"measures": MEASURES.tables[0].of_rows(rows)})


def _comparability_warnings(sides: tuple[Side, Side]) -> Iterator[Note]:
    """Yield warnings about runs that are ranks of one job, and about different kinds of ranks."""
    runs = [run for side in sides for run in side.runs]
    ranks_of_one_job = [run for run in runs if any(are_ranks_of_one(run, other) for other in runs)]
    if ranks_of_one_job:
        yield Note.of(
            "{names} are ranks of one job, not separate runs. Put the files of a job in one "
            "folder and pass the folder.",
            names=", ".join(dict.fromkeys(run.name for run in ranks_of_one_job)),
        )
    kinds = {run: ranks_of(run, devices_of(run)) for run in runs}
    with_kind = [run for run in runs if kinds[run] in (INDEPENDENT, SYNCHRONIZED)]
    if len({kinds[run] for run in with_kind}) > 1:
        is_mixed = any(len({kinds[run] for run in side.runs} - {"", ONE}) > 1 for side in sides)
        yield Note.of(
            "The sides are not comparable: ranks are {kinds}."
            + (" One side has both kinds." if is_mixed else ""),
            kinds=", ".join(f"{kinds[run]} in {run.name}" for run in with_kind),
        )


def _unit_warnings(sides: tuple[Side, Side]) -> tuple[Note, ...]:
    """Return a warning if the times of the runs are for different units."""
    runs = [run for side in sides for run in side.runs]
    kinds = {run.name: kind for run in runs if (kind := time_unit_of(run))}
    if len(set(kinds.values())) < 2:
        return ()
    return (
        Note.of(
            "The units differ: times are for {kinds}. traceprof does not compare parts of the "
            "time. Choose windows of one kind with -w, or mark steps in both programs.",
            kinds=", ".join(f"a {run_kind} in {name}" for name, run_kind in kinds.items()),
        ),
    )


def _step_selection_notes(sides: tuple[Side, Side]) -> Iterator[Note]:
    """Yield notes if the runs select the measured steps differently.

    The differences are the number of warm-up steps, and whether the measured steps were profiled.
    """
    runs = [run for side in sides for run in side.runs]
    warmups = {
        run.name: warmup_count for run in runs if (warmup_count := warmup_count_of(run)) is not None
    }
    if len(set(warmups.values())) > 1:
        yield Note.of(
            "The number of excluded warm-up steps differs: {counts}.",
            counts=", ".join(f"{n} of {name}" for name, n in warmups.items()),
        )
    with_steps = [run for run in runs if time_unit_of(run) == STEP and len(run.table("makeup"))]
    unprofiled = [run.name for run in with_steps if run.measure("unprofiled_count")]
    if unprofiled and len(unprofiled) < len(with_steps):
        yield Note.of(
            "The step time of {free} is from unprofiled steps. The step time of {others} includes "
            "profiling overhead.",
            free=", ".join(unprofiled),
            others=", ".join(run.name for run in with_steps if run.name not in unprofiled),
        )


_UNIT_NOTES: Final = {
    ITERATION: Note(
        "No step markers found. traceprof compares iterations detected from the kernel sequence, "
        "which may be steps, layers or requests."
    ),
    WINDOW: Note(
        "Some runs have no step markers. traceprof compares whole windows, and their lengths "
        "differ regardless of the step time."
    ),
}


_IDENTICAL: Final = Note(
    "All numbers of the two runs are identical: this is one recording compared with itself."
)


def _notes(sides: tuple[Side, Side], *, has_windows: bool) -> list[Note]:
    unit = sides[0].unit
    notes = [] if unit == STEP or not has_windows else [_UNIT_NOTES[unit]]
    text = "{name}: window {window}" + (", {n:count} {unit}(s)" if unit != WINDOW else "")
    notes += [
        Note.of(
            text, name=run.name, window=run.window, n=count_measured_units(run, unit), unit=unit
        )
        for side in sides
        for run in side.runs
        if run.window
    ]
    return [
        *(*notes, *_omission_notes(sides), *_log_notes(sides)),
        *(*_step_selection_notes(sides), *_hardware_notes(*sides)),
    ]


def _omission_notes(sides: tuple[Side, Side]) -> Iterator[Note]:
    """Yield a note for each run with steps or iterations that only some of its ranks have."""
    unit = ITERATION if sides[0].unit == ITERATION else STEP
    for run in (run for side in sides for run in side.runs):
        left_out, n = count_omitted(run, unit)
        if left_out:
            yield Note.of(
                "{name}: the statistical test and the list of {unit}s omit {left_out:count} of "
                "{n:count} {unit}s, because their numbers do not occur in all ranks. The means "
                "contain them.",
                name=run.name,
                left_out=left_out,
                n=n,
                unit=unit,
            )


def _log_notes(sides: tuple[Side, Side]) -> Iterator[Note]:
    """Yield the notes of logs: warm-up, pauses, and lasting changes of rates."""
    for run in (run for side in sides for run in side.runs if run.origin.startswith("log:")):
        for note in run.notes:
            if not is_caveat(note):
                yield Note.of("{run}: {note}", run=run.name, note=note)


_HARDWARE_NOTES: Final = (
    ("mfu_ratio", 1, LEAST_MFU, "MFU is {new:ratio} of the dense peak (base {base:ratio})."),
    ("step_joules", 1, 0, "A step takes {new:count} J (base {base:count} J)."),
    ("token_joules", 1, 0, "A token takes {new:count} J (base {base:count} J)."),
    ("epoch_cost", 1, 0, "An epoch costs {new:count} at the given price (base {base:count})."),
    ("step_cost", 1000, 0, "1,000 steps cost {new:count} at the given price (base {base:count})."),
)


def _hardware_notes(base: Side, new: Side) -> Iterator[Note]:
    """Yield the model FLOPs utilization, the energy, and the cost of both sides."""
    for name, factor, least, text in _HARDWARE_NOTES:
        before, after = (side.measure(name) for side in (base, new))
        if before is not None and after is not None and max(before, after) >= least:
            yield Note.of(text, base=factor * before, new=factor * after)


SIDE_SEPARATOR: Final = "vs"
"""The argument that separates the base runs from the new runs."""


BRIEF: Final[Mapping[str, tuple[str, ...]]] = {
    "rows": (),
    "judged": ("larger_ratio", "better", "base_count", "new_count", "autocorrelation"),
    "limits": (),
    "difference": ("from_count_ns", "from_duration_ns", "class", "base_bytes", "new_bytes"),
    "settings": ("spoils",),
    "kernels": ("base_count", "activity"),
    "metrics": ("base_epoch", "new_epoch", "base_step", "new_step"),
}
"""The results that a terminal or a pull request shows, each with the columns that are omitted."""


def brief(found: Comparison) -> Comparison:
    """Return the comparison with its main results, limited to their main columns."""
    results = {}
    difference = found.results.get("difference")
    knows_devices = difference is not None and len(difference.table) > 0
    for name, result in found.results.items():
        if not knows_devices and name == "phases":  # without GPU activity, phases explain the time
            results[name] = result
        elif name in BRIEF:
            tables = {
                table_name: table.without(*BRIEF[name])
                for table_name, table in result.tables.items()
                if table_name not in ("kinds", "classes")
            }
            results[name] = replace(result, tables=tables)
    return replace(found, results=results)


def split_sides(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split run names into base and new: two names, or two lists separated by "vs".

    Raises:
        UsageError: the split into base and new is ambiguous.
    """
    if texts.count(SIDE_SEPARATOR) == 1:
        place = texts.index(SIDE_SEPARATOR)
        sides = list(texts[:place]), list(texts[place + 1 :])
        if all(sides):
            return sides
    elif len(texts) == 2 and SIDE_SEPARATOR not in texts:
        return [texts[0]], [texts[1]]
    raise UsageError(
        "compare needs two runs, BASE and NEW, or several runs per side separated by vs: "
        "`traceprof compare base1 base2 vs new1 new2`"
    )


def compare_named(
    base: Sequence[str | Path],
    new: Sequence[str | Path],
    *,
    limits: Sequence[str] = (),
    opening: Opening | None = None,
    window: str | None = None,
    db: Path | str | None = None,
) -> Comparison:
    """Compare the runs named by ``new`` with the runs named by ``base`` (see `summaries_of`).

    ``limits`` have the syntax of `--max-regression`. ``window`` selects the window of traces.

    Raises:
        TraceprofError: a run cannot be found or read, or a limit is invalid.
    """
    parsed = [parse_limit(text) for text in limits]
    first, second = (summaries_of(texts, opening, db, window) for texts in (base, new))
    return compare(*_with_distinct_names(first, second), parsed)


def compare_summaries(base: list[Summary], new: list[Summary]) -> Comparison:
    """Compare runs of both sides, which may have the same names."""
    return compare(*_with_distinct_names(base, new))


def compare_opened(
    base: Sequence[Path], new: Sequence[Path], opening: Opening, window: str | None
) -> Comparison:
    """Compare the run in the files ``new`` with the run in the files ``base``.

    Raises:
        TraceprofError: a run cannot be read.
    """
    first, second = (
        [summary_of(open_run(list(paths), opening).within(window), name_of(paths[0]), {})]
        for paths in (base, new)
    )
    return compare(*_with_distinct_names(first, second))


def _with_distinct_names(
    base: list[Summary], new: list[Summary]
) -> tuple[list[Summary], list[Summary]]:
    """Prefix the folder to the names of runs that have the same name on both sides."""
    both = {run.name for run in base} & {run.name for run in new}
    first, second = (
        [_with_folder(run) if run.name in both else run for run in side] for side in (base, new)
    )
    return first, second


def _with_folder(run: Summary) -> Summary:
    folder = Path(run.sources[0].path).absolute().parent.name if run.sources else ""
    return replace(run, name=f"{folder}/{run.name}") if folder else run


def failed_limits(found: Comparison) -> None:
    """Check the limits of a comparison.

    Raises:
        RegressionError: a limit is exceeded; the message lists each measure and its change.
        UndecidedError: no limit is exceeded, but the data is not sufficient to check one.
    """
    if "limits" not in found.results:
        return
    for state, text, error in (
        ("is_exceeded", "regression in", RegressionError),
        ("is_undecided", "not enough data to check the limit for", UndecidedError),
    ):
        failed = [row for row in found.results["limits"].table.rows() if row[state]]
        if failed:
            details = ", ".join(
                f"{row['measure']} {format_ratio(abs(row['worse_ratio']))} "
                f"{'better' if row['worse_ratio'] < 0 else 'worse'} "
                f"(limit {format_ratio(row['limit_ratio'])})"
                for row in failed
            )
            raise error(f"{text} {found.title}: {details}")
