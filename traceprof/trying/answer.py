"""`traceprof try`: from a command line to an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from traceprof.comparison import TRIED, Comparison
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.recording.program import find_program
from traceprof.session import tried
from traceprof.session.answer import answer
from traceprof.session.run import open_run
from traceprof.trying.changes import CANNOT, changes_to_try, parse_changes
from traceprof.trying.experiment import Experiment, Wanted, experiment, pilot, savers
from traceprof.trying.judged import ALIKE, FASTER, Outcome
from traceprof.trying.runs import TriedRun, TryPlan, changed_files, files_in, scratch_of

_NOTEBOOKS: Final = frozenset(
    {"jupyter", "jupyter-lab", "jupyter-notebook", "ipython", "papermill"}
)
_MOST_FILES: Final = 8

_TRIED: Final = ResultSpec.of("""
    table changes: one row per change, or per set of changes applied together
    key change: the name of the change
    derived verdict: faster, slower, no difference shown, or the kind of failure
    derived saving_ratio: the saving as a share of step time; negative if the change costs time
    derived low_ratio: the lower end of the 95% confidence interval of the saving
    derived high_ratio: the upper end of the 95% confidence interval of the saving
    derived before_ns: the mean step time of the unchanged program
    derived after_ns: the mean step time with the change
    derived saving_ns: the saving per step
    derived predicted_ratio: the saving that the findings of the trace predict
    derived losses: how the losses differ from the losses of the unchanged program
    derived memory_bytes: peak GPU memory with the change; without a GPU, of the process
    derived memory_before_bytes: peak memory of the unchanged program
    derived reason: the reason for a failure
    derived breaks: risks of the change
    derived lines: the code to add to the program
    table runs: one row per run of the program, in order
    key run [number]: the number of the run
    derived change: the change that was applied; empty for the unchanged program
    derived steps_count: the number of measured steps
    derived step_ns: the mean step time
    derived median_ns: the median step time
    derived loss [number]: the last loss
    derived memory_bytes: peak memory
    derived took_ns: the duration of the run
    derived failure: the kind of failure; empty if the run did not fail
    """)
UNTRIED: Final = ResultSpec.of("""
    table untried: advice from the trace that needs a change of the program's code
    key rule: the finding
    derived saving_ratio: the predicted saving as a share of step time
    derived advice: what to do
    """)
_ABOUT: Final = {TRIED: "effect of each change", "untried": "advice that needs code changes"}


@dataclass(frozen=True, slots=True)
class TryRequest:
    """What is to be tried.

    ``changes`` are texts such as ``workers=8`` (empty: what applies to the program, and what the
    trace ``trace`` advises). ``is_scratch``: in a copy of the working folder.
    """

    command: Sequence[str]
    changes: Sequence[str] = ()
    trace: Path | None = None
    wanted: Wanted = field(default_factory=Wanted)
    step_from: str = ""
    is_scratch: bool = False


def try_changes(request: TryRequest) -> tuple[Comparison, Experiment]:
    """Try changes in a program; return what each of them did, in words and as it was measured.

    Raises:
        UsageError: a change is not known, or the program is one that cannot be run again.
        RecordingError: the unchanged program fails, or has no steps.
        TraceError: the trace cannot be read.
    """
    _check(request.command)
    find_program(request.command)
    asked = parse_changes(request.changes)
    predicted = {} if request.trace is None else _predicted(request.trace)
    say = request.wanted.say
    with ExitStack() as stack:
        here = Path.cwd()
        plan = TryPlan(request.command, 0, 0, step_from=request.step_from)
        if request.is_scratch:
            plan = replace(plan, folder=stack.enter_context(scratch_of(here, say)))
            before = {}
        else:
            say("the program writes its files in this folder; use --scratch to run it in a copy")
            before = files_in(here)
        first = pilot(plan, request.wanted)
        chosen = parse_changes(request.changes, first.facts) if asked else []
        chosen = chosen or changes_to_try(first.facts, predicted)
        found = experiment(plan, request.wanted, first, chosen, predicted)
        changed = [] if request.is_scratch else changed_files(here, before)
    compared = _told(request, found, changed)
    if request.trace is not None:
        measured = list(_of_rules(found))
        if measured and request.trace.is_file():
            tried.write_tried_savings(request.trace, measured)
    return compared, found


def _check(command: Sequence[str]) -> None:
    names = {Path(part).name for part in command[:3]}
    if names & _NOTEBOOKS or any(part.endswith(".ipynb") for part in command):
        raise UsageError(
            "cannot try changes in a notebook, because its cells run in one kernel; convert it to "
            "a script: jupyter nbconvert --to script NOTEBOOK"
        )


def _predicted(trace: Path) -> dict[str, float]:
    """Return what the findings of a trace say could be saved, by their rule."""
    found = answer(open_run([trace]), ["findings"], strict=True)
    best: dict[str, float] = {}
    for row in found.results["findings"].table.rows():
        ratio = row["saving_ratio"]
        if ratio is not None and ratio == ratio and ratio > best.get(row["rule"], 0.0):
            best[row["rule"]] = float(ratio)
    return best


def _told(request: TryRequest, found: Experiment, changed: Sequence[str]) -> Comparison:
    outcomes = found.outcomes()
    rows = [_row(found, one) for one in outcomes]
    runs = [_run_row(number, run) for number, run in enumerate(found.order, 1)]
    results = {
        TRIED: Result(
            TRIED,
            _TRIED,
            {
                "changes": _TRIED.table("changes").of_rows(rows),
                "runs": _TRIED.table("runs").of_rows(runs),
            },
        )
    }
    untried = [
        {"rule": rule, "saving_ratio": ratio, "advice": CANNOT[rule]}
        for rule, ratio in sorted(found.predicted.items(), key=lambda own: -own[1])
        if rule in CANNOT
    ]
    if untried:
        table = UNTRIED.table("untried").of_rows(untried)
        results["untried"] = Result("untried", UNTRIED, {"untried": table})
    return Comparison(
        " ".join(request.command),
        results,
        verdict=tuple(_verdict(outcomes)),
        notes=tuple(_notes(found, changed)),
        about=_ABOUT,
    )


def _row(found: Experiment, one: Outcome) -> dict[str, Any]:
    last = one.runs[-1] if one.runs else TriedRun()
    known = one.difference
    row: dict[str, Any] = {"change": one.name, "verdict": one.verdict}
    if known is not None:
        row |= {
            "before_ns": known.base,
            "after_ns": known.new,
            "saving_ns": known.base - known.new,
            "saving_ratio": -known.change_ratio,
            "low_ratio": -known.high_ratio,
            "high_ratio": -known.low_ratio,
        }
    peaks = [run.peak_bytes for run in found.base if run.peak_bytes is not None]
    return row | {
        "predicted_ratio": one.predicted_ratio,
        "losses": one.losses,
        "memory_bytes": last.peak_bytes,
        "memory_before_bytes": max(peaks, default=None),
        "reason": "" if one.failed is None else one.failed.reason,
        "breaks": "; ".join(part.change.breaks for part in one.changes),
        "lines": "; ".join(part.lines for part in one.changes),
    }


def _run_row(number: int, run: TriedRun) -> dict[str, Any]:
    steps = sorted(run.step_ns.tolist())
    return {
        "run": number,
        "change": run.name,
        "steps_count": len(steps),
        "step_ns": run.mean_ns if steps else None,
        "median_ns": steps[len(steps) // 2] if steps else None,
        "loss": [*run.losses.values()][-1] if run.losses else None,
        "memory_bytes": run.peak_bytes,
        "took_ns": run.took_s * 1e9,
        "failure": run.failure,
    }


def _verdict(outcomes: Sequence[Outcome]) -> Iterator[Note]:
    best = next(iter(savers(outcomes)), None)
    if best is not None and best.difference is not None:
        one = best.difference
        yield Note.of(
            "{change} saves {saved:ns} of {base:ns} per step: {share:ratio} (95% confidence: "
            "{low:ratio} to {high:ratio})",
            change=best.name,
            saved=one.base - one.new,
            base=one.base,
            share=-one.change_ratio,
            low=-one.high_ratio,
            high=-one.low_ratio,
        )
        yield Note.of("add to the program: {lines}", lines="; ".join(p.lines for p in best.changes))
        if best.losses is not None:
            yield Note.of("losses with this change: {losses}", losses=best.losses)
    alike = [one for one in outcomes if one.verdict == ALIKE]
    if best is None and alike:
        yield Note("no change makes a significant difference")
    if alike:
        reach = max(one.reach_ratio for one in alike)
        yield Note.of(
            "no significant difference, within {reach:ratio}: {names}",
            names=", ".join(one.name for one in alike),
            reach=reach,
        )
    if not outcomes:
        yield Note("no change applies to the program: use --change to try a specific change")


def _notes(found: Experiment, changed: Sequence[str]) -> Iterator[Note]:
    yield Note.of(
        "{runs:count} runs without a profiler, alternating with the unchanged program: mean of "
        "{steps:count} steps per run, after {warmup:count} warm-up steps",
        runs=len(found.order),
        steps=found.plan.n_steps,
        warmup=found.plan.warmup,
    )
    for one in found.outcomes():
        known = one.predicted_ratio
        if known is not None and one.difference is not None and one.verdict in (FASTER, ALIKE):
            yield Note.of(
                "{change}: predicted saving {said:ratio} (from the trace), measured {saved:ratio}",
                change=one.name,
                said=known,
                saved=one.saving_ratio,
            )
    for remark in found.remarks:
        yield Note(remark)
    if changed:
        yield Note.of(
            "the runs wrote {n:count} file(s) in this folder: {names}",
            n=len(changed),
            names=", ".join(changed[:_MOST_FILES]) + (" …" if len(changed) > _MOST_FILES else ""),
        )


def _of_rules(found: Experiment) -> Iterator[tried.TriedAdvice]:
    """Yield what single changes saved, by the rules that advise them."""
    for one in found.outcomes():
        if len(one.changes) == 1 and one.difference is not None:
            for rule in one.changes[0].change.rules:
                yield tried.TriedAdvice(rule, one.name, one.saving_ratio)
