"""Occupancy by the limits of multiprocessors, against values of CUDA's own header."""

from __future__ import annotations

import numpy as np
import pytest

from traceprof.hardware.occupancy import LIMITS, occupancy_of

CAPABILITIES = (60, 70, 75, 80, 86, 89, 90, 100, 120)
# Threads of a block, registers, shared memory → blocks and % on each of CAPABILITIES, as the
# occupancy calculator of CUDA 13.5 (cuda_occupancy.h, compiled) gives them.
CALCULATED = {
    (128, 37, 0): "12 75, 12 75, 8 100, 12 75, 12 100, 12 100, 12 75, 12 75, 12 100",
    (320, 37, 0): "5 78.1, 4 62.5, 3 93.8, 4 62.5, 4 83.3, 4 83.3, 4 62.5, 4 62.5, 4 83.3",
    (256, 64, 0): "4 50, 4 50, 4 100, 4 50, 4 66.7, 4 66.7, 4 50, 4 50, 4 66.7",
    (1024, 65, 0): "0 0, 0 0, 0 0, 0 0, 0 0, 0 0, 0 0, 0 0, 0 0",
    (96, 40, 0): "16 75, 16 75, 10 93.8, 16 75, 16 100, 16 100, 16 75, 16 75, 16 100",
    (64, 16, 1000): "32 100, 32 100, 16 100, 32 100, 16 66.7, 24 100, 32 100, 32 100, 24 100",
    (256, 128, 49152): "1 12.5, 2 25, 1 25, 2 25, 2 33.3, 2 33.3, 2 25, 2 25, 2 33.3",
    (128, 255, 98304): "0 0, 1 6.25, 0 0, 1 6.25, 1 8.3, 1 8.3, 2 12.5, 2 12.5, 1 8.3",
    (384, 168, 200000): "0 0, 0 0, 0 0, 0 0, 0 0, 0 0, 1 18.75, 1 18.75, 0 0",
    (256, 33, 16384): "4 50, 6 75, 4 100, 6 75, 5 83.3, 5 83.3, 6 75, 6 75, 5 83.3",
    (1, 16, 0): "32 50, 32 50, 16 50, 32 50, 16 33.3, 24 50, 32 50, 32 50, 24 50",
}


@pytest.mark.parametrize("launch", CALCULATED, ids=str)
def test_blocks_and_occupancy_are_those_of_the_calculator(launch: tuple[int, int, int]) -> None:
    arrays = [np.array([value], np.int64) for value in launch]
    for capability, cell in zip(CAPABILITIES, CALCULATED[launch].split(", "), strict=True):
        blocks, percent = cell.split()
        found = occupancy_of(LIMITS[capability], *arrays)
        assert found.blocks.tolist() == [int(blocks)], capability
        assert found.ratio[0] * 100 == pytest.approx(float(percent), abs=0.06), capability


def test_every_resource_that_allows_no_more_is_named() -> None:
    launch = [np.array([value], np.int64) for value in (256, 32, 8192 - 1024)]
    found = occupancy_of(LIMITS[80], *launch)
    assert [name for name, is_one in found.limiters.items() if is_one[0]] == ["warps", "registers"]
    assert found.blocks.tolist() == [8]


def test_without_registers_or_shared_memory_neither_limits() -> None:
    found = occupancy_of(LIMITS[75], *(np.array([value], np.int64) for value in (32, 0, 0)))
    assert found.blocks.tolist() == [16]
    assert [name for name, is_one in found.limiters.items() if is_one[0]] == ["blocks"]
