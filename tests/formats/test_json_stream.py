import io
import json

from hypothesis import given
from hypothesis import strategies as st

from traceprof.formats.shared.json_stream import JsonArrayStream, mend_text

DOCUMENT = (
    b'{"schemaVersion": 1, "text": "a, \\"b\\" ]} \xc3\xa9", "rate": 12.5e+3, "n": 120,\n'
    b'"traceEvents": [ {"ts": 1.250, "args": {"x": [1, 2]}}, {"ts": 7}\n ], "baseTime": 99 }'
)
ITEMS = [{"ts": "1.250", "args": {"x": [1, 2]}}, {"ts": 7}]


class Dripping(io.BytesIO):
    """Gives at most a few bytes at a time."""

    def __init__(self, data: bytes, n_bytes: int) -> None:
        super().__init__(data)
        self.n_bytes = n_bytes

    def read(self, _size: int | None = -1) -> bytes:
        return super().read(self.n_bytes)


@given(st.integers(1, len(DOCUMENT)))
def test_chunks_may_end_anywhere(n_bytes):
    stream = JsonArrayStream(Dripping(DOCUMENT, n_bytes), "traceEvents")
    assert list(stream) == ITEMS
    assert stream.is_complete
    assert stream.header == {
        "schemaVersion": 1,
        "text": 'a, "b" ]} é',
        "rate": "12.5e+3",
        "n": 120,
        "baseTime": 99,
    }


@given(st.integers(1, len(DOCUMENT)), st.sampled_from(["", " \n", "\n\n{}  ", " x \0 y "]))
def test_what_stands_behind_the_document_is_counted(n_bytes, behind):
    stream = JsonArrayStream(Dripping(DOCUMENT + behind.encode(), n_bytes), "traceEvents", 1 << 6)
    assert list(stream) == ITEMS
    assert stream.bytes_behind == len(behind.strip())
    alone = JsonArrayStream(Dripping(b"[1, 2]" + behind.encode(), n_bytes), "traceEvents", 1 << 6)
    assert (list(alone), alone.bytes_behind) == ([1, 2], len(behind.strip()))


@given(st.integers(0, len(DOCUMENT) - 1))
def test_a_document_that_is_cut_off_yields_what_is_whole(length):
    stream = JsonArrayStream(io.BytesIO(DOCUMENT[:length]), "traceEvents")
    items = list(stream)
    assert items == ITEMS[: len(items)]
    assert not stream.is_complete


def test_numbers_of_more_digits_than_python_reads_stay_texts():
    digits = "7" * 5000
    stream = JsonArrayStream(io.BytesIO(f"[{digits}, -12]".encode()), "traceEvents")
    assert list(stream) == [digits, -12]


def test_halves_of_characters_are_replaced():
    assert mend_text("a\ud800b\udcffc") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_a_bare_array_is_a_document():
    stream = JsonArrayStream(io.BytesIO(json.dumps([1, [2], "3"]).encode()), "traceEvents")
    assert list(stream) == [1, [2], "3"]
    assert stream.is_complete


def test_what_is_not_json_has_no_items():
    stream = JsonArrayStream(io.BytesIO(b"hello"), "traceEvents")
    assert list(stream) == []
    assert not stream.is_complete


NAMES = st.sampled_from(["k", "}, {", '"}, {"', "\\", "é", "a]b", "lambda()#1}, {lambda"])
VALUES = st.one_of(st.integers(), NAMES, st.lists(st.just({"a": 1}), max_size=3))


@given(
    st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=30),
    st.integers(1, 200),
    st.sampled_from([None, 1]),
)
def test_runs_of_items_are_the_items(items, n_bytes, indent):
    text = json.dumps({"traceEvents": items, "after": [{"b": 1}, {"c": 2}]}, indent=indent)
    stream = JsonArrayStream(io.BytesIO(text.encode()), "traceEvents", chunk_bytes=n_bytes)
    runs = list(stream.batches(parse_dictionaries))
    assert [item for run in runs for item in run] == items
    assert stream.is_complete
    assert stream.header == {"after": [{"b": 1}, {"c": 2}]}


def parse_dictionaries(text):
    try:
        items = json.loads(text)
    except ValueError:
        return None
    return items if isinstance(items, list) else None


def test_most_items_come_in_runs():
    items = [{"name": f"kernel {number}"} for number in range(1000)]
    stream = JsonArrayStream(io.BytesIO(json.dumps(items).encode()), "", chunk_bytes=5000)
    sizes = [len(run) for run in stream.batches(parse_dictionaries)]
    assert sum(sizes) == 1000
    assert len(sizes) < 100


def test_what_follows_the_items_does_not_make_them_slow():
    items = [{"name": f"kernel {number}"} for number in range(1000)]
    after = [{"gpu": number} for number in range(20)]
    text = json.dumps({"traceEvents": items, "devices": after})
    stream = JsonArrayStream(io.BytesIO(text.encode()), "traceEvents")
    sizes = [len(run) for run in stream.batches(parse_dictionaries)]
    assert sum(sizes) == 1000
    assert len(sizes) < 20
    assert stream.header == {"devices": after}
