import gzip
import io
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.formats.kineto.events import read_kineto_events
from traceprof.formats.kineto.parse import exact_ns
from traceprof.formats.shared.json_stream import JsonArrayStream
from traceprof.model.tables import ABSENT

pytestmark = pytest.mark.usefixtures("decoder")

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
        {
            "ph": "X",
            "cat": "Trace",
            "name": "span",
            "pid": "Spans",
            "tid": "PyTorch",
            "ts": 1,
            "dur": 0,
        },
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
        None,
        5000,
        5500,
        -250,
        1500000,
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"ts": None},
        {"ts": "soon"},
        {"ts": True},
        {"ts": [5]},
        {"ts": "nan"},
        {"ts": "-inf"},
        {"ts": 1e300},
        {"ts": 10**30},
        {"ts": int("9" * 400)},
        {"dur": None},
        {"dur": "long"},
        {"dur": -3},
        {"dur": -0.001},
        {"dur": 2**70},
        {"dur": 1e20},
    ],
)
@pytest.mark.parametrize("others", [0, 3])
def test_an_event_at_no_time_is_left_out_and_counted(tmp_path, bad, others):
    def event(**more):
        return {"ph": "X", "cat": "kernel", "name": "k", "ts": 5.5, "dur": 2, **more}

    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [event(), event(**bad), *[event()] * others]}))
    events = read_kineto_events(path)
    assert events.start_ns.tolist() == [5500] * (1 + others)
    assert events.end_ns.tolist() == [7500] * (1 + others)
    assert events.left_out == 1


@pytest.mark.parametrize("name", ["ts", "dur"])
def test_so_is_one_without_a_time_and_an_instant_needs_no_length(tmp_path, name):
    events = [
        {"ph": "X", "cat": "kernel", "name": "whole", "ts": 1, "dur": 2},
        {"ph": "i", "cat": "kernel", "name": "instant", "ts": 7},
        {"ph": "X", "cat": "kernel", "name": "half", "ts": 1, "dur": 2},
    ]
    del events[2][name]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    read = read_kineto_events(path, phases=("X", "i"))
    assert list(read.name) == ["whole", "instant"]
    assert read.start_ns.tolist() == [1000, 7000]
    assert read.left_out == 1


@pytest.mark.parametrize("infinite", ["Infinity", "1e999", "NaN", "-Infinity"])
def test_numbers_that_json_has_not(tmp_path, infinite):
    good = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}'
    bad = good.replace('"ts": 1', f'"ts": {infinite}')
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{good}, {bad}, {good}]}}')
    events = read_kineto_events(path)
    assert events.start_ns.tolist() == [1000, 1000]
    assert events.left_out == 1


def test_a_wrong_checksum_loses_no_event_and_is_said(tmp_path):
    packed = bytearray(gzip.compress(json.dumps(DOCUMENT).encode()))
    packed[-8] ^= 1
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed)
    events = read_kineto_events(path)
    assert (len(events), events.is_complete, events.is_damaged) == (3, True, True)


@pytest.mark.parametrize("spacing", [None, 1])
def test_a_bad_byte_is_damage_and_a_lost_end_is_none(tmp_path, spacing):
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}
    text = json.dumps({"traceEvents": [event] * 2000}, indent=spacing)
    path = tmp_path / "trace.json"
    middle = text.index('"dur"', len(text) // 2)
    path.write_text(text[:middle] + "\x07" + text[middle + 1 :])
    damaged = read_kineto_events(path)
    assert (damaged.is_complete, damaged.is_damaged) == (False, True)
    assert 900 < len(damaged) < 1100
    path.write_text(text[:middle])
    cut = read_kineto_events(path)
    assert (cut.is_complete, cut.is_damaged, len(cut)) == (False, False, len(damaged))


@given(st.integers(1, 400))
def test_wherever_it_is_cut_off_it_is_no_damage(length):
    text = json.dumps(DOCUMENT)[:-1][:-length]
    stream = JsonArrayStream(io.BytesIO(text.encode()), "traceEvents")
    list(stream)
    assert (stream.is_complete, stream.is_damaged) == (False, False)
