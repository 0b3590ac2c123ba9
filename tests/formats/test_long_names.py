"""Names of megabytes: kept as their beginning, apart from each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.formats.test_contract import write_as_kineto
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.shared.redaction import MOST_CHARACTERS


@pytest.mark.parametrize("write", [write_as_kineto, write_nsys])
def test_long_names_are_cut_and_stay_distinct(write: object, tmp_path: Path) -> None:
    same = "k" * MOST_CHARACTERS
    builder = TraceBuilder()
    for place, name in enumerate((same, same + "1", same + "2", same + "1", "gemm")):
        builder.kernel(name, 100 * place, 100 * place + 90, launched_ns=(100 * place, 100 * place))
        builder.range(name, 100 * place, 100 * place + 95)
    assert callable(write)
    write(builder.build(), tmp_path / "trace")
    trace = open_trace(tmp_path / "trace")
    for table in (trace.kernels.to_frame(), trace.ranges.to_frame()):
        names = table["name"].astype(str).tolist()
        assert (names[0], names[4]) == (same, "gemm")
        assert names[1] == names[3] != names[2]
        assert names[1].startswith(f"{same}… ({MOST_CHARACTERS + 1} characters, ")
    assert (trace.kernels.to_frame()["end_ns"] - trace.kernels.to_frame()["start_ns"]).tolist() == [
        90
    ] * 5
