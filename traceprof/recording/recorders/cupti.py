"""Record with CUPTI: a C library of traceprof in the program, and the hooks; no profiler.

The CUDA driver loads the library into every process that uses CUDA. The library calls CUPTI there.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import UsageError
from traceprof.recording.cupti.spool import LIBRARY, DeviceActivity, read_activities
from traceprof.recording.machine import has_gpu
from traceprof.recording.program import Program, child_environment, run_recorded
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded

_NAME: Final = "cupti"
_ARGUMENT: Final = re.compile(
    r"calls=(chosen|runtime|all|none)|syncs|graphs=whole|memory=[1-9]\d{0,3}"
)
_ARGUMENT_CHOICES: Final = "calls=runtime, calls=all, calls=none, syncs, graphs=whole, memory=MB"
_DEFAULT_ARGUMENT: Final = "calls=chosen"
_INJECTION_VARIABLE: Final = "CUDA_INJECTION64_PATH"
_NO_LIBRARY: Final = (
    "its library is not compiled; install a C compiler, then pip install --force-reinstall "
    "traceprof (Linux)"
)
_NO_ACTIVITY: Final = "no GPU activity recorded, because no process used (dynamically linked) CUDA"


def _missing() -> str | None:
    if not LIBRARY.exists():
        return _NO_LIBRARY
    return None if has_gpu() else "this machine has no GPU; use --with torch, which needs none"


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    environment = child_environment(folder, request)
    wanted = request.profiler_arguments.get(_NAME, ())
    for argument in wanted:
        if not _ARGUMENT.fullmatch(argument):
            raise UsageError(f"--cupti-arg={argument}: choose {_ARGUMENT_CHOICES}")
    environment["TRACEPROF_CUPTI"] = ",".join(wanted) or _DEFAULT_ARGUMENT
    environment["TRACEPROF_CUPTI_RECORDER"] = str(LIBRARY)
    other = environment.setdefault(_INJECTION_VARIABLE, str(LIBRARY))
    if other != str(LIBRARY):
        request.say(
            f"{_INJECTION_VARIABLE} is set ({other}); only programs with torch are recorded"
        )
    program = Program(grace_s=request.grace_s, say=request.say)
    code = run_recorded(request.command, environment, program=program)
    return RunRecorded(code, left=program.left)


def _collect(_request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with notes on why processes have no GPU activity."""
    activities = read_activities(folder)
    recorded_pids = {activity.pid for activity in activities if activity.record_bytes}
    notes = [
        _why_nothing(activity) for activity in activities if activity.pid not in recorded_pids
    ] or ([] if activities else [_NO_ACTIVITY])
    return replace(run, notes=(*run.notes, *dict.fromkeys(filter(None, notes))))


def _why_nothing(activity: DeviceActivity) -> str:
    """Return why a process has no GPU activity, "" where the library gave no reason."""
    why = activity.notes.get("why", "")
    return f"process {activity.pid}: no GPU activity recorded ({why})" if why else ""


RECORDER: Final = Recorder(_NAME, _run, _missing, _collect)
