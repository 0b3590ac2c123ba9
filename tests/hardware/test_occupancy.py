"""Occupancy by the limits of multiprocessors, against values of CUDA's own header."""

from __future__ import annotations

import numpy as np
import pytest

from traceprof.hardware.occupancy import LIMITS, cu_limits_of, occupancy_of, occupancy_of_cu

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


# Threads of a work-group, vector registers, local data share → work-groups, % and what limits, on
# an MI300X: by hand from 4 SIMDs of 8 waves of 64, 512 registers of a lane in units of 8, 64 KiB.
BY_HAND = {
    (256, 50, 0): (8, 100, "waves, registers"),  # 56 registers: 9 waves would fit, 8 there are
    (256, 128, 0): (4, 50, "registers"),  # 4 waves of a SIMD
    (256, 129, 0): (3, 37.5, "registers"),  # 136: 3 waves
    (1024, 64, 0): (2, 100, "waves, registers"),
    (256, 32, 20_000): (3, 37.5, "shared memory"),  # 20 480 of 65 536
    (64, 8, 512): (32, 100, "waves, registers"),
    (64, 8, 65_537): (0, 0, "shared memory"),
}


@pytest.mark.parametrize("launch", BY_HAND, ids=str)
def test_work_groups_of_a_compute_unit(launch: tuple[int, int, int]) -> None:
    limits = cu_limits_of("AMD Instinct MI300X")
    assert limits is not None
    arrays = [np.array([value], np.int64) for value in launch]
    found = occupancy_of_cu(limits, *arrays)
    blocks, percent, limiters = BY_HAND[launch]
    assert found.blocks.tolist() == [blocks]
    assert found.ratio[0] * 100 == pytest.approx(percent)
    assert ", ".join(name for name, is_one in found.limiters.items() if is_one[0]) == limiters


def test_models_of_amd_are_told_by_their_names() -> None:
    for name in ("AMD Instinct MI210", "AMD Instinct MI250X", "MI300A", "AMD Instinct MI325X"):
        assert cu_limits_of(name) == cu_limits_of("AMD Instinct MI300X")
    newest = cu_limits_of("AMD Instinct MI355X")
    assert newest is not None
    assert newest.shared_bytes == 160 << 10
    assert cu_limits_of("AMD Radeon RX 7900") is None
    assert cu_limits_of("NVIDIA H100 80GB HBM3") is None
