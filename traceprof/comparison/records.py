"""Stored runs as tables: the list of runs, the record of one or more runs, and any stored table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any, Final

from traceprof.comparison import Comparison
from traceprof.errors import UsageError
from traceprof.model.results import (
    Column,
    Combine,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    columns,
    find_column_name,
    key,
    same,
)
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table, is_unknown, objects
from traceprof.model.trace import FIRST_EPOCH_NS
from traceprof.session.caveats import caveats_of_run, is_caveat
from traceprof.store import Kept, Store

_KEY_MEASURES: Final = {
    "samples_per_s": Unit.PER_S,
    "step_period_ns": Unit.NS,
    "world_size": Unit.COUNT,
}
_NAMED: Final = columns("key name: name of the run\nsame labels: labels of the run")
_AS_TYPED: Final = "rows of tables as entered"
_LISTED: Final = columns(
    """
    same devices_count: number of GPUs with recorded activity
    same steps_count: number of steps behind the measures
    same started: start time (UTC)
    same ended: how the program ended, if recorded
    same program: program name, without arguments
    same recorded_by: recorder or profiler
    same format: format of the traces, or log:<source>
    same number [number]: number in the database
    same added: time when the run was added (UTC)
    """
)
_S: Final = 1_000_000_000


def list_of_runs(
    store: Store,
    labels: Mapping[str, str],
    measures: Sequence[str] = (),
    *,
    shown: Sequence[str] = (),
    sort: str | None = None,
    is_reversed: bool = False,
) -> Comparison:
    """List the runs that have all of ``labels``, with key measures and ``measures``.

    ``shown`` names labels, or columns of the tables from which runs were entered. Each gets a
    column.

    Raises:
        UsageError: no run has a requested measure, label or column, or ``sort`` is no column.
    """
    runs = store.listed(labels)
    measure_units = {name: measure.unit for run in runs for name, measure in run.measures.items()}
    measures = [find_column_name(name, measure_units) for name in measures]
    for name in measures:
        if name not in measure_units:
            raise UsageError(f"no run has measure {name!r}; {_available(measure_units)}")
    units = {**_KEY_MEASURES, **{name: _unit(measure_units[name]) for name in measures}}
    sort = None if sort is None else find_column_name(sort, units)
    listed = {*units, *(column.name for column in (*_NAMED, *_LISTED))}
    is_label = sort is not None and sort not in listed and any(run.text_of(sort) for run in runs)
    named = dict.fromkeys((*shown, *([sort] if is_label and sort else [])))
    for name in shown:
        if name in listed or not any(run.text_of(name) for run in runs):
            raise UsageError(f"--column {name}: no run has a label or column with this name")
    columns = (
        *(_NAMED[:1] if named else _NAMED),
        *(Column(name, Unit.TEXT, "a label", Combine.SAME, is_proper=True) for name in named),
        *(same(name, unit, "a measure of the run") for name, unit in units.items()),
        *_LISTED,
    )
    table = TableSpec("runs", "stored runs", columns)
    rows = [_listed(run, units) | {name: run.text_of(name) for name in named} for run in runs]
    unsorted = Table.of_rows(rows, [column.name for column in columns])
    result = Result("runs", ResultSpec((table,)), {"runs": _sorted(unsorted, sort, is_reversed)})
    title = (
        Note.of("{n:count} run(s) in {path}", n=len(runs), path=str(store.path))
        if runs
        else _empty_note(store, labels)
    )
    return Comparison("runs", {"runs": result}, (title,), about={"runs": table.about})


def _empty_note(store: Store, labels: Mapping[str, str]) -> Note:
    """Return the note for an empty list: no run has the labels, or the database is empty."""
    runs_count = len(store.listed()) if labels else 0
    if runs_count:
        labels_text = " ".join(f"{name}={text}" for name, text in labels.items())
        return Note.of(
            "None of the {n:count} run(s) in {path} has {asked}. List all: `traceprof runs list`.",
            n=runs_count,
            path=str(store.path),
            asked=labels_text,
        )
    return Note.of(
        "{path} contains no runs. Add a run with `traceprof runs add TRACE`, or with --save of "
        "`traceprof record` and `traceprof analyze`.",
        path=str(store.path),
    )


def recorded_by(environment: Mapping[str, str]) -> str:
    """Return the profiler and recorder of a run, such as "traceprof (cupti)"; "" if unknown."""
    profiler, recorder = environment.get("profiler", ""), environment.get("recorder", "")
    return f"{profiler} ({recorder})" if profiler and recorder else profiler or recorder


def program_of(command: str) -> str:
    """Return the script or module of a command, otherwise its program; "" for an empty command."""
    words = command.split()
    script = next((word for word in words if word.endswith(".py")), "")
    if not script and "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
    return (script or (words[0] if words else "")).rpartition("/")[2]


def ended_as(environment: Mapping[str, str], ended: Sequence[str]) -> str:
    """Return how the program ended, such as "failed (exit code 1)"; "" if unknown.

    ``ended`` has one entry per start of each rank.
    """
    code = environment.get("exit_code", "")
    if code:
        return "finished" if code == "0" else f"failed (exit code {code})"
    known = [text for text in ended if text]
    if not known:
        return ""
    counts = ((how, known.count(how)) for how in ("failed", "killed"))
    words = [f"{n} of {len(known)} starts {how}" for how, n in counts if n]
    return ", ".join(words) or "finished"


def _sorted(table: Table, column: str | None, is_reversed: bool) -> Table:
    if column is None:
        return table.take(slice(None, None, -1)) if is_reversed else table
    if column not in table:
        raise UsageError(
            f"--sort {column}: no such column; {_available(table)}; --measure adds more"
        )
    return table.in_order(f"-{column}" if is_reversed else column)


def _listed(run: Kept, measures: Iterable[str]) -> dict[str, Any]:
    return {
        "name": run.name,
        "number": run.number,
        "labels": " ".join(f"{name}={value}" for name, value in run.labels.items()),
        "started": _utc(run.started_utc_ns),
        "added": run.added,
        "ended": ended_as(run.environment, run.ended),
        "recorded_by": recorded_by(run.environment),
        "program": program_of(run.command),
        "format": run.origin,
        "devices_count": run.devices_count,
        "steps_count": run.steps_count,
        **{name: run.measures[name].value for name in measures if name in run.measures},
    }


def record_of_runs(runs: Sequence[Summary]) -> Comparison:
    """Return the record of one or more runs, with a column for each run."""
    names = _columns_of(runs)
    parts = {
        "run": ("run", [_facts(run) for run in runs]),
        "environment": ("environment", [dict(run.environment) for run in runs]),
        "labels": ("labels", [dict(run.labels) for run in runs]),
        "measures": ("measures", [_measures(run) for run in runs]),
        "kept": ("stored tables (show one with --table NAME)", [_kept(run) for run in runs]),
    }
    results = {
        part: _side_by_side(part, about, names, cells) for part, (about, cells) in parts.items()
    }
    return Comparison(
        " · ".join(run.name for run in runs),
        {part: result for part, result in results.items() if len(result.table)},
        notes=tuple(_notes(runs)),
        warnings=tuple(note for run in runs for note in caveats_of_run(run.name, run.notes)),
        about={part: about for part, (about, _) in parts.items()},
    )


def table_of_runs(runs: Sequence[Summary], name: str) -> Comparison:
    """Return a stored table of ``runs``, stacked, with the run name as first column.

    ``name`` is a table of `SUMMARY`, an analysis (its first table), or ``analysis.table``.

    Raises:
        UsageError: no run has this table.
    """
    found = [(run, *found_table) for run in runs if (found_table := _table(run, name)) is not None]
    if not found:
        known = list(dict.fromkeys(kept for run in runs for kept in _kept(run)))
        raise UsageError(f"no stored table {name!r}; {_available(known)}")
    columns: dict[str, Column] = {"run": key("run", "name of the run")}
    for _, spec, _ in found:
        columns |= {column.name: column for column in spec if column.name not in columns}
    spec = TableSpec(name, found[0][1].about, tuple(columns.values()))
    rows = Table.stacked([table.assign(run=run.name) for run, _, table in found])
    result = Result(name, ResultSpec((spec,)), {name: spec.of_rows(rows)})
    return Comparison(
        " · ".join(run.name for run, _, _ in found), {name: result}, about={name: spec.about}
    )


def as_typed(runs: Sequence[Summary]) -> Comparison:
    """Return runs that were entered as table rows as their original tables, one per heading.

    Raises:
        UsageError: no run was entered in a table.
    """
    found: dict[tuple[str, ...], list[Summary]] = {}
    for run in runs:
        typed = run.table("typed")
        if len(typed):
            title = run.labels.get("table", "")
            found.setdefault((title, *map(str, typed["heading"])), []).append(run)
    if not found:
        raise UsageError("none of these runs was entered in a table")
    results = {}
    for number, ((_, *heading), group) in enumerate(found.items(), 1):
        name = f"typed_{number}" if len(found) > 1 else "typed"
        spec = TableSpec(
            name,
            _AS_TYPED,
            tuple(
                Column(
                    cell_name,
                    Unit.TEXT,
                    "text as entered",
                    Combine.SAME,
                    is_proper=True,
                    is_typed=True,
                )
                for cell_name in heading
            ),
        )
        cells = zip(*([*map(str, run.table("typed")["cell"])] for run in group), strict=True)
        table = Table(dict(zip(heading, map(objects, cells), strict=True)))
        results[name] = Result(name, ResultSpec((spec,)), {name: table})
    titles = dict(zip(results, (title or _AS_TYPED for title, *_ in found), strict=True))
    return Comparison(_AS_TYPED, results, about=titles)


def _table(run: Summary, name: str) -> tuple[TableSpec, Table] | None:
    """Return a stored table and its specification; None if the run does not have it."""
    if name in run.tables:
        return SUMMARY.table(name), run.tables[name]
    analysis, _, table = name.partition(".")
    result = run.results.get(analysis)
    if result is None:
        return None
    table = table or result.spec.tables[0].name
    if table not in result.tables:
        return None
    return result.spec.table(table), result.tables[table]


def _side_by_side(
    part: str, about: str, names: Sequence[str], cells: Sequence[Mapping[str, Any]]
) -> Result:
    """Return a table with a row for each name in ``cells`` and a column for each run."""
    rows = list(dict.fromkeys(name for values in cells for name in values))
    columns = {
        part: objects(rows),
        **{
            name: objects(values.get(row) for row in rows)
            for name, values in zip(names, cells, strict=True)
        },
    }
    of_runs = (
        Column(name, Unit.TEXT, f"value for {name}", Combine.SAME, is_proper=True) for name in names
    )
    spec = TableSpec(part, about, (key(part, "name of the value"), *of_runs))
    return Result(part, ResultSpec((spec,)), {part: Table(columns)})


def _columns_of(runs: Sequence[Summary]) -> list[str]:
    """Return a unique column name for each run."""
    taken = {"run", "environment", "labels", "measures", "kept"}
    names: list[str] = []
    for run in runs:
        numbered = (f"{run.name} ({number})" for number in count(2))
        names.append(next(name for name in chain([run.name], numbered) if name not in taken))
        taken.add(names[-1])
    return names


def _facts(run: Summary) -> dict[str, Any]:
    facts = {
        "format": run.origin,
        "workload": run.workload,
        "command": run.command,
        "recorded by": recorded_by(run.environment),
        "ended": ended_as(run.environment, [*map(str, run.table("attempts").get("ended", ()))]),
        "started": _utc(run.started_utc_ns),
        "window": run.window,
        "window length": None if run.window_ns is None else Note.of("{ns:ns}", ns=run.window_ns),
        "steps": _counted(run.steps_count),
        "devices": _counted(run.devices_count),
        "files": ", ".join(source.path for source in run.sources),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _counted(count: int | None) -> Note | None:
    return None if count is None else Note.of("{n:count}", n=count)


def _measures(run: Summary) -> dict[str, Any]:
    return {str(row["measure"]): _measure(row) for row in run.table("measures").rows()}


def _measure(row: Mapping[str, Any]) -> Note | None:
    unit, value = _unit(row.get("unit") or ""), row.get("value")
    if is_unknown(value):
        return None
    interval = {"low": row.get("low"), "high": row.get("high")}
    if any(map(is_unknown, interval.values())):
        return Note.of(f"{{value:{unit}}}", value=value)
    template = f"{{value:{unit}}} ({{low:{unit}}} … {{high:{unit}}})"
    return Note(template, {"value": value, **interval})


def _kept(run: Summary) -> dict[str, Any]:
    """Return the row count of each stored table, by the name that `table_of_runs` accepts."""
    counts = {name: len(table) for name, table in run.tables.items()}
    for name, result in run.results.items():
        first = result.spec.tables[0].name
        for table, rows in result.tables.items():
            is_alone = table == first and name not in run.tables
            counts[name if is_alone else f"{name}.{table}"] = len(rows)
    return {name: Note.of("{n:count} row(s)", n=count) for name, count in counts.items()}


def _notes(runs: Sequence[Summary]) -> Iterator[Note]:
    """Yield the notes of the runs; a note that several runs share is listed once."""
    named = [(run.name, note) for run in runs for note in run.notes if not is_caveat(note)]
    counts = Counter((note.text, str(note.values)) for _, note in named)
    for name, note in named:
        n = counts.pop((note.text, str(note.values)), 0)
        if n > 1:
            yield Note.of(
                "{run}: {note} (the same for {n:count} other run(s))", run=name, note=note, n=n - 1
            )
        elif n:
            yield note if len(runs) == 1 else Note.of("{run}: {note}", run=name, note=note)


def _unit(name: str) -> Unit:
    return Unit(name) if name in {unit.value for unit in Unit} else Unit.NUMBER


def _utc(ns: int | None) -> str:
    if ns is None or ns < FIRST_EPOCH_NS:
        return ""
    return datetime.fromtimestamp(ns // _S, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _available(names: Iterable[str]) -> str:
    return f"available: {', '.join(names) or 'none'}"
