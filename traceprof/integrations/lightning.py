"""A Lightning callback that records a training run and logs its headline metrics."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from traceprof.api.run import Run
from traceprof.integrations.training import TrainingRecorder

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Return the package that the program uses: Lightning has two names."""
    used = [name for name in _NAMES if name in sys.modules]
    try:
        return importlib.import_module(used[0] if used else _NAMES[0])
    except ImportError:
        return importlib.import_module(_NAMES[1])


class TraceprofCallback(_lightning().Callback):  # type: ignore[misc]
    """Record a training run of a Lightning Trainer.

    >>> Trainer(callbacks=[TraceprofCallback("run.sqlite", steps="10..20")], logger=…)

    The callback sends the headline metrics to every logger of the Trainer (TensorBoard, W&B,
    MLflow …) under names such as ``traceprof/step_period_ns``.

    Args:
        output: the trace file. For several ranks, use a folder ("run/").
        keep: add the run to the database of runs.
        asked: more arguments of `traceprof.record`: steps, step_from, layers, max_size, force.
    """

    def __init__(
        self, output: str | Path = "trace.sqlite", *, keep: bool = False, **asked: Any
    ) -> None:
        super().__init__()
        self._recorder = TrainingRecorder(output, keep=keep, **asked)

    @property
    def run(self) -> Run | None:
        """The last run that this process recorded; None before the first one ends."""
        return self._recorder.run

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording."""
        del trainer, pl_module
        self._recorder.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the trace, and log its headline metrics."""
        del pl_module
        figures = self._recorder.end(is_printed=trainer.is_global_zero)
        for logger in trainer.loggers if figures else ():
            logger.log_metrics(figures, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the trace of a training run that failed."""
        del trainer, pl_module, exception
        self._recorder.end(failed=True)
