"""The programs whose logs can be read, those first whose lines are the more telling."""

from __future__ import annotations

from typing import Final

from traceprof.logs.source import LogSource
from traceprof.logs.sources import (
    keras_mxnet,
    language,
    launchers,
    mlperf,
    notes,
    torch_loops,
    vision,
)

SOURCES: Final[tuple[LogSource, ...]] = (
    mlperf.MLPERF,
    language.MEGATRON,
    language.TORCHTITAN,
    torch_loops.NEMO,
    torch_loops.HF_TRAINER,
    language.DEEPSPEED,
    language.COMPOSER,
    language.FAIRSEQ,
    vision.TIMM,
    vision.TORCHVISION,
    vision.IMAGENET,
    vision.MMENGINE,
    vision.DETECTRON2,
    vision.TF_CNN_BENCHMARKS,
    launchers.HOROVOD,
    keras_mxnet.MXNET,
    notes.NANOGPT,
    keras_mxnet.KERAS,
    torch_loops.LIGHTNING,
    mlperf.DLLOGGER,
    torch_loops.METRICS_CSV,
    launchers.TORCHRUN,
    launchers.HOROVOD_ELASTIC,
    notes.NOTES,
)


def source_called(name: str) -> LogSource | None:
    """Return the source called ``name``, None where there is none."""
    return next((source for source in SOURCES if source.name == name), None)
