"""The programs whose logs can be read, those first whose lines are the more telling."""

from __future__ import annotations

from typing import Final

from traceprof.logs.source import LogSource
from traceprof.logs.sources import (
    frameworks,
    language,
    launchers,
    mlperf,
    notes,
    vision,
)
from traceprof.logs.sources import (
    mlperf as dllogger,
)

__all__ = ["SOURCES", "source_called"]


SOURCES: Final[tuple[LogSource, ...]] = (
    mlperf.MLPERF,
    language.MEGATRON,
    language.TORCHTITAN,
    frameworks.NEMO,
    frameworks.HF_TRAINER,
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
    frameworks.MXNET,
    language.NANOGPT,
    frameworks.KERAS,
    frameworks.LIGHTNING,
    dllogger.DLLOGGER,
    frameworks.METRICS_CSV,
    launchers.TORCHRUN,
    launchers.HOROVOD_ELASTIC,
    notes.NOTES,
)


def source_called(name: str) -> LogSource | None:
    """Return the source called ``name``, None where there is none."""
    return next((source for source in SOURCES if source.name == name), None)
