import gzip
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.formats.kineto.events import exact_ns, read_kineto_events
from traceprof.model.tables import ABSENT

DOCUMENT = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "main"}},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 7,
            "tid": 8,
            "ts": 4390322129111.056,
            "dur": 10.5,
            "args": {"External id": 3},
        },
        {"ph": "i", "name": "Record Window End", "ts": 1.0, "pid": "", "tid": ""},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "ncclDevKernel",
            "pid": 0,
            "tid": 20,
            "ts": 4390322129121,
            "dur": 2,
            "args": {"device": 0, "stream": 20, "correlation": 9, "dtype": "Float"},
        },
        {"ph": "X", "cat": "Trace", "name": "span", "pid": "Spans", "tid": "PyTorch", "ts": 1},
    ],
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_columns_are_exact(tmp_path, pack):
    path = tmp_path / "trace.json"
    path.write_bytes(pack(json.dumps(DOCUMENT).encode()))
    events = read_kineto_events(path)
    assert events.is_complete
    assert events.base_time_ns == 1_700_000_000_000_000_000
    assert events.start_ns.tolist() == [4390322129111056, 4390322129121000, 1000]
    assert events.end_ns.tolist() == [4390322129121556, 4390322129123000, 1000]
    assert list(events.category) == ["cpu_op", "kernel", "Trace"]
    assert list(events.name) == ["aten::mm", "ncclDevKernel", "span"]
    assert events.process.tolist() == [7, 0, ABSENT]
    assert events.thread.tolist() == [8, 20, ABSENT]
    assert events.arguments["External id"].tolist() == [3, ABSENT, ABSENT]
    assert events.arguments["correlation"].tolist() == [ABSENT, 9, ABSENT]
    assert list(events.arguments["dtype"]) == ["", "Float", ""]
    assert events.process_names == {7: "python"}
    assert events.thread_names == {(7, 8): "main"}


def test_a_file_that_was_cut_off_gives_its_whole_events(tmp_path):
    path = tmp_path / "trace.json"
    text = json.dumps(DOCUMENT)
    path.write_text(text[: text.index("ncclDevKernel")])
    events = read_kineto_events(path)
    assert list(events.name) == ["aten::mm"]
    assert not events.is_complete


@given(st.integers(-(10**18), 10**18))
def test_three_decimals_are_exact(ns):
    assert exact_ns(str(Decimal(ns) / 1000)) == ns


def test_whole_and_short_numbers():
    assert [exact_ns(x) for x in (None, 5, "5.5", "-0.25", "1.5e3")] == [
        0,
        5000,
        5500,
        -250,
        1500000,
    ]
