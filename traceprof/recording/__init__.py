"""Recording: run a program under a profiler and leave one trace, or one per rank."""

from traceprof.recording.recovery import recover, recoverable
from traceprof.recording.request import Recorder, Recording, RecordRequest
from traceprof.recording.session import record

__all__ = ["RecordRequest", "Recorder", "Recording", "record", "recover", "recoverable"]
