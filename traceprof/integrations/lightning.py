"""A callback for Lightning: it records the training and logs its figures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from traceprof.api.run import Run
from traceprof.integrations.training import TrainingRecorder

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    """Return the package that the program uses: it has two names."""
    used = [name for name in _NAMES if name in sys.modules]
    try:
        return importlib.import_module(used[0] if used else _NAMES[0])
    except ImportError:
        return importlib.import_module(_NAMES[1])


class TraceprofCallback(_lightning().Callback):  # type: ignore[misc]
    """Records a training of a Lightning Trainer.

    >>> Trainer(callbacks=[TraceprofCallback("run.sqlite", steps="10..20")], logger=…)

    Its headline figures go to every logger of the Trainer (TensorBoard, W&B, MLflow …), as
    ``traceprof/step_period_ns`` and the like.

    Args:
        output: the trace; where several ranks train, a folder ("run/").
        keep: add the run to the database of runs.
        asked: what else `traceprof.record` takes: steps, step_from, layers, max_size, force.
    """

    def __init__(
        self, output: str | Path = "trace.sqlite", *, keep: bool = False, **asked: Any
    ) -> None:
        super().__init__()
        self._recorder = TrainingRecorder(output, keep=keep, **asked)

    @property
    def run(self) -> Run | None:
        """What this process recorded last, None before its end."""
        return self._recorder.run

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        del trainer, pl_module
        self._recorder.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the trace, and log what it tells."""
        del pl_module
        figures = self._recorder.end(is_told=trainer.is_global_zero)
        for logger in trainer.loggers if figures else ():
            logger.log_metrics(figures, step=trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the trace of a training that broke off."""
        del trainer, pl_module, exception
        self._recorder.end(failed=True)
