"""The embedded recorder: windows of torch.profiler, and ranges for the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceprof.recording.program import Program, child_environment, run_recorded
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded

_WINDOWS: Final = "5,10,200"  # skip 5 steps, then 10 of every 200


def environment_for(request: RecordRequest, folder: Path, windows: str) -> dict[str, str]:
    """Return the environment of the program, with profiler windows.

    ``windows`` is "skip,active,every" in steps. The requested steps replace it if there are any.
    """
    if request.bounds.steps is not None:
        first, last = request.bounds.steps
        windows = f"{first},{last - first + 1},0"
    return child_environment(folder, request, windows)


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    """Run the program. All its events are in the spool and in the windows."""
    environment = environment_for(request, folder, _WINDOWS)
    program = Program(grace_s=request.grace_s, say=request.say)
    code = run_recorded(request.command, environment, program=program)
    return RunRecorded(code, left=program.left)


RECORDER: Final = Recorder("torch", _run)
"""Needs no profiler program: it works wherever the program's torch works."""
