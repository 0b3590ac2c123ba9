"""The answer to a question about a run: analysis results for one window, and the verdict.

Results are read from the user's cache if the files are unchanged, and stored there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traceprof.errors import NotRecordedError
from traceprof.measures import load_analysis
from traceprof.measures.analyses import STEP_TABLES
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.main_loop import kernel_time_inside
from traceprof.measures.workload import Workload, workload
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, TableSpec
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import TraceInfo
from traceprof.session.caveats import Caveats, missing_in, refused, refuses_with_caveats
from traceprof.session.kept_answers import KeptAnswers
from traceprof.session.run import Answers, Run, tables_of
from traceprof.session.selection import Selection
from traceprof.session.shares import parts_of
from traceprof.session.tried import with_measured
from traceprof.session.verdict import Verdict, make_verdict

PAGE: Final = (
    *("findings", "steps", "rank-steps", "breakdown", "idle", "phases", "kernels"),
    *("collectives", "copies", "ranges", "operators", "mfu"),
)
"""The analyses of the page of ``traceprof analyze``, as far as their data was recorded."""
_WITHOUT_GPU_TIME: Final = ("range-times",)
"""Further analyses of the page of a recording without GPU time."""

_ADVICE: Final = "findings"

ONE_OFF: Final = TableSpec.of("""
    table one_off: one row per process and kind of cost that the run paid once, the longest first
    key process: the process
    key kind: compiling, loading kernels, checkpoint, evaluation, warm-up or loading
    same count: how often; of warm-up, how many steps
    same total_ns: how long in the whole recording; no time counts twice
    same outside_ns: how much of that lies outside the window
    same at_ns: when the first of it began
    same until_ns [at_ns]: when the last of it ended
    """)
"""The one-time costs of a run, as the page shows them."""


@dataclass(frozen=True, slots=True)
class Document:
    """Everything that an answer contains. Renderers only format it and measure nothing.

    ``span`` is the whole run, and ``selection`` is the window of the results. ``lost`` describes
    GPU activity that is missing anywhere in the recording (`traceprof.session.caveats`).
    ``missing`` gives the reasons why other analyses have no result. ``recorded`` names the
    recorded tables. ``ranks`` maps processes to ranks. ``hardware`` is the number of used GPUs by
    model name. A page also has ``workload`` and ``one_off``, the one-time costs with the columns
    of `ONE_OFF`.
    """

    info: TraceInfo
    span: TimeWindow
    selection: Selection
    results: Mapping[str, Result]
    missing: Mapping[str, str] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()
    ranks: Mapping[int, int] = field(default_factory=dict)
    hardware: Mapping[str, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    workload: Workload | None = None
    one_off: Table | None = None
    lost: tuple[Note, ...] = ()

    @property
    def caveats(self) -> Caveats:
        """The caveats of the results: warnings of readers, and missing GPU activity."""
        return Caveats(self.info.warnings, self.lost)

    def ns_after_start(self, instant_ns: int) -> int:
        """Convert a time on the trace's clock to ns after the start of the run."""
        return instant_ns - self.span.start_ns


@refuses_with_caveats
def answer(run: Run, names: Sequence[str], *, strict: bool = False) -> Document:
    """Return the results of the analyses ``names`` for the window of ``run``.

    Without a chosen window and without known steps, analyses that sum up a recording use all of it.

    Raises:
        NotRecordedError: ``strict``, and the trace lacks the data of an analysis.
        UsageError: an analysis does not exist, or the window is invalid.
    """
    sums_up = run.window is None and names and all(load_analysis(name).sums_up for name in names)
    if not sums_up or _has_steps(run):
        return _answer(run, names, strict=strict)
    found = _answer(run.within(_WHOLE), names, strict=strict)
    selection = replace(found.selection, notes=(_ALL,), reason=_ALL)
    return replace(found, selection=selection)


_WHOLE: Final = "all"
_ALL: Final = Note("no steps are known: all that was recorded")


def _has_steps(run: Run) -> bool:
    """Return whether the run has steps, from the cache if possible."""
    kept = KeptAnswers(run.cache, None)
    has_steps: bool | None = kept.value(("has_steps",))
    if has_steps is None:
        has_steps = len(steps_of_ranks(run.of_ranks(STEP_TABLES))) > 0
        kept.keep({("has_steps",): has_steps})
    return has_steps


def _answer(run: Run, names: Sequence[str], *, strict: bool) -> Document:
    """Return the results for the window of ``run``, from the cache as far as possible."""
    kept = KeptAnswers(run.cache, run.window)
    values = ((name, kept.value(("result", name))) for name in names)
    known = {name: value for name, value in values if value is not None}
    not_kept = [name for name in names if name not in known]
    lost = missing_in(run, tables_of(not_kept)) if not_kept else ()
    answers = run.answers(not_kept, strict=strict) if not_kept else Answers({}, {})
    new: dict[str, Result | str] = {**answers.results, **answers.missing}
    all_results = {name: known[name] if name in known else new[name] for name in names}
    results = {name: value for name, value in all_results.items() if not isinstance(value, str)}
    missing = {name: value for name, value in all_results.items() if isinstance(value, str)}
    if strict:
        empty = [result for result in results.values() if result.lacks]
        missing |= {result.name: result.lacks for result in empty if _lacks_data(run, result)}
    to_keep: dict[tuple[object, ...], Any] = {
        ("result", name): value for name, value in new.items()
    }
    frames = (frame for result in results.values() for frame in result.tables.values())
    has_processes = any("process" in frame for frame in frames)
    # A document that was made with the ranks of processes also serves results without processes.
    keys = [("about", True)] if has_processes else [("about", True), ("about", False)]
    document = None if not_kept else next(filter(None, map(kept.value, keys)), None)
    if document is None:
        ranks = run.of_ranks(frozenset({"processes"} if has_processes else ()))
        lost = lost if not_kept else missing_in(run)
        document = replace(document_about(ranks, run.selection, {}), lost=lost)
        to_keep["about", has_processes] = document
    kept.keep(to_keep)
    if strict and missing:
        raise refused(NotRecordedError(next(iter(missing.values()))), document.caveats.notes)
    if _ADVICE in results:
        results[_ADVICE] = with_measured(results[_ADVICE], run.paths)
    return replace(document, results=results, missing=missing)


def _lacks_data(run: Run, result: Result) -> bool:
    """Return whether a result is empty for the whole recording, and not only in the window."""
    return run.window == _WHOLE or bool(run.within(_WHOLE).result(result.name).lacks)


def document_about(
    ranks: Ranks,
    selection: Selection,
    results: Mapping[str, Result],
    missing: Mapping[str, str] | None = None,
) -> Document:
    """Return a document with ``results`` for the window ``selection`` and the facts of the run."""
    known = ranks_of_processes(ranks)
    return Document(
        info=ranks.info,
        span=ranks.whole.span,
        selection=selection,
        results=results,
        missing=missing or {},
        recorded=ranks.recorded,
        ranks=known if len(set(known.values())) > 1 else {},
        hardware=hardware_of(ranks),
    )


def page(run: Run, names: Sequence[str] = PAGE) -> Document:
    """Return the answer with a verdict; ``names`` contains at least the analyses of `PAGE`."""
    found = answer(run, names)
    if not parts_of(found.results) and "ranges" in found.results:
        more = answer(run, _WITHOUT_GPU_TIME)
        found = replace(found, results={**found.results, **more.results})
    kept = KeptAnswers(run.cache, run.window)
    kept_parts = kept.value(("page", *names))
    if kept_parts is None:
        ranks = run.of_ranks(STEP_TABLES)
        costs = one_off_costs(ranks)
        n_gpus = len(set(gpus_of(ranks).values()))
        verdict = make_verdict(found.results, found.recorded, costs, n_gpus)
        instants = {"at_ns": costs["start_ns"], "until_ns": costs["end_ns"]}
        after = {name: times - found.span.start_ns for name, times in instants.items()}
        selection = _with_coverage(ranks, found.selection)
        kept_parts = verdict, workload(ranks), ONE_OFF.of_rows(costs.assign(**after)), selection
        kept.keep({("page", *names): kept_parts})
    verdict, kind, one_off, selection = kept_parts
    return replace(found, verdict=verdict, workload=kind, one_off=one_off, selection=selection)


_MIN_COVERED_RATIO: Final = 0.5


def _with_coverage(ranks: Ranks, selection: Selection) -> Selection:
    """Return ``selection``; if it leaves out most of the kernel time, its first note says so.

    The user knows what a typed window leaves out. Notes name the windows of a recorder, and unusual
    steps between the others.
    """
    is_part = any(part.info.is_part for part in ranks.whole)
    if selection.asked or is_part or selection.label.endswith(", recorded"):
        return selection
    times = ranks.whole.each(kernel_time_inside, selection.window.hull)
    inside_ns, whole_ns = (sum(column) for column in zip(*times, strict=True))
    if inside_ns >= _MIN_COVERED_RATIO * whole_ns or not selection.notes:
        return selection
    first, *others = selection.notes
    text = "traceprof analyzes only {share:ratio} of the recorded kernel time ({inside:ns} of "
    text += f"{{whole:ns}}); `--window active` covers all of it. {first.text}"
    values = {"share": inside_ns / whole_ns, "inside": inside_ns, "whole": whole_ns}
    note = Note.of(text, **first.values, **values)
    return replace(selection, notes=(note, *others), reason=note)


def hardware_of(ranks: Ranks) -> Mapping[str, int]:
    """Return the number of used GPUs by model name."""
    return dict(Counter(name for _, _, name in dict.fromkeys(gpus_of(ranks).values()) if name))


def ranks_of_processes(ranks: Ranks) -> dict[int, int]:
    """Return the rank of each process that has one."""
    return {
        process: rank
        for part in ranks
        for process, rank in zip(
            *(part.processes[n].tolist() for n in ("process", "rank")), strict=True
        )
        if rank != ABSENT
    }
