"""Record with nvprof, for GPUs that nsys no longer supports."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.recording.machine import gpu_facts, has_gpu
from traceprof.recording.orphans import Watchdog
from traceprof.recording.program import (
    Program,
    child_environment,
    last_line,
    read_output_log,
    run_recorded,
)
from traceprof.recording.request import ProcessProfile, Recorder, RecordRequest, RunRecorded
from traceprof.secrets import masked_command

_NAME: Final = "nvprof"
_FIRST_UNSUPPORTED: Final = 8.0  # compute capability
_LOG: Final = "nvprof.log"
_ALTERNATIVES: Final = "use --with nsys or --with torch"
# nvprof changes the exit code of the program: 3 becomes 9, SIGKILL 15.
_KEEP_EXIT_CODE: Final = 'code_file=$1; shift; "$@"; code=$?; echo $code > "$code_file"; exit $code'


def _missing() -> str | None:
    if shutil.which("nvprof") is None:
        return f"nvprof is not on PATH; {_ALTERNATIVES}"
    return why_unsupported(gpu_facts(), is_there=has_gpu())


def _run(request: RecordRequest, folder: Path) -> RunRecorded:
    """Run the program under nvprof."""
    exit_code = folder / "exit_code"
    program = Program(grace_s=request.grace_s, say=request.say, is_over=exit_code.exists)
    command = [
        *(shutil.which("nvprof") or "nvprof", "--profile-child-processes"),
        *("--force-overwrite", "--log-file", str(folder / _LOG)),
        *("--export-profile", str(folder / "nvprof.%p.nvvp")),
        *request.profiler_arguments.get(_NAME, ()),
        *("sh", "-c", _KEEP_EXIT_CODE, "sh", str(exit_code), *request.command),
    ]
    request.detail(shlex.join(masked_command(command)))
    environment = child_environment(folder, request)
    code = run_recorded(
        command,
        environment,
        Watchdog(folder, request.say),
        is_profiler=True,
        program=program,
    )
    if exit_code.exists():
        code = int(exit_code.read_text() or code)
    return RunRecorded(code, left=program.left)


def _collect(_request: RecordRequest, folder: Path, run: RunRecorded) -> RunRecorded:
    """Return ``run`` with the profile of each process."""
    profiles, notes = [], []
    for path in sorted(folder.glob("nvprof.*.nvvp")):
        try:
            profiles.append(ProcessProfile(int(path.name.split(".")[1]), open_trace(path)))
        except TraceError as error:
            notes.append(str(error))
    if not profiles:
        notes.append(f"nvprof wrote no profile ({last_line(read_output_log(folder / _LOG))})")
    return replace(run, profiles=tuple(profiles), notes=(*run.notes, *notes))


def why_unsupported(facts: dict[str, str], *, is_there: bool) -> str | None:
    """Return why nvprof cannot record the GPUs in ``facts``, None if it can."""
    if not is_there:
        return f"this machine has no GPU, and nvprof records only GPUs; {_ALTERNATIVES}"
    for name, value in facts.items():
        if name.endswith(".compute_capability") and float(value) >= _FIRST_UNSUPPORTED:
            return f"nvprof cannot record GPUs with compute capability {value}; {_ALTERNATIVES}"
    return None


RECORDER: Final = Recorder(_NAME, _run, _missing, _collect)
"""One nvprof runs the whole process tree and writes one file per process."""
