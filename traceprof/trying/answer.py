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
from traceprof.trying.changes import CANNOT, parse_changes, worth_trying
from traceprof.trying.experiment import Experiment, Wanted, experiment, pilot, savers
from traceprof.trying.judged import ALIKE, FASTER, Outcome
from traceprof.trying.runs import TriedRun, TryPlan, changed_files, files_in, scratch_of

_NOTEBOOKS: Final = frozenset(
    {"jupyter", "jupyter-lab", "jupyter-notebook", "ipython", "papermill"}
)
_MOST_FILES: Final = 8

_TRIED: Final = ResultSpec.of("""
    table changes: a row for each change, and for those that were made together
    key change: what was changed
    derived verdict: faster, slower, no difference shown, or how it failed
    derived saving_ratio: the share of the step that it saves; below 0: it costs
    derived low_ratio: the lower end of its 95 % interval
    derived high_ratio: the upper end
    derived before_ns: the mean step of the unchanged program
    derived after_ns: the mean step with it
    derived saving_ns: how much of a step it saves
    derived predicted_ratio: what the findings of the trace say that it would save
    derived losses: how they differ from those of the unchanged program
    derived memory_bytes: most memory with it: of the GPU, without one of the process
    derived memory_before_bytes: the same of the unchanged program
    derived reason: why it failed
    derived breaks: what to look out for
    derived lines: what to write into the program
    table runs: every run of the program, in their order
    key run [number]: its number
    derived change: what was changed; empty: nothing
    derived steps_count: steps that were measured
    derived step_ns: their mean
    derived median_ns: their median
    derived loss [number]: the last loss
    derived memory_bytes: most memory
    derived took_ns: the run from its start to its end
    derived failure: how it failed; empty: it did not
    """)
UNTRIED: Final = ResultSpec.of("""
    table untried: advice of the trace that nobody can follow from outside
    key rule: the finding
    derived saving_ratio: what it says could be saved
    derived advice: what to do
    """)
_ABOUT: Final = {TRIED: "what each change did", "untried": "what cannot be changed from outside"}


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
            say("what the program writes goes to where it writes it; --scratch runs it in a copy")
            before = files_in(here)
        first = pilot(plan, request.wanted)
        chosen = parse_changes(request.changes, first.facts) if asked else []
        chosen = chosen or worth_trying(first.facts, predicted)
        found = experiment(plan, request.wanted, first, chosen, predicted)
        changed = [] if request.is_scratch else changed_files(here, before)
    compared = _told(request, found, changed)
    if request.trace is not None:
        measured = list(_of_rules(found))
        if measured and request.trace.is_file():
            tried.leave_beside(request.trace, measured)
    return compared, found


def _check(command: Sequence[str]) -> None:
    names = {Path(part).name for part in command[:3]}
    if names & _NOTEBOOKS or any(part.endswith(".ipynb") for part in command):
        raise UsageError(
            "a notebook cannot be tried: its cells run in a kernel that stays, and a run from "
            "start to end is needed; make it a script: jupyter nbconvert --to script"
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
            "{change} saves {saved:ns} of a step of {base:ns}: {share:ratio} (95 %: {low:ratio} to "
            "{high:ratio})",
            change=best.name,
            saved=one.base - one.new,
            base=one.base,
            share=-one.change_ratio,
            low=-one.high_ratio,
            high=-one.low_ratio,
        )
        yield Note.of("write: {lines}", lines="; ".join(part.lines for part in best.changes))
        if best.losses is not None:
            yield Note.of("its losses: {losses}", losses=best.losses)
    alike = [one for one in outcomes if one.verdict == ALIKE]
    if best is None and alike:
        yield Note("nothing that was tried makes a difference that is shown")
    if alike:
        reach = max(one.reach_ratio for one in alike)
        yield Note.of(
            "no difference is shown of {names}, within {reach:ratio}",
            names=", ".join(one.name for one in alike),
            reach=reach,
        )
    if not outcomes:
        yield Note("no change applies to what was seen of the program: name some by --change")


def _notes(found: Experiment, changed: Sequence[str]) -> Iterator[Note]:
    yield Note.of(
        "{runs:count} runs, {steps:count} steps of each after {warmup:count} of warm-up, without a "
        "profiler; means of steps, in turns with the unchanged program",
        runs=len(found.order),
        steps=found.plan.n_steps,
        warmup=found.plan.warmup,
    )
    for one in found.outcomes():
        known = one.predicted_ratio
        if known is not None and one.difference is not None and one.verdict in (FASTER, ALIKE):
            yield Note.of(
                "{change}: the trace's findings say {said:ratio}, it saved {saved:ratio}",
                change=one.name,
                said=known,
                saved=one.saving_ratio,
            )
    for remark in found.remarks:
        yield Note(remark)
    if changed:
        yield Note.of(
            "the runs wrote {n:count} file(s) here: {names}",
            n=len(changed),
            names=", ".join(changed[:_MOST_FILES]) + (" …" if len(changed) > _MOST_FILES else ""),
        )


def _of_rules(found: Experiment) -> Iterator[tried.TriedAdvice]:
    """Yield what single changes saved, by the rules that advise them."""
    for one in found.outcomes():
        if len(one.changes) == 1 and one.difference is not None:
            for rule in one.changes[0].change.rules:
                yield tried.TriedAdvice(rule, one.name, one.saving_ratio)
