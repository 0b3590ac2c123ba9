"""Reading snapshots: what others wrote, what is damaged, what would do harm."""

import gzip
import pickle
import random
import resource
import sys
from pathlib import Path

import pytest

from tests.snapshots.allocator import Allocator, forward
from traceprof.errors import TraceError
from traceprof.snapshots import measured, reading
from traceprof.snapshots.measured import memory
from traceprof.snapshots.reading import is_snapshot, read_snapshot, unpacked_bytes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.pickle"


def test_frames_that_are_equal_are_one_stack(path):
    allocator = Allocator()
    for line in (7, 8, 7):
        allocator.alloc(100, forward(line))
    (device,) = read_snapshot(allocator.write(path)).devices
    assert len(device.stacks) == 2
    assert len(device.events) == 6  # each with its segment
    assert device.events["at_ns"][0] == 1_700_000_000_000_001_000


def test_it_may_be_compressed_and_of_any_protocol(path):
    allocator = Allocator()
    allocator.alloc(100)
    for protocol in (2, 3, 4, 5):
        path.write_bytes(gzip.compress(pickle.dumps(allocator.snapshot(), protocol)))
        assert is_snapshot(path)
        assert len(read_snapshot(path).devices[0].blocks) == 1


def test_what_older_versions_wrote_is_read(path):
    """Torch 2.0: no times, addresses of segments alone, stacks in the history of a block."""
    block = {"size": 512, "state": "active_allocated", "history": [{"frames": forward(7)}]}
    segment = {"device": 1, "address": 64, "total_size": 1024, "blocks": [block, {**block}]}
    event = {"action": "alloc", "addr": 64, "size": 500, "frames": forward(7), "stream": 0}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[], [event]]}))
    (device,) = read_snapshot(path).devices
    assert device.device == 1
    assert device.blocks["address"].tolist() == [64, 576]
    assert device.events["at_ns"].tolist() == [-1]
    assert len(device.stacks) == 1


class _Harmful:
    def __reduce__(self):
        return (print, ("harm",))


def test_nothing_is_imported_or_called(path, capsys):
    path.write_bytes(pickle.dumps({"segments": [_Harmful()]}))
    with pytest.raises(TraceError, match=r"the pickle imports builtins\.print"):
        read_snapshot(path)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pickles are read by Python")
def test_an_opcode_that_asks_for_all_memory_gets_none(path):
    before = resource.getrlimit(resource.RLIMIT_AS)
    path.write_bytes(b"\x80\x03]r" + (0x7FFFFFF0).to_bytes(4, "little") + b".")
    with pytest.raises(TraceError, match="takes too much memory"):
        memory([path])
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_pickle_that_hangs_its_reader_is_given_up(path, monkeypatch):
    """A dict hashes its keys, and a tuple hashes what it holds again each time."""
    key = ()
    for _ in range(60):
        key = (key, key)
    monkeypatch.setattr(measured, "_MIN_LIMIT_S", 1.0)
    # {key: None}, which this process could not make: it would hash the key.
    path.write_bytes(b"\x80\x02}" + pickle.dumps(key, 2)[2:-1] + b"Ns.")
    with pytest.raises(TraceError, match="takes more than 1 s"):
        memory([path])


def _nested(depth):
    found = ["lol"]
    for _ in range(depth):
        found = [found, found]
    return found


def _with(place, value):
    event = {"action": "alloc", "addr": 1, "size": 1, "time_us": 1}
    frame = {"filename": "a.py", "line": 1, "name": "f"}
    block = {"size": 1, "state": "inactive", "address": 1, "frames": [frame]}
    segment = {"device": 0, "address": 1, "total_size": 1, "blocks": [block]}
    mark = {"device": 0, "name": "n", "time_us": 1, "stage": "START"}
    tensor = {"device": 0, "address": 1, "size": 1, "kind": "gradients", "name": "w"}
    parts = {"event": event, "frame": frame, "block": block, "segment": segment}
    parts |= {"mark": mark, "tensor": tensor}
    part, name = place.split(".")
    parts[part][name] = value
    ours = {"tensors": [tensor], "step_ends_us": []}
    return {
        "segments": [segment],
        "device_traces": [[event]],
        "external_annotations": [mark],
        "traceprof": ours,
    }


@pytest.mark.parametrize(
    "place",
    [
        *("event.action", "event.addr", "event.size", "event.time_us", "event.frames"),
        *("frame.filename", "frame.line", "frame.name", "mark.name", "mark.time_us", "mark.device"),
        *("block.size", "block.state", "block.address", "block.requested_size", "block.frames"),
        *("segment.device", "segment.address", "segment.total_size", "segment.segment_type"),
        *("segment.blocks", "tensor.device", "tensor.kind", "tensor.name", "tensor.address"),
    ],
)
def test_types_are_checked_before_anything_is_formatted(path, place):
    """Lists in lists are a text of 2^depth characters."""
    path.write_bytes(pickle.dumps(_with(place, _nested(12))))
    with pytest.raises(TraceError) as refused:
        read_snapshot(path)
    assert len(str(refused.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("event.size", value) for value in (-1, 1 << 62, 1 << 64, float("nan"), "9" * 5000)),
        *(("event.time_us", value) for value in (1 << 60, 1 << 64)),
        *(("block.address", 1 << 64), ("segment.total_size", 1 << 62), ("tensor.size", -1)),
        *(("segment.device", value) for value in (1 << 15, 10**400, -(10**400))),
    ],
)
def test_numbers_that_overflow_are_refused(path, place, value):
    path.write_bytes(pickle.dumps(_with(place, value)))
    with pytest.raises(TraceError, match="memory snapshot is damaged"):
        read_snapshot(path)


def test_what_is_unpacked_is_bounded_by_the_file(path, monkeypatch):
    monkeypatch.setattr(reading, "_SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 1 << 16)
    path.write_bytes(gzip.compress(b"\x80\x02]" + b"N0" * (1 << 20)))
    with pytest.raises(TraceError, match="decompresses to more than 1 MiB"):
        memory([path])
    allocator = Allocator()
    for line in range(3000):
        allocator.alloc(512, forward(line % 7))
    path.write_bytes(gzip.compress(pickle.dumps(allocator.snapshot())))
    assert unpacked_bytes(path) == len(gzip.decompress(path.read_bytes()))


class _Counted(dict):
    looks = 0

    def __getitem__(self, name):
        _Counted.looks += 1
        return super().__getitem__(name)


def _looks(n_devices):
    _Counted.looks = 0
    plain = {
        "segments": [
            _Counted(device=number, address=1, total_size=1, blocks=[])
            for number in range(n_devices)
        ]
    }
    assert len(reading._Reader(plain).snapshot(Path("a.pickle")).devices) == n_devices
    return _Counted.looks


def test_segments_of_many_devices_are_each_read_once(path):
    assert _looks(200) == 2 * _looks(100)
    segments = [{"device": n, "address": 1, "total_size": 1, "blocks": []} for n in range(1025)]
    path.write_bytes(pickle.dumps({"segments": segments}))
    with pytest.raises(TraceError, match="1025 devices: expected at most 1024"):
        read_snapshot(path)


def test_segments_do_not_share_their_blocks(path):
    block = {"size": 1, "state": "inactive", "address": 1}
    blocks = [dict(block) for _ in range(3)]
    segments = [{"device": 0, "address": 1, "total_size": 1, "blocks": blocks} for _ in range(3)]
    path.write_bytes(pickle.dumps({"segments": segments}))
    with pytest.raises(TraceError, match="occurs several times"):
        read_snapshot(path)


def test_a_list_of_one_thing_a_million_times_is_refused(path):
    """A few bytes may name one list as often as they like, and one in it again."""
    events = [{"action": "alloc", "addr": 1, "size": 1}] * 1000
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events] * 1000}))
    with pytest.raises(TraceError, match="occurs several times"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "plain",
    [
        [],
        {"segments": 3},
        {"segments": [{"device": "x"}]},
        {"segments": [{"device": 0, "address": 1, "total_size": 1 << 70, "blocks": []}]},
        {"segments": [], "device_traces": [[{"action": "alloc"}]]},
        {"segments": [], "device_traces": [[3]]},
        {"segments": [], "device_traces": 7},
        {"segments": [], "traceprof": {"tensors": [{"device": None}]}},
        {"segments": [], "traceprof": []},
        {"segments": [], "external_annotations": [{"device": 0}], "device_traces": [[]]},
    ],
)
def test_what_is_odd_is_read_or_refused_in_our_words(path, plain):
    path.write_bytes(pickle.dumps(plain))
    try:
        read_snapshot(path)
    except TraceError as error:
        assert str(error).startswith(str(path))


def test_damaged_files_are_refused_or_read(path):
    """Whatever a byte says: an answer or our own error, and no file grows in memory."""
    allocator = Allocator()
    kept = [allocator.alloc(size, forward(size)) for size in range(1, 40)]
    for address in kept[::2]:
        allocator.free(address)
    whole = pickle.dumps(allocator.snapshot(), 4)
    chance = random.Random(7)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data[: chance.randint(len(data) // 2, len(data))]))
        try:
            read_snapshot(path)
        except TraceError:
            refused += 1
    assert refused > 100


def test_other_pickles_are_recognized_as_such(path):
    path.write_bytes(pickle.dumps({"loss": 0.5}))
    assert is_snapshot(path)
    with pytest.raises(TraceError, match="not a PyTorch memory snapshot"):
        read_snapshot(path)
    path.write_bytes(b"SQLite format 3\0")
    assert not is_snapshot(path)
    assert not is_snapshot(path.parent)
