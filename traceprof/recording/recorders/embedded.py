"""The embedded recorder: torch's own profiler in windows, ranges for the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceprof.recording.program import Program, child_environment, run_recorded
from traceprof.recording.request import Recorder, RecordRequest, RunRecorded

_WINDOWS: Final = "5,10,200"  # skip 5 steps, then 10 of every 200


def environment_for(request: RecordRequest, folder: Path, windows: str) -> dict[str, str]:
    """Return the environment of a program with ``windows``, unless steps are asked for."""
    if request.bounds.steps is not None:
        first, last = request.bounds.steps
        windows = f"{first},{last - first + 1},0"
    return child_environment(folder, request, windows)


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    """Run the program; its events are in the spool and in the windows, and nowhere else."""
    environment = environment_for(request, folder, _WINDOWS)
    program = Program(grace_s=request.grace_s, say=request.say)
    code = run_recorded(request.command, environment, program=program)
    return RunRecorded(code, left=program.left)


RECORDER: Final = Recorder("torch", _run)
"""Needs no profiler: works wherever the program's own torch does."""
