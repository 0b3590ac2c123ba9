"""Recorders: run a program under a profiler and leave one SQLite trace."""

from __future__ import annotations

from typing import Final

from traceprof.errors import RecordingError, UsageError
from traceprof.recording.embedded import RECORDER as EMBEDDED
from traceprof.recording.gpu import has_gpu, why_no_counters
from traceprof.recording.nsys import RECORDER as NSYS
from traceprof.recording.nvprof import RECORDER as NVPROF
from traceprof.recording.outputs import check_output
from traceprof.recording.request import Recorder, Recording, RecordRequest
from traceprof.recording.session import record_with

__all__ = ["RECORDERS", "RecordRequest", "Recorder", "Recording", "choose_recorder", "record"]

RECORDERS: Final[tuple[Recorder, ...]] = (NSYS, NVPROF, EMBEDDED)


def choose_recorder(name: str) -> Recorder:
    """Return the recorder called ``name``.

    "auto" is nsys where it is and a GPU is, else nvprof where it can record the GPU, else torch.

    Raises:
        UsageError: there is no recorder of that name.
        RecordingError: it cannot be used here.
    """
    if name == "auto":
        usable = (recorder for recorder in RECORDERS if has_gpu() and recorder.missing() is None)
        return next(usable, EMBEDDED)
    for recorder in RECORDERS:
        if recorder.name == name:
            reason = recorder.missing()
            if reason is not None:
                raise RecordingError(f"cannot record with {name}: {reason}")
            return recorder
    known = ", ".join(recorder.name for recorder in RECORDERS)
    raise UsageError(f"no recorder is called {name!r}: choose auto, {known}")


def record(request: RecordRequest) -> Recording:
    """Record one program, as asked for in ``request``.

    Raises:
        UsageError: the output cannot be written, there is no such recorder, or something was
            asked for that it cannot do.
        RecordingError: the program could not be started, or the trace not be written.
    """
    check_output(request)
    recorder = choose_recorder(request.recorder)
    _check_options(request, recorder)
    return record_with(recorder, request)


def _check_options(request: RecordRequest, recorder: Recorder) -> None:
    asked = {name: f"--{name}-arg" for name, given in request.profiler_arguments.items() if given}
    if request.gpu_metrics:
        asked[NSYS.name] = "--gpu-metrics"
    for name, option in asked.items():
        if name != recorder.name:
            raise UsageError(
                f"{option} is for {name}, and {recorder.name} would record: add --with {name}"
            )
    reason = why_no_counters()
    if request.gpu_metrics and reason is not None:
        raise UsageError(f"--gpu-metrics: {reason}; traceprof doctor says more")
