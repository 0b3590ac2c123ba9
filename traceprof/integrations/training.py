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
_going_on: list[TrainingRecorder] = []


class TrainingRecorder:
    """Records one training at a time; one that broke off is written when the next one begins.

    It is also written when the program ends. ``run`` is what was recorded last. The second training
    of a program goes to run-2.sqlite, where the first went to run.sqlite.
    """

    def __init__(self, output: str | Path, *, keep: bool, **asked: Any) -> None:
        self._output, self._keep, self._asked = str(output), keep, asked
        self._count = 0
        self._recorded: Recorded | None = None
        self.run: Run | None = None

    def begin(self) -> None:
        """Begin to record.

        Raises:
            UsageError: the trace cannot be written, or a recording of the program's own goes on.
        """
        for other in _going_on:
            other.end(failed=True)
        recorded = record(self._place(self._count + 1), **self._asked)
        recorded.__enter__()
        self._count += 1
        self._recorded = recorded
        _going_on.append(self)
        atexit.register(self.end, failed=True)

    def _place(self, number: int) -> str:
        if number == 1:
            return self._output
        if self._output.endswith("/"):
            return f"{self._output.rstrip('/')}-{number}/"
        path = Path(self._output)
        return str(path.with_name(f"{path.stem}-{number}{path.suffix}"))

    def end(self, *, failed: bool = False, is_told: bool = False) -> dict[str, float]:
        """Write the trace; return its headline figures under the names that loggers get.

        What goes wrong is said on standard error: the training goes on. ``is_told``: the headline
        is printed.
        """
        if self._recorded is None:
            return {}
        recorded, self._recorded = self._recorded, None
        _going_on.remove(self)
        atexit.unregister(self.end)
        error = RuntimeError("the training run was interrupted") if failed else None
        recorded.__exit__(None if error is None else RuntimeError, error, None)
        if recorded.output is None:
            return {}
        try:
            self.run = recorded.run
            if self._keep:
                runs().add(self.run)
            if is_told:
                print("\n".join(self.run.page().headline))
            return {f"{_PREFIX}{name}": value for name, value in self.run.figures().items()}
        except Exception as problem:
            sys.stderr.write(f"traceprof: {recorded.output}: {problem}\n")
            return {}
