"""Record a part of a running program, in a script or a notebook."""

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
    """The context manager that `traceprof.record` returns; it records while its block runs."""

    def __init__(self, request: RecordRequest) -> None:
        self._inside = InsideRecording(request)

    def __enter__(self) -> Self:
        """Start recording.

        Raises:
            UsageError: a recording is already running, or the trace cannot be written.
        """
        self._inside.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop recording and write the trace. Errors are printed, not raised."""
        self._inside.__exit__(kind, error, traceback)

    @property
    def output(self) -> Path | None:
        """The trace file, or the folder with the traces of all ranks; None if there is none."""
        recording = self._inside.recording
        return None if recording is None else recording.output

    @property
    def run(self) -> Run:
        """The recording of this process, opened. For all ranks, open the folder after they end.

        Raises:
            UsageError: there is no trace: the block has not ended, or the recording failed.
        """
        recording = self._inside.recording
        if recording is None or not recording.files:
            raise UsageError("no trace: the `with` block has not ended, or nothing was recorded")
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
    """Record a block of this program with the PyTorch profiler.

    >>> with tp.record("run.sqlite", steps="10..20") as recorded:
    ...     train()
    >>> recorded.run.page()

    The hooks of `traceprof record` are active while the block runs and are removed afterwards.
    traceprof records this process and the processes that it forks. If `traceprof record` started
    the program, this function only prints a message. Functions that were decorated with
    `traceprof.range` or `traceprof.step` before the block have no ranges.

    Args:
        output: the trace file. For several ranks, use a folder ("run/"): each rank writes a file.
        steps: capture only these steps of the block, counted from 0: "10..20", or "10".
        step_from: what defines a step: "optimizer" (or "optimizer#2"), "backward", "loader",
            "every-forward", or "range:NAME". Default: detect the steps.
        layers: record module ranges to this depth.
        max_size: stop capturing at this size: "500MB".
        force: replace the trace if it exists.

    Raises:
        UsageError: an argument is invalid.
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
