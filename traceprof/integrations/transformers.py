"""A callback for the transformers Trainer that records a training run and logs its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback

from traceprof.api.run import Run
from traceprof.integrations.training import TrainingRecorder


class TraceprofCallback(TrainerCallback):  # type: ignore[misc]
    """Record a training run of a transformers Trainer.

    >>> TraceprofCallback("run.sqlite", steps="10..20").add_to(trainer)
    >>> trainer.train()

    The callback logs the headline metrics with ``Trainer.log`` to TensorBoard, W&B, MLflow …
    under names such as ``traceprof/step_period_ns``.

    Use `add_to`. If you pass the callback in ``callbacks``, it records and prints but cannot log,
    because callbacks do not receive the Trainer.

    Args:
        output: the trace file. For several ranks, use a folder ("run/").
        keep: add the run to the database of runs.
        asked: more arguments of `traceprof.record`: steps, step_from, layers, max_size, force.
    """

    def __init__(
        self, output: str | Path = "trace.sqlite", *, keep: bool = False, **asked: Any
    ) -> None:
        self._recorder = TrainingRecorder(output, keep=keep, **asked)
        self._trainer: Any = None

    @property
    def run(self) -> Run | None:
        """The last run that this process recorded; None before the first one ends."""
        return self._recorder.run

    def add_to(self, trainer: Any) -> Self:
        """Add the callback to a Trainer, before the callbacks that close loggers; return self."""
        self._trainer = trainer
        trainer.add_callback(self)
        callbacks = trainer.callback_handler.callbacks
        callbacks.insert(0, callbacks.pop())
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Start recording."""
        del args, state, control
        self._recorder.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        """Write the trace, and log its headline metrics."""
        del args, control
        figures = self._recorder.end(is_printed=state.is_world_process_zero)
        if figures and self._trainer is not None:
            self._trainer.log(figures)
