"""The embedded recorder: torch's own profiler in windows, ranges for the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceprof.recording.child import child_environment
from traceprof.recording.process import run_recorded
from traceprof.recording.request import RecordRequest, RunRecorded

__all__ = ["RECORDER", "EmbeddedRecorder"]

_WINDOWS: Final = "5,10,200"  # steps: skip 5, then 10 of every 200


class EmbeddedRecorder:
    """Needs no profiler: works wherever the program's own torch does."""

    name = "torch"

    def missing(self) -> str | None:
        """Return None: it is always there."""
        return None

    def run(self, request: RecordRequest, folder: Path) -> RunRecorded:
        """Run the program; its events are in the spool and in the windows."""
        environment = child_environment(folder, request.layer_depth, _WINDOWS)
        return RunRecorded(run_recorded(request.command, environment))


RECORDER: Final = EmbeddedRecorder()
