"""The commands that run programs: record, recover a trace, check the machine, and try changes."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TypeAlias

import typer

from traceprof.cli.options import (
    AsJson,
    Force,
    Saving,
    open_traces,
    option,
    print_saved,
    with_options,
)
from traceprof.cli.output import Printing, detail, message, out, print_answer
from traceprof.errors import RecordingError, TraceprofError, UsageError

if TYPE_CHECKING:
    from traceprof.recording import Recording, RecordRequest
    from traceprof.render.registry import Answered

_SCHEMA = 1
MemorySteps: TypeAlias = Annotated[
    str | None,
    option("--memory", "Save a GPU memory snapshot of steps A to B.", "A..B"),
]
TraceOutput: TypeAlias = Annotated[
    str | None,
    option(
        "--output -o",
        "Trace file (trace.sqlite), or FOLDER/ for all ranks.",
        "FILE",
    ),
]
KeepsLiveStatus: TypeAlias = Annotated[
    bool, option("--live", "Keep a status for watch and capture, not a trace.")
]
KeepsHistory: TypeAlias = Annotated[
    bool, option("--always", "Keep the step times of weeks, at a lower cost.")
]
CaptureWhen: TypeAlias = Annotated[
    str | None,
    option(
        "--capture-when",
        "With --live, capture on straggler, slow, or drop=5%.",
        "LIST",
    ),
]
MaxSize: TypeAlias = Annotated[
    str | None,
    option(
        "--max-size",
        "Stop capturing at SIZE per process: 500MB. With --capture-when, it limits the total: 1GB.",
        "SIZE",
    ),
]
CountFlops: TypeAlias = Annotated[
    bool, option("--flops", "Record FLOPs per step, as counted by PyTorch.")
]
StepFrom: TypeAlias = Annotated[
    str | None,
    option(
        "--step-from",
        "Define a step by: optimizer (or optimizer#2), backward, loader, every-forward, or "
        "range:NAME.",
        "WHAT",
    ),
]


@with_options
def record(
    command: Annotated[
        list[str],
        typer.Argument(help="Program to run, with its arguments, after --.", metavar="COMMAND"),
    ],
    output: TraceOutput = None,
    live: KeepsLiveStatus = False,
    always: KeepsHistory = False,
    capture_when: CaptureWhen = None,
    recorder: Annotated[
        str, option("--with", "Record with auto, cupti, nsys, nvprof, or torch.", "RECORDER")
    ] = "auto",
    layers: Annotated[
        int, option("--layers", "Record module ranges to this depth.", "DEPTH", min=0)
    ] = 0,
    steps: Annotated[
        str | None, option("--steps", "Capture only steps A to B, counted from 0.", "A..B")
    ] = None,
    step_from: StepFrom = None,
    delay: Annotated[
        str | None, option("--delay", "Wait TIME before capturing, for example 10s.", "TIME")
    ] = None,
    duration: Annotated[
        str | None,
        option("--duration", "Stop capturing after TIME. The program keeps running.", "TIME"),
    ] = None,
    max_size: MaxSize = None,
    grace: Annotated[
        str,
        option(
            "--grace",
            "Time to end after SIGTERM, then kill.",
            "TIME",
        ),
    ] = "10s",
    gpu_metrics: Annotated[
        bool, option("--gpu-metrics", "Also sample GPU hardware counters (needs nsys).")
    ] = False,
    memory: MemorySteps = None,
    flops: CountFlops = False,
    nsys_arg: Annotated[
        list[str] | None, option("--nsys-arg", "Pass ARG to `nsys profile` unchanged.", "ARG")
    ] = None,
    nvprof_arg: Annotated[
        list[str] | None, option("--nvprof-arg", "Pass ARG to `nvprof` unchanged.", "ARG")
    ] = None,
    cupti_arg: Annotated[
        list[str] | None,
        option(
            "--cupti-arg",
            "Set a CUPTI option: calls=runtime|all|none, syncs, graphs=whole, or memory=MB.",
            "ARG",
        ),
    ] = None,
    keep_report: Annotated[
        bool, option("--keep-report", "Keep the nsys report (has environment variables).")
    ] = False,
    keep_environment: Annotated[
        bool, option("--keep-secrets --keep-environment", "Keep recorded environment variables.")
    ] = False,
    force: Force = False,
    *,
    saving: Saving,
) -> None:
    """Run a program and record a trace. Use -v to print the profiler command."""
    from traceprof.recording import RecordRequest
    from traceprof.recording import record as run_and_record
    from traceprof.recording.request import parse_bounds, parse_grace, parse_step_from, parse_steps

    if capture_when is not None and not live:
        raise UsageError("--capture-when needs --live")
    if always and live:
        raise UsageError("choose --live or --always: --always keeps a live status, too")
    output = output or ("run/" if live or always else "trace.sqlite")
    request = RecordRequest(
        command=command,
        output=Path(output),
        is_folder=output.endswith("/"),
        recorder=recorder,
        force=force,
        layer_depth=layers,
        bounds=parse_bounds(steps, delay, duration, max_size),
        step_from=parse_step_from(step_from),
        keep_report=keep_report,
        keep_environment=keep_environment,
        profiler_arguments={
            "nsys": nsys_arg or (),
            "nvprof": nvprof_arg or (),
            "cupti": cupti_arg or (),
        },
        grace_s=parse_grace(grace),
        gpu_metrics=gpu_metrics,
        memory_steps=None if memory is None else parse_steps(memory, "--memory"),
        counts_flops=flops,
        say=message,
        detail=detail,
    )
    if live or always:
        _record_live(request, capture_when, is_always=always)
    recording = run_and_record(request)
    print_recording(recording)
    if recording.output is not None and saving.is_wanted:
        _save_run(saving, recording.output)
    raise typer.Exit(recording.exit_code or 0)


def _record_live(request: RecordRequest, capture_when: str | None, *, is_always: bool) -> NoReturn:
    """Run a program with a live status, and exit with its exit code."""
    from traceprof.recording.live.running import record_live
    from traceprof.recording.live.trigger import parse_conditions

    conditions = None if capture_when is None else parse_conditions(capture_when)
    raise typer.Exit(record_live(request, conditions, is_always=is_always))


def print_recording(recording: Recording) -> None:
    """Print the contents of a finished recording and its problems on standard error."""
    for line in recording.lines:
        message(line)


def _save_run(saving: Saving, output: Path) -> None:
    """Save the run in the database. An error is only a message, because the recording exists."""
    try:
        saving.keep(open_traces([output]), [output], numbered=True)
    except Exception as error:
        kind = "" if isinstance(error, TraceprofError) else f"{type(error).__name__}: "
        message(f"the run was not saved: {kind}{error}; to retry: traceprof runs add {output}")


@partial(with_options, rows=40)
def try_(
    command: Annotated[
        list[str],
        typer.Argument(help="Program to run, with its arguments, after --.", metavar="COMMAND"),
    ],
    change: Annotated[
        list[str] | None,
        option(
            "--change -c",
            "Try these changes: channels_last,workers=8. Default: all changes that apply.",
            "NAME[=VALUE]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        option("--from", "Try the advice from this trace of the program, best first.", "TRACE"),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps", "Measure N steps per run. Default: 20 to 200.", "N", min=2),
    ] = None,
    minutes: Annotated[
        float,
        option(
            "--minutes",
            "Time limit in minutes, for all runs together.",
            "N",
            min=0,
        ),
    ] = 15.0,
    runs: Annotated[int, option("--runs", "Run each change at most N times.", "N", min=1)] = 12,
    goal: Annotated[
        Literal["time", "memory"], option("--goal", "Reduce time or memory.", "NAME")
    ] = "time",
    step_from: StepFrom = None,
    scratch: Annotated[
        bool, option("--scratch", "Run in a temporary copy of the current folder.")
    ] = False,
    offline: Annotated[
        bool,
        option("--offline", "Upload nothing: set WANDB_MODE=offline and similar."),
    ] = False,
    *,
    printing: Printing,
    saving: Saving,
) -> None:
    """Apply changes to a program, one at a time, and measure how much each one saves.

    traceprof runs the program repeatedly without a profiler, unchanged and with one change
    applied, and stops each run after its steps.
    """
    from traceprof.recording.request import parse_step_from
    from traceprof.trying.answer import TryRequest, try_changes
    from traceprof.trying.experiment import Wanted

    request = TryRequest(
        command,
        tuple(change or ()),
        trace,
        Wanted(steps, minutes, runs, message, goal),
        parse_step_from(step_from),
        scratch,
        offline,
    )
    experiments = []

    def compute_answer() -> Answered:
        compared, experiment = try_changes(request)
        experiments.append(experiment)
        return compared

    print_answer(compute_answer, printing, [] if trace is None else [trace])
    if saving.is_wanted:
        from traceprof.store import Store
        from traceprof.trying.kept import summaries_of

        name = saving.name or "try"
        store = Store.at(saving.db)
        for run in summaries_of(experiments[0], name, saving.labels):
            print_saved(store, store.add(run, numbered=True))


@with_options
def recover(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Work folder of the interrupted recording. Without FOLDER, list all of them.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        option("--output -o", "Trace file to write. Default: the output of the recording.", "FILE"),
    ] = None,
    force: Force = False,
    keep: Annotated[bool, option("--keep", "Keep the work folder after the recovery.")] = False,
) -> None:
    """Write the trace of a recording that was killed or ran out of disk space."""
    from traceprof.recording import recover as write_trace
    from traceprof.recording import recoverable

    if folder is not None:
        recovered = write_trace(folder, output, force=force, keep=keep, say=message)
        print_recording(recovered)
        raise typer.Exit(RecordingError.exit_code if recovered.output is None else 0)
    interrupted = list(recoverable())
    for work_folder, notes in interrupted:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(notes.started_s))
        out(f"{work_folder}  started {started}, output {notes.output}: {' '.join(notes.command)}\n")
    if not interrupted:
        message("no interrupted recording found here; if its work folder is elsewhere, name it")


@with_options
def doctor(
    require: Annotated[
        list[str] | None,
        option("--require", "Fail if NAME is not available: nsys, torch, gpu …", "NAME"),
    ] = None,
    as_json: AsJson = False,
    clear_cache: Annotated[
        bool, option("--clear-cache", "Clear cached results and exports, then exit.")
    ] = False,
) -> None:
    """Check what can be recorded on this machine, and how to enable the rest.

    The exit code is 0 if torch, cupti, or nsys can record here and every required item is
    available, else 5.
    """
    if clear_cache:
        _clear_cache()
        return
    from traceprof.recording.doctor import CHECKS, examine
    from traceprof.render.escape import plain_text

    unknown = sorted(set(require or ()) - set(CHECKS))
    if unknown:
        raise UsageError(f"--require {', '.join(unknown)} is unknown; use {', '.join(CHECKS)}")
    checks = examine()
    if as_json:
        listed = [check._asdict() for check in checks]
        out(json.dumps({"schema": _SCHEMA, "checks": listed}, indent=1) + "\n")
    else:
        for check in checks:
            mark = "ok" if check.is_ok else "--"
            out(f"{mark}  {check.name:13} {plain_text(check.found, 2_000)}\n")
            if check.advice:
                out(f"{'':18}→ {plain_text(check.advice, 2_000)}\n")
    is_ok = {check.name: check.is_ok for check in checks}
    missing = [name for name in require or () if not is_ok[name]]
    if missing:
        raise RecordingError(f"not available on this machine: {', '.join(missing)}")
    if not (is_ok["torch"] or is_ok["cupti"] or is_ok["nsys"]):
        raise RecordingError(
            "torch, cupti, and nsys cannot record here: traceprof can record only named ranges"
        )


def _clear_cache() -> None:
    from traceprof.cache.entries import Cache
    from traceprof.units import format_bytes

    cache = Cache.of_user()
    if cache is None:
        message("the cache is off: there is nothing to clear")
        return
    cleared = cache.clear()
    n_bytes = format_bytes(cleared.total_bytes)
    message(f"cleared {cleared.entry_count} results and exports ({n_bytes}) from {cache.folder}")
