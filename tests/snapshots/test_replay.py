"""Levels and lives, held against an allocator that counts by itself."""

import random

import pytest

from tests.snapshots.allocator import Allocator, forward
from traceprof.snapshots.reading import read_snapshot
from traceprof.snapshots.replay import out_of_memory, replay, unaccounted_bytes


def replayed(allocator, tmp_path, **more):
    (device,) = read_snapshot(allocator.write(tmp_path / "s.pickle", **more)).devices
    return replay(device)


@pytest.mark.parametrize("seed", range(20))
def test_levels_and_lives_are_those_of_the_allocator(seed, tmp_path):
    """Whatever lived before the first event, what of the events were overwritten."""
    chance = random.Random(seed)
    allocator = Allocator()
    allocator.is_recording = False
    alive = {allocator.alloc(chance.randint(1, 5000)): True for _ in range(10)}
    allocator.is_recording = True
    levels, sets = [], []

    def level():
        return sum(
            block["requested_size"]
            for block in allocator.blocks.values()
            if block["state"] == "active_allocated"
        )

    for _ in range(200):
        before = len(allocator.trace)
        if alive and chance.random() < 0.5:
            address = chance.choice(list(alive))
            del alive[address]
            allocator.free(address)
        else:
            alive[allocator.alloc(chance.randint(1, 5000), forward(chance.randint(1, 9)))] = True
        levels += [None] * (len(allocator.trace) - before - 1) + [level()]
        sets.append((len(allocator.trace) - 1, sorted(alive)))
    kept = chance.choice([0, 0, 57])  # of a ring of events the first are lost
    del allocator.trace[:kept]
    found = replayed(allocator, tmp_path)
    for event, wanted in enumerate(levels[kept:]):
        if wanted is not None:
            assert found.level_at(event) == wanted
    for event, addresses in sets:
        if event >= kept:
            there = found.alive_at(event - kept)
            assert sorted(there["address"].tolist()) == addresses
            assert int(there["size_bytes"].sum()) == found.level_at(event - kept)
    assert unaccounted_bytes(found) == 0
    assert found.level_at(found.peak) == max(
        [int(found.level_bytes[0]), *(one for one in levels[kept:] if one is not None)]
    )


def test_what_is_reserved_grows_with_segments(tmp_path):
    allocator = Allocator()
    first = allocator.alloc(1000)
    allocator.free(first)
    allocator.alloc(1000)  # the same segment again
    allocator.alloc(5000)
    found = replayed(allocator, tmp_path)
    assert found.reserved_bytes[0] == 0
    assert found.reserved_bytes[-1] == 1024 + 5120
    assert found.level_bytes[-1] == 6000


def test_memory_that_ran_out_is_found(tmp_path):
    allocator = Allocator()
    allocator.alloc(1000)
    assert out_of_memory(replayed(allocator, tmp_path)) is None
    allocator.fail(1 << 30, left=4096)
    found = replayed(allocator, tmp_path)
    assert out_of_memory(found) == 2
    assert found.memory.events["free_bytes"].tolist()[-1] == 4096


def test_events_that_were_lost_are_counted(tmp_path):
    allocator = Allocator()
    address = allocator.alloc(1000)
    allocator.free(address)
    allocator.trace = [one for one in allocator.trace if not one["action"].startswith("free")]
    assert unaccounted_bytes(replayed(allocator, tmp_path)) == 1000
