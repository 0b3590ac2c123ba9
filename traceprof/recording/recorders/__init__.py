"""The recorders: each runs a program under one profiler.

To add a recorder, add a module with ``RECORDER`` (see `traceprof.recording.request.Recorder`) and
its entry in ``RECORDERS``.
"""

from __future__ import annotations

from typing import Final

from traceprof.errors import RecordingError, UsageError
from traceprof.recording.recorders.cupti import RECORDER as CUPTI
from traceprof.recording.recorders.embedded import RECORDER as EMBEDDED
from traceprof.recording.recorders.nsys.recorder import RECORDER as NSYS
from traceprof.recording.recorders.nvprof import RECORDER as NVPROF
from traceprof.recording.request import Recorder
from traceprof.registries import Registry

__all__ = ["RECORDERS", "choose_recorder", "recorder_named"]


RECORDERS: Final[Registry[Recorder]] = Registry("recorder", (CUPTI, NSYS, NVPROF, EMBEDDED))


def choose_recorder(name: str) -> Recorder:
    """Return the recorder called ``name``.

    Raises:
        UsageError: there is no recorder of that name.
        RecordingError: the recorder cannot be used on this machine.
    """
    recorder = recorder_named(name)
    reason = recorder.missing()
    if reason is not None:
        raise RecordingError(f"cannot record with {name}: {reason}")
    return recorder


def recorder_named(name: str) -> Recorder:
    """Return the recorder called ``name``, even if it cannot be used on this machine.

    Raises:
        UsageError: there is no recorder of that name.
    """
    for recorder in RECORDERS:
        if recorder.name == name:
            return recorder
    known = ", ".join(recorder.name for recorder in RECORDERS)
    raise UsageError(f"unknown recorder {name!r}; choose auto, {known}")
