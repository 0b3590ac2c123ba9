"""Test a recorder with a program that does known GPU work, and choose a recorder."""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.errors import TraceprofError
from traceprof.formats import open_trace
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, stack
from traceprof.recording import recorders
from traceprof.recording.cupti.records import activity_tables
from traceprof.recording.cupti.spool import read_activities
from traceprof.recording.machine import has_gpu
from traceprof.recording.program import INJECT_FOLDER
from traceprof.recording.recorders.cupti import RECORDER as CUPTI
from traceprof.recording.recorders.embedded import RECORDER as EMBEDDED
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded

PROGRAM: Final = INJECT_FOLDER / "_traceprof_runtime" / "trial.py"
_CALL_CHOICES: Final = ("calls=chosen", "calls=runtime")
_NO_CALLS: Final = "kernels lack the API calls that launched them"


def chosen_recorder(request: RecordRequest) -> tuple[Recorder, RecordRequest]:
    """Return the recorder for a request, and the request with the arguments for the recorder.

    "auto" selects the first recorder of cupti, nsys, and nvprof that is available on this machine
    and that passes a test recording. Without a GPU, or if none passes, it selects torch. Each
    failed recorder is reported with the reason. Arguments for one recorder select that recorder.

    Raises:
        UsageError: there is no recorder of that name.
        RecordingError: the recorder cannot be used on this machine.
    """
    if request.recorder != "auto":
        recorder = recorders.choose_recorder(request.recorder)
        if recorder is CUPTI:
            arguments, why = try_recorder(recorder, python_of(request.command))
            if why:
                request.say(f"a test recording with {recorder.name} failed: {why}")
            return recorder, _with_arguments(request, recorder, arguments)
        return recorder, request
    wanted = [name for name, given in request.profiler_arguments.items() if given]
    wanted += ["nsys"] if request.gpu_metrics else []
    for recorder in recorders.RECORDERS if has_gpu() else ():
        is_wanted = not wanted or recorder.name in wanted
        if recorder is EMBEDDED or not is_wanted or recorder.missing() is not None:
            continue
        arguments, why = try_recorder(recorder, python_of(request.command))
        if not why:
            return recorder, _with_arguments(request, recorder, arguments)
        request.say(f"traceprof does not record with {recorder.name}: {why}")
    return EMBEDDED, request


def _with_arguments(
    request: RecordRequest, recorder: Recorder, arguments: Sequence[str]
) -> RecordRequest:
    """Return the request with more arguments for its recorder, unless the user set calls=."""
    given = request.profiler_arguments.get(recorder.name, ())
    if any(argument.startswith("calls=") for argument in given):
        return request
    return replace(
        request,
        profiler_arguments={**request.profiler_arguments, recorder.name: (*given, *arguments)},
    )


def known_work() -> dict[str, int]:
    """Return the amount of each kind of work that the test program does."""
    constants = runpy.run_path(str(PROGRAM))
    work = {name: constants[name.upper()] for name in ("kernels", "copies", "memsets")}
    return {**work, "bytes copied": constants["COPIES"] * constants["COPY_BYTES"]}


def python_of(command: Sequence[str]) -> str:
    """Return the Python that runs ``command``, or that is in the same folder as the program.

    Defaults to the Python of this process.
    """
    program = shutil.which(command[0]) if command else None
    if program is None:
        return sys.executable
    if Path(program).name.startswith("python"):
        return program
    sibling = Path(program).with_name("python")
    return str(sibling) if sibling.exists() else sys.executable


def try_recorder(recorder: Recorder, python: str) -> tuple[tuple[str, ...], str]:
    """Return the arguments with which a recorder records all test work, and why none does."""
    choices = _CALL_CHOICES if recorder is CUPTI else ("",)
    for choice in choices:
        arguments = (choice,) if choice and choice != _CALL_CHOICES[0] else ()
        why = trial_failure(recorder, python, arguments)
        if why != _NO_CALLS:
            break
    return arguments, why


def trial_failure(recorder: Recorder, python: str, arguments: Sequence[str] = ()) -> str:
    """Return what a recorder lost of the test program's GPU work, "" for nothing.

    ``python`` runs the test program.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-trial-") as name:
        folder = Path(name)
        request = RecordRequest(
            [python, str(PROGRAM)],
            folder / "trial.sqlite",
            profiler_arguments={recorder.name: arguments},
        )
        try:
            run = recorder.collect(request, folder, recorder.run(request, folder))
            if run.exit_code:
                return f"the test program exited with code {run.exit_code}"
            return _missing_in(folder, run)
        except (TraceprofError, OSError) as error:
            return f"a test recording failed: {error}"


def _missing_in(folder: Path, run: RunRecorded) -> str:
    """Return what a test recording lacks of the known work, "" for nothing."""
    parts = list(_tables_of(folder, run))
    if run.recorder or not parts:
        return f"a test recording failed: {'; '.join(run.notes) or 'nothing was recorded'}"
    tables = {
        name: stack(name, [part[name] for part in parts if name in part])
        for name in ("kernels", "copies", "api_calls")
    }
    is_memset = tables["copies"]["direction"] == "memset"
    kept = {
        "kernels": len(tables["kernels"]),
        "copies": int((~is_memset).sum()),
        "memsets": int(is_memset.sum()),
        "bytes copied": int(tables["copies"]["n_bytes"][~is_memset].sum()),
    }
    lost = [
        f"{kept[what]} of {count} {what}"
        for what, count in known_work().items()
        if kept[what] < count
    ]
    if lost:
        return f"recorded only {', '.join(lost)} of a test program"
    if any(activity.calls == "runtime" for activity in read_activities(folder)):
        return ""  # driver API calls launch the kernels of the test program
    launched = tables["kernels"]["correlation"]
    is_linked = (launched != ABSENT) & np.isin(launched, tables["api_calls"]["correlation"])
    return "" if is_linked.all() else _NO_CALLS


def _tables_of(folder: Path, run: RunRecorded) -> Iterator[Mapping[str, Table]]:
    """Yield the tables of GPU work that a run left, for any recorder."""
    traces = [profile.trace for profile in run.profiles]
    if run.database is not None:
        traces.append(open_trace(run.database))
    for trace in traces:
        yield {name: trace.table(name) for name in ("kernels", "copies", "api_calls")}
    for activity in read_activities(folder):
        yield from activity_tables(activity, {}, lambda times: times, str)
