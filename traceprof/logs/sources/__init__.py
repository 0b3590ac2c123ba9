"""The programs whose logs can be read, those first whose lines are the more telling."""

from __future__ import annotations

from typing import Final

from traceprof.logs.base import Source
from traceprof.logs.sources import (
    composer,
    deepspeed,
    detectron2,
    dllogger,
    fairseq,
    hf_trainer,
    horovod,
    horovod_elastic,
    imagenet,
    keras,
    lightning,
    megatron,
    metrics_csv,
    mlperf,
    mmengine,
    mxnet,
    nanogpt,
    nemo,
    notes,
    tf_cnn_benchmarks,
    timm,
    torchrun,
    torchtitan,
    torchvision,
)

__all__ = ["SOURCES", "source_called"]

SOURCES: Final[tuple[Source, ...]] = (
    mlperf.SOURCE,
    megatron.SOURCE,
    torchtitan.SOURCE,
    nemo.SOURCE,
    hf_trainer.SOURCE,
    deepspeed.SOURCE,
    composer.SOURCE,
    fairseq.SOURCE,
    timm.SOURCE,
    torchvision.SOURCE,
    imagenet.SOURCE,
    mmengine.SOURCE,
    detectron2.SOURCE,
    tf_cnn_benchmarks.SOURCE,
    horovod.SOURCE,
    mxnet.SOURCE,
    nanogpt.SOURCE,
    keras.SOURCE,
    lightning.SOURCE,
    dllogger.SOURCE,
    metrics_csv.SOURCE,
    torchrun.SOURCE,
    horovod_elastic.SOURCE,
    notes.SOURCE,
)


def source_called(name: str) -> Source | None:
    """Return the source called ``name``, None where there is none."""
    return next((source for source in SOURCES if source.name == name), None)
