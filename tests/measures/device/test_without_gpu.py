"""A recording that states that its machine has no GPU gets no advice to record one."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace, TraceInfo
from traceprof.session.answer import page
from traceprof.session.run import run_of

MS = 1_000_000


def _trace(*, is_without_gpu: bool) -> Trace:
    builder = TraceBuilder().process(1).sample("loss", 0, 1)
    for number in range(12):
        builder.step(number * MS, (number + 1) * MS, number).phase(
            "forward", number * MS, (number + 1) * MS
        )
    info = TraceInfo("t", profiler="traceprof", format="traceprof", is_without_gpu=is_without_gpu)
    return builder.build(info=info)


@pytest.mark.parametrize("name", ["memory", "counters"])
def test_samples_of_a_gpu(name: str) -> None:
    without, other = (run(name, _trace(is_without_gpu=it)).lacks for it in (True, False))
    assert without.endswith(": recorded on a machine without a GPU")
    assert "; record with `traceprof record" in other


def test_kernels() -> None:
    with pytest.raises(NotRecordedError, match="no kernels recorded: recorded on a machine with"):
        _trace(is_without_gpu=True).require("kernels")
    with pytest.raises(NotRecordedError, match="--with cupti"):
        _trace(is_without_gpu=False).require("kernels")


def test_the_page() -> None:
    unknown = [
        " ".join(str(note.values) for note in verdict.unknown)
        for it in (True, False)
        if (verdict := page(run_of(Ranks.of(_trace(is_without_gpu=it)))).verdict)
    ]
    assert ["--with cupti" in text for text in unknown] == [False, True]
