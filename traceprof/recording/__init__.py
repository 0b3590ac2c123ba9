"""Recording: run a program under a profiler and leave one trace, or one per rank."""

from __future__ import annotations

from traceprof.recording.request import Recorder, Recording, RecordRequest
from traceprof.recording.session import record, recover, recoverable

__all__ = ["RecordRequest", "Recorder", "Recording", "record", "recover", "recoverable"]
