"""The common part of the Trainer callbacks: record a training run and return its metrics."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

from traceprof.api.database import runs
from traceprof.api.recording import Recorded, record
from traceprof.api.run import Run

_PREFIX = "traceprof/"
_active: list[TrainingRecorder] = []


class TrainingRecorder:
    """Record one training run at a time.

    An interrupted run is written when the next one begins, or when the program ends. ``run`` is the
    last recorded run. If the first training run of a program is in run.sqlite, the second is in
    run-2.sqlite.
    """

    def __init__(self, output: str | Path, *, keep: bool, **asked: Any) -> None:
        self._output, self._keep, self._asked = str(output), keep, asked
        self._count = 0
        self._recorded: Recorded | None = None
        self.run: Run | None = None

    def begin(self) -> None:
        """Start recording.

        Raises:
            UsageError: the trace cannot be written, or the program is already recording.
        """
        for other in _active:
            other.end(failed=True)
        recorded = record(self._numbered_output(self._count + 1), **self._asked)
        recorded.__enter__()
        self._count += 1
        self._recorded = recorded
        _active.append(self)
        atexit.register(self.end, failed=True)

    def _numbered_output(self, number: int) -> str:
        """Return the output of the training run ``number``, counted from 1."""
        if number == 1:
            return self._output
        if self._output.endswith("/"):
            return f"{self._output.rstrip('/')}-{number}/"
        path = Path(self._output)
        return str(path.with_name(f"{path.stem}-{number}{path.suffix}"))

    def end(self, *, failed: bool = False, is_printed: bool = False) -> dict[str, float]:
        """Write the trace; return its headline metrics under the names for loggers.

        Errors are printed on standard error, and the training continues. ``is_printed``: print the
        headline.
        """
        if self._recorded is None:
            return {}
        recorded, self._recorded = self._recorded, None
        _active.remove(self)
        atexit.unregister(self.end)
        error = RuntimeError("the training run was interrupted") if failed else None
        recorded.__exit__(None if error is None else RuntimeError, error, None)
        if recorded.output is None:
            return {}
        try:
            self.run = recorded.run
            if self._keep:
                runs().add(self.run)
            if is_printed:
                print("\n".join(self.run.page().headline))
            return {f"{_PREFIX}{name}": value for name, value in self.run.figures().items()}
        except Exception as problem:
            sys.stderr.write(f"traceprof: {recorded.output}: {problem}\n")
            return {}
