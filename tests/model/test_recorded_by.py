"""Advice on recording names what made the file, and no other profiler."""

import re
import tomllib
from pathlib import Path

import pytest

from traceprof.model import trace
from traceprof.model.tables import TABLES
from traceprof.model.trace import RecordedBy, TraceInfo, how_to_record

_ADVICE = tomllib.loads(Path(trace.__file__).with_name("recording.toml").read_text("utf-8"))
_NAMES = {
    RecordedBy.NSYS: r"\bnsys\b|--trace=|NVTX",
    RecordedBy.TORCH: r"torch\.profiler|record_function",
    RecordedBy.ROCPROF: r"rocprofv3|ROCTX",
    RecordedBy.JAX: r"jax\.profiler",
}
_ALSO_OF_OTHERS = {(RecordedBy.XLA, RecordedBy.JAX)}


@pytest.mark.parametrize("recorder", RecordedBy)
def test_no_other_profiler_is_named(recorder: RecordedBy) -> None:
    others = {
        own: pattern
        for own, pattern in _NAMES.items()
        if own is not recorder and (recorder, own) not in _ALSO_OF_OTHERS
    }
    if recorder is RecordedBy.NVPROF:
        others[RecordedBy.NSYS] = r"\bnsys\b|--trace="  # ranges are NVTX's there, too
    for text in map(recorder.how_to, _ADVICE["any"]):
        for pattern in others.values():
            assert not re.search(pattern, text.partition(", without other tools")[0]), text


def test_every_table_has_advice_and_every_recorder_is_one() -> None:
    assert set(TABLES) <= set(_ADVICE["any"])
    assert set(_ADVICE) - {"any"} <= set(RecordedBy)
    assert all(set(told) <= set(_ADVICE["any"]) for told in _ADVICE.values())


@pytest.mark.parametrize(
    ("format_name", "profiler", "recorder"),
    [
        ("nsys", "NVIDIA Nsight Systems 2023.4.4.54", RecordedBy.NSYS),
        ("nsys", "traceprof", RecordedBy.OWN),
        ("kineto", "torch.profiler (Kineto)", RecordedBy.TORCH),
        ("nvprof", "nvprof", RecordedBy.NVPROF),
        ("rocpd", "ROCprofiler-SDK", RecordedBy.ROCPROF),
        ("rocprofv3-json", "ROCprofiler-SDK", RecordedBy.ROCPROF),
        ("xplane", "jax.profiler 0.11.2", RecordedBy.JAX),
        ("xplane-json", "jax.profiler", RecordedBy.JAX),
        ("xplane-json", "jax.profiler or TensorFlow", RecordedBy.XLA),
        ("tables", "", RecordedBy.UNKNOWN),
    ],
)
def test_who_recorded(format_name: str, profiler: str, recorder: RecordedBy) -> None:
    assert TraceInfo(format=format_name, profiler=profiler).recorded_by is recorder


@pytest.mark.parametrize(
    ("format_name", "profiler", "name", "how"),
    [
        ("nsys", "traceprof", "kernels", "(`traceprof record --with cupti`)"),
        ("nsys", "NVIDIA Nsight Systems", "kernels", "(nsys: --trace=cuda)"),
        ("kineto", "", "copies", "(torch.profiler: ProfilerActivity.CUDA)"),
        ("rocpd", "", "api_calls", "(rocprofv3: --hip-trace)"),
        ("xplane", "jax.profiler 0.11", "ranges", "steps with jax.profiler.StepTraceAnnotation"),
        ("tables", "", "kernels", "record GPU activity"),
    ],
)
def test_of_a_table(format_name: str, profiler: str, name: str, how: str) -> None:
    info = TraceInfo(format=format_name, profiler=profiler)
    assert how_to_record(name, info, {"ranges"}).endswith(how)


def test_what_has_collectives_and_no_ranges_is_ours() -> None:
    # As the spool of a program without torch has it, whatever profiler wrote the file.
    text = how_to_record("ranges", TraceInfo(format="nsys"), {"collectives"})
    assert text.startswith(
        "the program did not use torch under the recorder and has no annotations"
    )
    # Kineto tells collectives with its kernels, and no ranges where the host is not recorded.
    kineto = how_to_record("ranges", TraceInfo(format="kineto"), {"collectives"})
    assert kineto == "name parts of the program with record_function()"


@pytest.mark.parametrize(
    ("recorder", "named"),
    [
        (RecordedBy.OWN, 'traceprof.range("data")'),
        (RecordedBy.TORCH, 'record_function("data")'),
        (RecordedBy.NSYS, 'the NVTX range "data"'),
        (RecordedBy.JAX, 'jax.profiler.TraceAnnotation("data")'),
    ],
)
def test_a_part_is_named_as_its_recorder_sees_it(recorder: RecordedBy, named: str) -> None:
    assert recorder.naming("data") == named
