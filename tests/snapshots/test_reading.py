"""Reading snapshots: what others wrote, what is damaged, what would do harm."""

import gzip
import pickle
import random
import resource
import sys

import pytest

from tests.snapshots.allocator import Allocator, forward
from traceprof.errors import TraceError
from traceprof.snapshots.reading import is_snapshot, read_snapshot


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
    with pytest.raises(TraceError, match=r"would import builtins\.print"):
        read_snapshot(path)
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere pickles are read by Python")
def test_an_opcode_that_asks_for_all_memory_gets_none(path):
    before = resource.getrlimit(resource.RLIMIT_AS)
    path.write_bytes(b"\x80\x03]r" + (0x7FFFFFF0).to_bytes(4, "little") + b".")
    with pytest.raises(TraceError, match="asks for more memory"):
        read_snapshot(path)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_list_of_one_thing_a_million_times_is_refused(path):
    """A few bytes may name one list as often as they like, and one in it again."""
    events = [{"action": "alloc", "addr": 1, "size": 1}] * 1000
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events] * 1000}))
    with pytest.raises(TraceError, match="named several times"):
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


def test_other_pickles_are_recognised_as_such(path):
    path.write_bytes(pickle.dumps({"loss": 0.5}))
    assert is_snapshot(path)
    with pytest.raises(TraceError, match="no memory snapshot of PyTorch"):
        read_snapshot(path)
    path.write_bytes(b"SQLite format 3\0")
    assert not is_snapshot(path)
    assert not is_snapshot(path.parent)
