"""Run `traceprof try`: from a command line to the effect of each change."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from traceprof.trying.changes import changes_to_try, parse_changes
from traceprof.trying.experiment import Experiment, Wanted, experiment, find_savings, pilot
from traceprof.trying.judged import (
    ALIKE,
    FASTER,
    MEMORY,
    MORE,
    SLOWER,
    TIME,
    UNDECIDED,
    Outcome,
    evaluate,
)
from traceprof.trying.runs import TriedRun, TryPlan, changed_files, files_in, scratch_copy

_NOTEBOOKS: Final = frozenset(
    {"jupyter", "jupyter-lab", "jupyter-notebook", "ipython", "papermill"}
)
_MAX_LISTED_FILES: Final = 8
_MIN_LOAD_CORES: Final = 0.5
_MIN_GROWTH_RATIO: Final = 0.05
"""Peak memory of the unchanged program varies by up to this ratio."""

_TRIED: Final = ResultSpec.of("""
    table changes: one row per change, or per set of changes applied together
    key change: the name of the change
    derived verdict: faster, slower, no difference shown, not decided, or the kind of failure
    derived saving_ratio: the saving as a share of step time, or of peak memory with --goal memory;
        negative if the change costs time or memory
    derived low_ratio: the lower end of the 95% confidence interval of the saving
    derived high_ratio: the upper end of the 95% confidence interval of the saving
    derived runs_count: the number of pairs of an unchanged run and a run with the change
    derived before_ns: the step time of the unchanged program: the geometric mean of its runs
    derived after_ns: the step time with the change: the geometric mean of its runs
    derived before_cpu_ns: the CPU time per step of the unchanged program, as the mean of its runs
    derived after_cpu_ns: the CPU time per step with the change, as the mean of its runs
    derived saving_ns: the saving per step
    derived saving_bytes: the saving of peak memory; only with --goal memory
    derived predicted_ratio: the saving that the findings of the trace predict
    derived losses: how the losses differ from the losses of the unchanged program
    derived equal: what must stay equal with the change
    derived broken: what had to stay equal and did not; empty if nothing did
    derived memory_bytes: peak GPU memory with the change; without a GPU, of the process; with
        --goal memory, the geometric mean of its runs
    derived memory_before_bytes: peak memory of the unchanged program
    derived reason: the reason for a failure, or what would decide the effect
    derived breaks: risks of the change
    derived lines: the code to add to the program
    table runs: one row per run of the program, in order
    key run [number]: the number of the run
    derived change: the change that was applied; empty for the unchanged program
    derived steps_count: the number of measured steps
    derived step_ns: the mean step time
    derived median_ns: the median step time
    derived cpu_ns: the CPU time per step of the program's processes, without loader workers
    derived load [number]: the number of CPU cores that other programs used during the run
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
_CODE_CHANGE_ADVICE: Final[Mapping[str, str]] = {
    "host_sync": "Keep losses on the GPU and read them every 50 steps: the program waits for the "
    "GPU in .item(), .cpu(), or print.",
    "host_code": "Move Python work out of the training loop.",
    "slow_steps": "Log, evaluate, and save checkpoints less often: single steps take longer.",
    "straggler": "Check the data and the machine of the straggler: the other ranks wait for it.",
}
"""Advice for findings that need a change of the program's code."""
_ABOUT: Final = {TRIED: "effect of each change", "untried": "advice that needs code changes"}


@dataclass(frozen=True, slots=True)
class TryRequest:
    """What to try.

    ``changes`` are texts such as ``workers=8``. If it is empty, traceprof tries the changes that
    apply to the program, starting with the advice from ``trace``. With ``is_scratch`` the program
    runs in a copy of the working folder. With ``is_offline`` the usual services receive nothing.
    """

    command: Sequence[str]
    changes: Sequence[str] = ()
    trace: Path | None = None
    wanted: Wanted = field(default_factory=Wanted)
    step_from: str = ""
    is_scratch: bool = False
    is_offline: bool = False


def try_changes(request: TryRequest) -> tuple[Comparison, Experiment]:
    """Try changes of a program; return their effects as a comparison, and the measured runs.

    Raises:
        UsageError: a change is unknown, or the program cannot be run repeatedly.
        RecordingError: the unchanged program fails or has no steps.
        TraceError: the trace cannot be read.
    """
    _refuse_notebooks(request.command)
    find_program(request.command)
    requested = parse_changes(request.changes)
    is_predicted = request.trace is not None and request.wanted.goal != MEMORY
    predicted = _predicted_savings(request.trace) if request.trace and is_predicted else {}
    say = request.wanted.say
    with ExitStack() as stack:
        here = Path.cwd()
        plan = TryPlan(
            request.command, 0, 0, step_from=request.step_from, is_offline=request.is_offline
        )
        say(_what_runs_do(request))
        if request.is_scratch:
            plan = replace(plan, folder=stack.enter_context(scratch_copy(here, say)))
            before = {}
        else:
            before = files_in(here)
        pilot_run = pilot(plan, request.wanted)
        chosen = parse_changes(request.changes, pilot_run.facts) if requested else []
        for_memory = request.wanted.goal == MEMORY
        chosen = chosen or changes_to_try(pilot_run.facts, predicted, for_memory=for_memory)
        found = experiment(plan, request.wanted, pilot_run, chosen, predicted)
        runs = [pilot_run, *found.order]
        written = {path for run in runs for path in run.written}
        changed = [] if request.is_scratch else changed_files(here, before)
        files = _notes_on_files(here, changed, written, plan.folder or here)
        compared = _make_comparison(request, found, list(files))
    if request.trace is not None and is_predicted:
        measured = list(_tried_advice(found))
        if measured and request.trace.is_file():
            tried.write_tried_savings(request.trace, measured)
    return compared, found


def _refuse_notebooks(command: Sequence[str]) -> None:
    names = {Path(part).name for part in command[:3]}
    if names & _NOTEBOOKS or any(part.endswith(".ipynb") for part in command):
        raise UsageError(
            "cannot try changes in a notebook, because its cells run in one kernel; convert it to "
            "a script: jupyter nbconvert --to script NOTEBOOK"
        )


def _predicted_savings(trace: Path) -> dict[str, float]:
    """Return the largest predicted saving (share of the time) per finding rule of a trace."""
    found = answer(open_run([trace]), ["findings"], strict=True)
    best: dict[str, float] = {}
    for row in found.results["findings"].table.rows():
        ratio = row["saving_ratio"]
        if ratio is not None and ratio == ratio and ratio > best.get(row["rule"], 0.0):
            best[row["rule"]] = float(ratio)
    return best


def _make_comparison(request: TryRequest, found: Experiment, files: Sequence[Note]) -> Comparison:
    outcomes = found.outcomes()
    rows = [_change_row(found, outcome) for outcome in outcomes]
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
        {"rule": rule, "saving_ratio": ratio, "advice": _CODE_CHANGE_ADVICE[rule]}
        for rule, ratio in sorted(found.predicted.items(), key=lambda item: -item[1])
        if rule in _CODE_CHANGE_ADVICE
    ]
    if untried:
        table = UNTRIED.table("untried").of_rows(untried)
        results["untried"] = Result("untried", UNTRIED, {"untried": table})
    return Comparison(
        " ".join(request.command),
        results,
        verdict=tuple(_verdict(found, outcomes)),
        notes=(*_notes(found), *files),
        about=_ABOUT,
    )


def _change_row(found: Experiment, outcome: Outcome) -> dict[str, Any]:
    last = outcome.runs[-1] if outcome.runs else TriedRun()
    difference = outcome.difference
    row: dict[str, Any] = {"change": outcome.name, "verdict": outcome.verdict}
    peaks = [run.peak_bytes for run in found.base if run.peak_bytes is not None]
    before_bytes, after_bytes = max(peaks, default=None), last.peak_bytes
    if difference is not None:
        time = difference
        if outcome.goal == MEMORY:
            time = evaluate(outcome.changes, found.base, outcome.runs).difference or difference
            before_bytes, after_bytes = round(difference.base), round(difference.new)
            row["saving_bytes"] = before_bytes - after_bytes
        row |= {
            "runs_count": difference.base_count,
            "before_ns": time.base,
            "after_ns": time.new,
            "saving_ns": time.base - time.new,
            "saving_ratio": -difference.change_ratio,
            "low_ratio": -difference.high_ratio,
            "high_ratio": -difference.low_ratio,
            "before_cpu_ns": _mean_cpu_ns(found.base),
            "after_cpu_ns": _mean_cpu_ns(outcome.runs),
        }
    return row | {
        "predicted_ratio": outcome.predicted_ratio,
        "losses": outcome.losses,
        "equal": "; ".join(dict.fromkeys(part.change.equal for part in outcome.changes)),
        "broken": outcome.broken or "",
        "memory_before_bytes": before_bytes,
        "memory_bytes": after_bytes,
        "reason": (outcome.undecided or "") if outcome.failed is None else outcome.failed.reason,
        "breaks": "; ".join(part.change.breaks for part in outcome.changes),
        "lines": _lines(found, outcome),
    }


def _lines(found: Experiment, outcome: Outcome) -> str:
    """Return the code to add to the program."""
    return "; ".join(part.lines_in(found.pilot.facts) for part in outcome.changes)


def _mean_cpu_ns(runs: Sequence[TriedRun]) -> float | None:
    """Return the mean CPU time per step of the runs in which it is known."""
    known = [run.cpu_ns for run in runs if math.isfinite(run.cpu_ns)]
    return sum(known) / len(known) if known else None


def _run_row(number: int, run: TriedRun) -> dict[str, Any]:
    steps = sorted(run.step_ns.tolist())
    return {
        "run": number,
        "change": run.name,
        "steps_count": len(steps),
        "step_ns": run.mean_ns if steps else None,
        "median_ns": steps[len(steps) // 2] if steps else None,
        "cpu_ns": run.cpu_ns,
        "load": run.load,
        "loss": [*run.losses.values()][-1] if run.losses else None,
        "memory_bytes": run.peak_bytes,
        "took_ns": run.took_s * 1e9,
        "failure": run.failure,
    }


_COSTS: Final = {
    SLOWER: "{change} makes a step {share:ratio} longer: {cost:ns} more than {base:ns}",
    MORE: "{change} needs {share:ratio} more memory: {cost:bytes} more than {base:bytes}",
}
_SAVINGS: Final = {
    TIME: "{change} saves {cost:ns} of {base:ns} per step: {share:ratio}",
    MEMORY: "{change} saves {cost:bytes} of {base:bytes} of peak memory: {share:ratio}",
}


def _verdict(found: Experiment, outcomes: Sequence[Outcome]) -> Iterator[Note]:
    best = next(iter(find_savings(outcomes)), None)
    if best is not None:
        yield _effect(best, _SAVINGS[best.goal], -1)
        yield Note.of("add to the program: {lines}", lines=_lines(found, best))
        if best.losses is not None:
            yield Note.of("losses with this change: {losses}", losses=best.losses)
        yield from _memory_growth(found, best)
    for outcome in outcomes:
        if outcome.broken is not None:
            yield Note.of(
                "do not use {change} without a test: {broken}",
                change=outcome.name,
                broken=outcome.broken,
            )
        if text := _COSTS.get(outcome.verdict):
            yield _effect(outcome, text, 1)
    yield from _without_effect(outcomes, is_best=best is not None)
    if not outcomes:
        yield Note("no change applies to the program: use --change to try a specific change")


def _memory_growth(found: Experiment, outcome: Outcome) -> Iterator[Note]:
    """Yield a sentence if a change needs more memory than every unchanged run."""
    if outcome.goal == MEMORY:
        return
    before, after = (
        max((run.peak_bytes or 0 for run in runs), default=0) for runs in (found.base, outcome.runs)
    )
    if 0 < before * (1 + _MIN_GROWTH_RATIO) < after:
        yield Note.of(
            "peak memory grows by {share:ratio}, from {before:bytes} to {after:bytes}",
            share=after / before - 1,
            before=before,
            after=after,
        )


def _without_effect(outcomes: Sequence[Outcome], *, is_best: bool) -> Iterator[Note]:
    """Yield sentences on the changes that make no difference, and on those without a verdict."""
    unshown = [outcome for outcome in outcomes if outcome.verdict == ALIKE]
    undecided = [outcome for outcome in outcomes if outcome.verdict == UNDECIDED]
    if not is_best and unshown and not undecided:
        yield Note("no change makes a significant difference")
    if unshown:
        reach = max(outcome.bound_ratio for outcome in unshown)
        yield Note.of(
            "no significant difference, at most {reach:ratio}: {names}",
            names=", ".join(outcome.name for outcome in unshown),
            reach=reach,
        )
    reasons = [outcome.undecided for outcome in undecided if outcome.undecided is not None]
    if reasons:
        yield Note.of(
            "not decided: {names}; {why}",
            names=", ".join(outcome.name for outcome in undecided),
            why=max(reasons, key=lambda reason: reason.values["minutes"]),
        )


def _effect(outcome: Outcome, text: str, sign: int) -> Note:
    """Return a sentence on an effect; ``sign`` is -1 for a saving, and 1 for an additional cost."""
    difference = outcome.difference
    assert difference is not None  # of every outcome that is faster or slower
    ends = sorted((sign * difference.low_ratio, sign * difference.high_ratio))
    return Note.of(
        f"{text} (95% confidence: {{low:ratio}} to {{high:ratio}}; {{runs:count}} runs of each)",
        change=outcome.name,
        cost=sign * (difference.new - difference.base),
        base=difference.base,
        share=sign * difference.change_ratio,
        low=ends[0],
        high=ends[1],
        runs=difference.base_count,
    )


def _notes(found: Experiment) -> Iterator[Note]:
    yield Note.of(
        "{runs:count} runs without a profiler, alternating with the unchanged program: mean of "
        "{steps:count} steps per run, after {warmup:count} warm-up steps",
        runs=len(found.order),
        steps=found.plan.n_steps,
        warmup=found.plan.warmup,
    )
    loads = [run.load for run in found.order if math.isfinite(run.load)]
    if loads and max(loads) >= _MIN_LOAD_CORES:
        yield Note.of(
            "other programs used {mean:number} of {cpus:count} CPU cores on average, and up to "
            "{most:number}: their effect widens the intervals",
            mean=sum(loads) / len(loads),
            most=max(loads),
            cpus=os.cpu_count() or 1,
        )
    for outcome in found.outcomes():
        predicted = outcome.predicted_ratio
        if (
            predicted is not None
            and outcome.difference is not None
            and outcome.verdict in (FASTER, ALIKE)
        ):
            yield Note.of(
                "{change}: predicted saving {said:ratio} (from the trace), measured {saved:ratio}",
                change=outcome.name,
                said=predicted,
                saved=outcome.saving_ratio,
            )
    for remark in found.remarks:
        yield Note(remark)


def _what_runs_do(request: TryRequest) -> str:
    """Return what the runs write and send, and the options against that."""
    options = {
        "--scratch (a copy of this folder)": request.is_scratch,
        "--offline (no metrics to the usual services)": request.is_offline,
    }
    more = ", ".join(name for name, is_given in options.items() if not is_given)
    text = "the program runs for real, with its output files, uploads, and metrics"
    return text + (f"; to limit them, use {more}" if more else "")


def _notes_on_files(
    here: Path, changed: Sequence[str], written: Collection[str], folder: Path
) -> Iterator[Note]:
    """Yield notes on the files that the runs wrote, and on others that changed meanwhile.

    ``changed`` are the files in the current folder that changed. ``written`` are the paths that the
    program opened for writing; it ran in ``folder``, which may be a copy.
    """
    real = {os.path.realpath(path) for path in written}
    inside = [name for name in changed if os.path.realpath(here / name) in real]
    temporary = (str(folder.resolve()), os.path.realpath(tempfile.gettempdir()))
    outside = sorted(
        path for path in real if Path(path).exists() and not path.startswith(temporary)
    )
    others = sorted(set(changed) - set(inside))
    for names, text in (
        (inside, "the runs wrote {n:count} file(s) in this folder: {names}"),
        (outside, "the runs wrote {n:count} file(s) outside this folder: {names}"),
        (others, "{n:count} other file(s) in this folder changed during the runs: {names}"),
    ):
        if names:
            more = len(names) - _MAX_LISTED_FILES
            listed = [*names[:_MAX_LISTED_FILES], *([f"{more} more"] if more > 0 else [])]
            yield Note.of(text, n=len(names), names=", ".join(listed))


def _tried_advice(found: Experiment) -> Iterator[tried.TriedAdvice]:
    """Yield the measured savings of single changes, by the rules that advise them.

    A change without a verdict, or one that breaks something, has no measured saving.
    """
    for outcome in found.outcomes():
        is_decided = outcome.verdict in (FASTER, SLOWER, ALIKE) and outcome.broken is None
        if len(outcome.changes) == 1 and is_decided:
            for rule in outcome.changes[0].change.rules:
                yield tried.TriedAdvice(rule, outcome.name, outcome.saving_ratio)
