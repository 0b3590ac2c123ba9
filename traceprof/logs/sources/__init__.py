"""The programs whose logs can be read: their lines, in `lines.toml`, and who reads them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from traceprof.logs.source import LogReader, LogSource, PatternReader, source_of
from traceprof.logs.sources.keras_mxnet import KerasReader, MxnetReader
from traceprof.logs.sources.language import (
    ComposerReader,
    DeepSpeedReader,
    FairseqReader,
    MegatronReader,
    TorchtitanReader,
)
from traceprof.logs.sources.launchers import HorovodElasticReader, HorovodReader, TorchrunReader
from traceprof.logs.sources.mlperf import DlloggerReader, MlperfReader
from traceprof.logs.sources.notes import NanoGptReader, NotesReader
from traceprof.logs.sources.torch_loops import (
    HfTrainerReader,
    LightningReader,
    MetricsCsvReader,
    NemoReader,
)
from traceprof.logs.sources.vision import (
    Detectron2Reader,
    ImagenetReader,
    MmengineReader,
    TfCnnReader,
    TimmReader,
)

_LINES: Final = Path(__file__).with_name("lines.toml")
_READERS: Final[dict[str, type[LogReader]]] = {
    "composer": ComposerReader,
    "deepspeed": DeepSpeedReader,
    "detectron2": Detectron2Reader,
    "dllogger": DlloggerReader,
    "fairseq": FairseqReader,
    "hf-trainer": HfTrainerReader,
    "horovod": HorovodReader,
    "horovod-elastic": HorovodElasticReader,
    "imagenet": ImagenetReader,
    "keras": KerasReader,
    "lightning": LightningReader,
    "megatron": MegatronReader,
    "metrics-csv": MetricsCsvReader,
    "mlperf": MlperfReader,
    "mmengine": MmengineReader,
    "mxnet": MxnetReader,
    "nanogpt": NanoGptReader,
    "nemo": NemoReader,
    "notes": NotesReader,
    "tf-cnn-benchmarks": TfCnnReader,
    "timm": TimmReader,
    "torchrun": TorchrunReader,
    "torchtitan": TorchtitanReader,
}
"""Who reads what the lines do not say; a source that is not here has its lines alone."""

SOURCES: Final[tuple[LogSource, ...]] = tuple(
    source_of(name, table, _READERS.get(name, PatternReader))
    for name, table in tomllib.loads(_LINES.read_text("utf-8")).items()
)
"""Those first whose lines are the more telling."""


def source_called(name: str) -> LogSource | None:
    """Return the source called ``name``, None where there is none."""
    return next((source for source in SOURCES if source.name == name), None)
