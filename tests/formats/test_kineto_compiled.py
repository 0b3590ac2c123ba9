"""What the C makes of events is what Python makes of them, or nothing."""

import gzip
import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.kineto_file import as_json, columns_of, complete, document, kernel
from tests.real_traces import KINETO
from tests.requirements import TRACES, require
from traceprof.formats import compiled
from traceprof.formats.kineto import events as module
from traceprof.formats.kineto import parse
from traceprof.formats.kineto.columns import decode
from traceprof.formats.kineto.events import ColumnMaker, _EventJoiner, read_kineto_events
from traceprof.formats.kineto.parse import batch_of_items
from traceprof.formats.kineto.rows import PHASES, least_ns_read
from traceprof.formats.shared.json_stream import JsonArrayStream
from traceprof.model.tables import ABSENT

SHORT = b'[{"ph":"X","cat":"c","name":"n","pid":1,"tid":2,"ts":3.5,"dur":4%s}]'


@pytest.fixture(autouse=True)
def _compiled():
    require("compiled")


def without_c(monkeypatch, path):
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "loaded", lambda: None)
        return columns_of(read_kineto_events(path, least_ns_read, PHASES, with_shapes=True))


@pytest.mark.traces
@pytest.mark.parametrize("name", [n for n in KINETO if "-rank" not in n or "rank0" in n])
def test_real_traces_are_all_decoded_and_to_the_same(monkeypatch, name):
    require("traces")
    expected = without_c(monkeypatch, TRACES / name)
    monkeypatch.setattr(module, "parse_batch", None)
    found = read_kineto_events(TRACES / name, least_ns_read, PHASES, with_shapes=True)
    assert columns_of(found) == expected


def test_events_of_every_kind(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(document(5000))
    found = read_kineto_events(path, least_ns_read, PHASES, with_shapes=True)
    assert columns_of(found) == without_c(monkeypatch, path)


TEXT = document(20_000)


@pytest.mark.parametrize("change", ["whole", "packed", "damaged", "cut off"])
def test_long_documents(monkeypatch, tmp_path, change):
    path = tmp_path / "trace.json"
    middle = TEXT.index(b"}, {", len(TEXT) // 2)
    texts = {
        "whole": TEXT,
        "packed": gzip.compress(TEXT, 1),
        "damaged": TEXT[:middle] + b"}" + TEXT[middle:],
        "cut off": TEXT[: middle + 20],
    }
    path.write_bytes(texts[change])
    found = read_kineto_events(path, least_ns_read, PHASES, with_shapes=True)
    assert columns_of(found) == without_c(monkeypatch, path)
    assert len(found) > 5000
    assert found.is_complete == (change in ("whole", "packed"))


def read(text, directory):
    """Return what comes of a document, and whether that was decoded."""
    path = directory / "trace.json"
    path.write_bytes(text)
    return columns_of(read_kineto_events(path, with_shapes=True)), decode(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[]", []),
        (b" [ { } ] ", [("", "", "")]),
        (SHORT % b"", [("X", "c", "n")]),
        (
            b'[{"ph":"X","cat":null,"name":"a\\"b\\u00e9\xc3\xa9","args":null}]',
            [("X", None, 'a"béé')],
        ),
        (b'[{"name":"\\u0061","args":{}},\n\t{"name":"a"}]', [("", "", "a"), ("", "", "a")]),
    ],
)
def test_kinds(text, expected):
    found = decode(text)
    assert [found.kinds[code] for code in found.kind.tolist()] == expected


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("0", 0),
        ("-0.001", -1),
        ("1.2", 1200),
        ("1.2340", 1234),
        ("4390322129111.056", 4390322129111056),
        ("1610366387140599", 1610366387140599000),
        ("3999999999999999.999", 3999999999999999999),
        ("4000000000000000", parse.NO_TIME),
    ],
)
def test_times(written, ns):
    found = decode(b'[{"ts":%s,"dur":%s}]' % (written.encode(), written.encode()))
    assert found.start_ns.tolist() == found.duration_ns.tolist() == [ns]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ('"7"', 7),
        ('"-07"', -7),
        ('"x7"', ABSENT),
        ('""', ABSENT),
        ("null", ABSENT),
        ("999999999999999999", 10**18 - 1),
    ],
)
def test_whole_numbers(written, value):
    text = b'[{"pid":%s,"args":{"stream":%s}}]' % (written.encode(), written.encode())
    found = decode(text)
    assert found.process.tolist() == found.arguments["stream"].tolist() == [value]


@pytest.mark.parametrize(
    "more",
    [
        b',"args":{"stream":7,"stream":8}',
        b',"args":{"grid":[1,2,3],"block":["4",5,6],"context":1,"registers per thread":9}',
        b',"args":{"grid":null,"block":null,"dtype":null,"kind":"","Process Group Name":"0"}',
        b',"args":{"Input Dims":[[1,2],[],{"a":[true,false,null,-1.5e3]}],"x":"\\\\"}',
    ],
)
def test_arguments_that_are_decoded(monkeypatch, tmp_path, more):
    found, decoded = read(SHORT % more, tmp_path)
    assert decoded is not None
    monkeypatch.setattr(compiled, "loaded", lambda: None)
    assert read(SHORT % more, tmp_path)[0] == found


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[",
        b"{}",
        b"[1]",
        b"[{},]",
        b"[{}] x",
        b"[{}\x00]",
        SHORT % b",",
        SHORT % b',"tid":2',
        SHORT % b',"\\u0074s":1',
        SHORT % b',"x":"\n"',
        SHORT % b',"x":"\\x"',
        SHORT % b',"x":01',
        SHORT % b',"x":1.',
        SHORT % b',"x":tru',
        SHORT % (b',"x":' + 99 * b"[" + 99 * b"]"),
        SHORT % b',"args":[1]',
        SHORT % b',"args":{"stream":7.0}',
        SHORT % b',"args":{"stream":true}',
        SHORT % b',"args":{"stream":9999999999999999999}',
        SHORT % b',"args":{"dtype":1}',
        SHORT % b',"args":{"grid":[1,2]}',
        b'[{"ph":null}]',
        b'[{"name":5}]',
        b'[{"name":"\xff"}]',
        b'[{"name":"\\ud83d"}]',
        b'[{"ph":"M","args":{"name":"\xff"}}]',
        b'[{"ts":1.2345}]',
        b'[{"ts":1e3}]',
        b'[{"ts":"1"}]',
        b'[{"ts":00}]',
    ],
)
def test_what_is_not_plain_is_refused(text):
    assert decode(text) is None


EVENTS = [
    complete(
        "cpu_op", "aten::mm", 1500, 2500, args={"External id": 3, "Input type": ["float", ""]}
    ),
    complete("cpu_op", 'a "name"', 1000, 1001, pid="Spans", tid="7"),
    kernel("k<4, at::native>", 2000, 3000, grid=[1, 2, 3], block=[4, 1, 1], dtype="Float"),
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 5, "args": {"bytes": -512}},
]
PIECES = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1", b"-", b".5", b"e3", b" "]
PIECES += [
    b"\x00",
    b"\xff",
    b"\xc3\xa9",
    b"\\u00e9",
    b"\\ud83d",
    b'"ts":1.2345',
    b'"tid":2',
    b'"M"',
]


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_whatever_is_written_both_make_the_same_of_it(seed, n_changes):
    rng = random.Random(seed)
    text = as_json(rng.choices(EVENTS, k=rng.randint(1, 4))).encode()
    for _ in range(n_changes):
        start = rng.randrange(len(text))
        end = start + rng.choice([0, 1, 1, 5])
        text = text[:start] + rng.choice([b"", *PIECES, rng.randbytes(1)]) + text[end:]
    decoded = decode(text)
    if decoded is None:
        return
    maker = ColumnMaker(phases=frozenset("Xi"), with_shapes=True)
    parsed = parse.parse_batch(text)
    if parsed is None:  # it takes more of what nobody looks at
        parsed = batch_of_items(list(JsonArrayStream(io.BytesIO(text), "")))
    assert told(maker.rows(decoded)) == told(maker.rows_of(parsed))


def told(rows):
    """Return what comes of rows, in what can be compared."""
    joined = _EventJoiner(with_shapes=True)
    joined.add(rows)
    return columns_of(joined.finish(JsonArrayStream(io.BytesIO(), ""), is_damaged=False))
