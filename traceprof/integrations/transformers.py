"""A callback for the Trainer of transformers: it records the training and logs its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback

from traceprof.api.run import Run
from traceprof.integrations.training import TrainingRecorder


class TraceprofCallback(TrainerCallback):  # type: ignore[misc]
    """Records a training of a Trainer.

    >>> TraceprofCallback("run.sqlite", steps="10..20").add_to(trainer)
    >>> trainer.train()

    Its headline figures go through ``Trainer.log``, to whatever the Trainer reports to
    (TensorBoard, W&B, MLflow …), as ``traceprof/step_period_ns`` and the like. Handed to the
    Trainer as one of its ``callbacks`` it records and prints, but cannot log: no callback is told
    its Trainer.

    Args:
        output: the trace; where several ranks train, a folder ("run/").
        keep: add the run to the database of runs.
        asked: what else `traceprof.record` takes: steps, step_from, layers, max_size, force.
    """

    def __init__(
        self, output: str | Path = "trace.sqlite", *, keep: bool = False, **asked: Any
    ) -> None:
        self._recorder = TrainingRecorder(output, keep=keep, **asked)
        self._trainer: Any = None

    @property
    def run(self) -> Run | None:
        """What this process recorded last, None before its end."""
        return self._recorder.run

    def add_to(self, trainer: Any) -> Self:
        """Add it to a Trainer, ahead of the callbacks that close its loggers; return it."""
        self._trainer = trainer
        trainer.add_callback(self)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop())
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Begin to record."""
        del args, state, control
        self._recorder.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Write the trace, and log what it tells."""
        del args, control
        figures = self._recorder.end(is_told=state.is_world_process_zero)
        if figures and self._trainer is not None:
            self._trainer.log(figures)
