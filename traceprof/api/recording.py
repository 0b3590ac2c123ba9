"""Recording from inside a program: a part of what runs already, in a script or a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from traceprof.errors import UsageError
from traceprof.recording.inside import InsideRecording
from traceprof.recording.request import RecordRequest, parse_bounds, parse_step_from

if TYPE_CHECKING:
    from traceprof.api.run import Run


class Recorded:
    """The context that `traceprof.record` returns: it records while its block runs."""

    def __init__(self, request: RecordRequest) -> None:
        self._inside = InsideRecording(request)

    def __enter__(self) -> Self:
        """Begin to record.

        Raises:
            UsageError: a recording goes on already, or the trace cannot be written there.
        """
        self._inside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the recording and write its trace; what goes wrong there is said, not raised."""
        self._inside.__exit__(kind, error, traceback)

    @property
    def output(self) -> Path | None:
        """The trace that was written, or the folder of those of all ranks; None: none was."""
        recording = self._inside.recording
        return None if recording is None else recording.output

    @property
    def run(self) -> Run:
        """What this process recorded, opened; of all ranks open the folder once all have ended.

        Raises:
            UsageError: nothing was: the block has not ended, or what was said at its end.
        """
        recording = self._inside.recording
        if recording is None or not recording.files:
            raise UsageError("there is no trace: the block has not ended, or nothing was recorded")
        from traceprof.api.run import open as open_files

        return open_files(recording.files)


def record(
    output: str | Path = "trace.sqlite",
    *,
    steps: str | None = None,
    step_from: str | None = None,
    layers: int = 0,
    max_size: str | None = None,
    force: bool = False,
) -> Recorded:
    """Record what runs in a block of this program, with torch's own profiler.

    >>> with tp.record("run.sqlite", steps="10..20") as recorded:
    ...     train()
    >>> recorded.run.page()

    The hooks of `traceprof record` are there while the block runs, and gone afterwards. Recorded
    are this process and what it forks. In a program that `traceprof record` started it does
    nothing, but say so. Functions that were decorated with `traceprof.range` or `traceprof.step`
    before the block have no ranges.

    Args:
        output: the trace; where several ranks record, a folder ("run/"): each leaves a file in it.
        steps: capture only these steps of the block, from 0: "10..20", or "10".
        step_from: what a step is, as `traceprof record --step-from` takes it; left out, it is
            found.
        layers: ranges for modules, this many levels deep.
        max_size: stop at so many bytes: "500MB".
        force: replace a trace that is there.

    Raises:
        UsageError: one of the arguments means nothing.
    """
    request = RecordRequest(
        command=sys.argv or [sys.executable],
        output=Path(output),
        is_folder=str(output).endswith("/") or Path(output).is_dir(),
        recorder="torch",
        force=force,
        layer_depth=layers,
        bounds=parse_bounds(steps, None, None, max_size),
        step_from=parse_step_from(step_from),
    )
    return Recorded(request)
