"""What Python writes into a page and the browser reads of it, number by number."""

from __future__ import annotations

import json
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.requirements import ROOT, require
from traceprof.model.trace import Trace
from traceprof.render.page.document import text_of_bytes
from traceprof.render.timeline.channels import NameTotals, condense_until
from traceprof.render.timeline.encode import Streams, encode_lanes, encode_varints
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.marks import SampleSeries
from traceprof.render.timeline.render import pack_within

READER = ROOT / "tests" / "render" / "timeline_js" / "decoded.mjs"


def _read(what: str, data: bytes, folder: Path, more: str = "") -> Any:
    file = folder / "data"
    file.write_bytes(data)
    command = [require("node"), str(READER), what, str(file), more]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def _columns() -> list[list[int]]:
    random = np.random.default_rng(3)
    powers = [1 << bits for bits in range(53)]
    return [
        [],
        [0],
        [*range(300)],
        [number + more for number in powers for more in (-1, 0, 1)],
        random.integers(0, 1 << 53, 500).tolist(),
        (10 ** random.uniform(0, 15, 2_000)).astype(np.int64).tolist(),
        [900] * 700 + [(1 << 53) - 1],
    ]


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    columns = _columns()
    streams = Streams()
    random = np.random.default_rng(4)
    groups = [random.integers(0, 40, len(column)) for column in columns]
    for i, column in enumerate(columns):
        streams.add_numbers(f"c{i}", np.array(column, np.int64))
        streams.add_numbers(f"g{i}", np.array(column, np.int64), groups[i])
    names = [f"{kind}{i}" for kind in "cg" for i in range(len(columns))]
    told = {
        "lengths": streams.lengths,
        "names": names,
        "groups": [None] * len(columns) + [found.tolist() for found in groups],
    }
    found = _read("columns", streams.joined(), tmp_path, json.dumps(told))
    assert found == [*columns, *columns]


def test_numbers_that_are_alike_in_their_groups_are_shorter_for_it() -> None:
    random = np.random.default_rng(5)
    groups = random.integers(0, 30, 20_000)
    values = np.rint(1.5**groups * random.uniform(990, 1010, 20_000)).astype(np.int64)
    plain, grouped = Streams(), Streams()
    plain.add_numbers("x", values)
    grouped.add_numbers("x", values, groups)
    assert len(zlib.compress(grouped.joined())) < 0.8 * len(zlib.compress(plain.joined()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0], b"\x00"),
        ([127], b"\x7f"),
        ([128], b"\x80\x01"),
        ([1 << 53], b"\x80\x80\x80\x80\x80\x80\x80\x10"),
        ([1, 300, 2], b"\x01\xac\x02\x02"),
    ],
)
def test_a_varint_takes_seven_bits_a_byte(values: list[int], expected: bytes) -> None:
    assert encode_varints(np.array(values, np.uint64)) == expected


def test_text_gives_back_the_bytes(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    blocks = [b"", b"\0", b"\0" * 9, b"<" * 50, bytes(range(256)), b"\x1b\r\n" * 99]
    blocks += [random.integers(0, 256, n, np.uint8).tobytes() for n in (*range(1, 40), 4_000)]
    pairs = [(text_of_bytes(block), len(block)) for block in blocks]
    found = _read("text", json.dumps(pairs).encode(), tmp_path)
    assert found == [list(block) for block in blocks]


@given(st.binary(max_size=200))
@example(b"\0" * 7)
def test_text_holds_nothing_that_a_page_would_change_and_is_short(data: bytes) -> None:
    text = text_of_bytes(data)
    assert not set(text) & set("\0\r\n<\x1b\x7f")
    assert len(text.encode()) <= -(-len(data) * 8 // 7) + 1


def _read_trace(trace: Trace, folder: Path, max_items: int | None = None) -> tuple[Any, Any]:
    lanes = build_lanes(trace, trace.span)
    drawn, merged = lanes, None
    if max_items is not None:
        drawn, _ = condense_until(lanes, max_items)
        merged = NameTotals.of(lanes).minus(NameTotals.of(drawn))
    return drawn, _read("trace", encode_lanes(drawn, {}, (), merged), folder)


NAMES = (
    *("", "7", "a7b", "op 1", "op 2", "op 10", "op 01", "op 1.50", "x<1, 2>(3)", "٣ 4"),
    *("9" * 16, "9" * 15, "-5", "1 2 3", "1 2 4", "名前 12", "a\x01b 3"),
)


def test_names_keep_their_numbers_to_the_letter(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i, name in enumerate((*NAMES, *NAMES[::-1])):
        builder.kernel(name, 10 * i, 10 * i + 5, stream=i % 3)
    lanes, found = _read_trace(builder.build(), tmp_path)
    assert found["names"] == list(lanes.names)
    assert len(found["names"]) == len(NAMES)
    assert found["merged"] is None


def test_numbered_names_take_no_room_of_their_own() -> None:
    def size(name: str) -> int:
        builder = TraceBuilder()
        for i in range(3_000):
            builder.kernel(name.format(i), 10 * i, 10 * i + 5)
        trace = builder.build()
        return len(zlib.compress(encode_lanes(build_lanes(trace, trace.span), {})))

    assert size("aten::linear, op_id = {}") < 100 + size("aten::linear, op_id")


def test_a_merged_item_says_how_many_and_each_name_how_many_are_merged(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for i in range(40):
        builder.kernel("short", 100 * i, 100 * i + 20).kernel("other", 100 * i + 30, 100 * i + 41)
    builder.kernel("short", 10_000, 90_000)
    lanes, found = _read_trace(builder.build(), tmp_path, max_items=10)
    (channel,) = lanes.channels
    (read,) = found["channels"]
    assert channel.n_events == 81
    assert read["counts"] == channel.counts.tolist()
    assert read["busy"] == channel.busy_ns.tolist()
    merged = dict(zip(found["names"], zip(*found["merged"].values(), strict=True), strict=True))
    assert merged == {"short": (40, 800), "other": (40, 440)}


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel("k", 0, 10).build()
    values = np.array([0.1, -2.5, 1e300, 3.0])
    series = SampleSeries("load", "gpu 0", np.array([-5, 0, 7, 1 << 40]), values)
    lanes = build_lanes(trace, trace.span)
    found = _read("trace", encode_lanes(lanes, {}, [series, series]), tmp_path)
    assert found["samples"] == [{"times": series.times.tolist(), "values": values.tolist()}] * 2


def test_what_does_not_fit_is_drawn_with_fewer_items_until_it_does() -> None:
    random = np.random.default_rng(8)
    asked: list[int] = []

    def draw(most: int) -> tuple[str, int, bytes]:
        asked.append(most)
        n_items = min(most, 300_000)
        return f"{n_items} items", n_items, random.bytes(2 * n_items)

    drawn, packed = pack_within(draw, 1_000_000, max_bytes=100_000)
    assert asked[0] == 1_000_000
    assert drawn == f"{asked[-1]} items"
    assert 60_000 < len(packed) <= 100_000


def test_what_fits_is_drawn_once() -> None:
    assert pack_within(lambda most: (most, most, b"a"), 70, max_bytes=100)[0] == 70
