"""A trial of a recorder: a program that does known work on the GPU, and what is kept of it."""

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
_CALLS: Final = ("calls=chosen", "calls=runtime")
_NO_CALLS: Final = "kernels lack the API calls that launched them"


def chosen_recorder(request: RecordRequest) -> tuple[Recorder, RecordRequest]:
    """Return the recorder that a request asks for, and the request as that recorder is to have it.

    "auto" is the first that can be used here and that a trial proves: cupti, nsys, nvprof; without
    a GPU, or where none is proven, torch. What was not taken is said with its reason. Arguments
    that are for one recorder choose it.

    Raises:
        UsageError: there is no recorder of that name.
        RecordingError: it cannot be used here.
    """
    if request.recorder != "auto":
        recorder = recorders.choose_recorder(request.recorder)
        if recorder is CUPTI:
            arguments, why = proven(recorder, python_of(request.command))
            if why:
                request.say(f"a test recording with {recorder.name} failed: {why}")
            return recorder, _with_arguments(request, recorder, arguments)
        return recorder, request
    asked = [name for name, given in request.profiler_arguments.items() if given]
    asked += ["nsys"] if request.gpu_metrics else []
    for recorder in recorders.RECORDERS if has_gpu() else ():
        is_asked = not asked or recorder.name in asked
        if recorder is EMBEDDED or not is_asked or recorder.missing() is not None:
            continue
        arguments, why = proven(recorder, python_of(request.command))
        if not why:
            return recorder, _with_arguments(request, recorder, arguments)
        request.say(f"traceprof does not record with {recorder.name}: {why}")
    return EMBEDDED, request


def _with_arguments(
    request: RecordRequest, recorder: Recorder, arguments: Sequence[str]
) -> RecordRequest:
    """Return the request with more arguments for its recorder; the user's own count more."""
    given = request.profiler_arguments.get(recorder.name, ())
    if any(one.startswith("calls=") for one in given):
        return request
    every = {**request.profiler_arguments, recorder.name: (*given, *arguments)}
    return replace(request, profiler_arguments=every)


def known_work() -> dict[str, int]:
    """Return what the program of the trial does."""
    told = runpy.run_path(str(PROGRAM))
    work = {name: told[name.upper()] for name in ("kernels", "copies", "memsets")}
    return {**work, "bytes copied": told["COPIES"] * told["COPY_BYTES"]}


def python_of(command: Sequence[str]) -> str:
    """Return the Python that runs ``command``, or that lies beside what does; else our own."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return sys.executable
    if Path(program).name.startswith("python"):
        return program
    beside = Path(program).with_name("python")
    return str(beside) if beside.exists() else sys.executable


def proven(recorder: Recorder, python: str) -> tuple[tuple[str, ...], str]:
    """Return the arguments with which a recorder keeps all work of a trial, and why none does."""
    ways = _CALLS if recorder is CUPTI else ("",)
    for way in ways:
        arguments = (way,) if way and way != _CALLS[0] else ()
        why = failure_of(recorder, python, arguments)
        if why != _NO_CALLS:
            break
    return arguments, why


def failure_of(recorder: Recorder, python: str, arguments: Sequence[str] = ()) -> str:
    """Return what a recorder lost of the known work that ``python`` has the GPU do; "" nothing."""
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
    """Return what a trial recording lacks of what was done, "" for nothing."""
    parts = list(_tables_of(folder, run))
    if run.recorder or not parts:
        return f"a test recording failed: {'; '.join(run.notes) or 'nothing was recorded'}"
    tables = {
        name: stack(name, [part[name] for part in parts if name in part])
        for name in ("kernels", "copies", "api_calls")
    }
    is_set = tables["copies"]["direction"] == "memset"
    kept = {
        "kernels": len(tables["kernels"]),
        "copies": int((~is_set).sum()),
        "memsets": int(is_set.sum()),
        "bytes copied": int(tables["copies"]["n_bytes"][~is_set].sum()),
    }
    lost = [
        f"{kept[what]} of {count} {what}"
        for what, count in known_work().items()
        if kept[what] < count
    ]
    if lost:
        return f"recorded only {', '.join(lost)} of a test program"
    if any(one.calls == "runtime" for one in read_activities(folder)):
        return ""  # the trial's kernels are launched by calls of the driver
    launched = tables["kernels"]["correlation"]
    is_tied = (launched != ABSENT) & np.isin(launched, tables["api_calls"]["correlation"])
    return "" if is_tied.all() else _NO_CALLS


def _tables_of(folder: Path, run: RunRecorded) -> Iterator[Mapping[str, Table]]:
    """Yield what a run left of device work, whichever recorder it was."""
    traces = [profile.trace for profile in run.profiles]
    if run.database is not None:
        traces.append(open_trace(run.database))
    for trace in traces:
        yield {name: trace.table(name) for name in ("kernels", "copies", "api_calls")}
    for activity in read_activities(folder):
        yield from activity_tables(activity, {}, lambda times: times, str)
