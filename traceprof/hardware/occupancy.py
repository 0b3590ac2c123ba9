"""Theoretical occupancy: the threads that a multiprocessor runs at once, and the limiter.

The limits and the formula are those of ``cuda_occupancy.h`` (CUDA 12.9 and 13.5). The limits are
also in the CUDA C++ Programming Guide, section "Technical Specifications per Compute Capability".
From compute capability 9.0 on, clusters and named barriers can lower occupancy further, but no
trace contains them.

For AMD compute units, limits and allocation units are those of LLVM's AMDGPU target (gfx90a,
gfx942, gfx950). Registers are vector registers, architected and accumulation registers together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_Int64Array = npt.NDArray[np.int64]
_WARP: Final = 32
_REGISTER_UNIT: Final = 256
_MAX_BLOCK_REGISTERS: Final = 65536
_MAX_THREAD_REGISTERS: Final = 255
_DEFAULT_SHARED_BYTES: Final = 49152
_NO_LIMIT: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SmLimits:
    """The resources of one multiprocessor and their allocation units.

    ``opt_in_bytes`` is the maximum shared memory that a block can request. ``reserved_bytes`` of it
    are used by the driver. ``parts`` are the sub-partitions, each with its own registers.
    """

    warps: int
    blocks: int
    registers: int
    shared_bytes: int
    opt_in_bytes: int
    reserved_bytes: int
    shared_unit_bytes: int
    parts: int = 4


def _since_ampere(warps: int, blocks: int, shared_kib: int, registers: int = 65536) -> SmLimits:
    shared = shared_kib * 1024
    return SmLimits(warps, blocks, registers, shared, shared - 1024, 1024, 128)


_HOPPER: Final = _since_ampere(64, 32, 228)
_DESKTOP: Final = _since_ampere(48, 24, 100)
LIMITS: Final[Mapping[int, SmLimits]] = {
    35: SmLimits(64, 16, 65536, 49152, 49152, 0, 256),
    37: SmLimits(64, 16, 131072, 114688, 49152, 0, 256),
    50: SmLimits(64, 32, 65536, 65536, 49152, 0, 256),
    52: SmLimits(64, 32, 65536, 98304, 49152, 0, 256),
    60: SmLimits(64, 32, 65536, 65536, 49152, 0, 256, parts=2),
    61: SmLimits(64, 32, 65536, 98304, 49152, 0, 256),
    70: SmLimits(64, 32, 65536, 98304, 98304, 0, 256),
    75: SmLimits(32, 16, 65536, 65536, 65536, 0, 256),
    80: _since_ampere(64, 32, 164),
    86: _since_ampere(48, 16, 100),
    87: _since_ampere(48, 16, 164),
    88: _since_ampere(48, 16, 100),
    89: _DESKTOP,
    90: _HOPPER,
    100: _HOPPER,
    103: _HOPPER,
    107: _since_ampere(32, 16, 228),
    110: _since_ampere(48, 24, 228),
    120: _DESKTOP,
    121: _DESKTOP,
}
"""Compute capability (major × 10 + minor) → limits. A missing capability is unknown."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Arrays with one element per launch.

    ``blocks`` is the number of blocks that one multiprocessor runs at once; a launch with 0 blocks
    cannot run as described. ``ratio`` is the number of warps divided by the maximum number of
    warps. ``limiters`` maps each resource to a mask of the launches that it limits.
    """

    blocks: _Int64Array
    ratio: npt.NDArray[np.float64]
    limiters: Mapping[str, npt.NDArray[np.bool_]]


def occupancy_of(
    limits: SmLimits, block_threads: _Int64Array, registers: _Int64Array, shared_bytes: _Int64Array
) -> Occupancy:
    """Return the theoretical occupancy of launches on a multiprocessor with ``limits``.

    Args:
        limits: one of `LIMITS`.
        block_threads: threads per block, at least 1.
        registers: registers per thread.
        shared_bytes: static and dynamic shared memory per block, without the reserved bytes.
    """
    warps = -(-np.maximum(block_threads, 1) // _WARP)
    blocks_by_resource = {
        "warps": limits.warps // warps,
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared memory": _blocks_by_shared_memory(limits, shared_bytes),
        "blocks": np.full(len(warps), limits.blocks, np.int64),
    }
    blocks = np.minimum.reduce(list(blocks_by_resource.values()))
    return Occupancy(
        blocks,
        blocks * warps / limits.warps,
        {name: limit == blocks for name, limit in blocks_by_resource.items()},
    )


@dataclass(frozen=True, slots=True)
class CuLimits:
    """The resources of one compute unit: four SIMDs with eight waves of 64 threads each.

    ``shared_bytes`` is its local data share, allocated in units of ``shared_unit_bytes``.
    """

    shared_bytes: int
    shared_unit_bytes: int


_WAVE: Final = 64
_SIMDS: Final = 4
_WAVES_OF_SIMD: Final = 8
_LANE_REGISTERS: Final = 512
_LANE_REGISTER_UNIT: Final = 8
_LIMITS_BY_NAME: Final = (
    (re.compile(r"\bMI2[15]0X?\b", re.IGNORECASE), CuLimits(64 << 10, 512)),
    (re.compile(r"\bMI3(00[AX]?|08X|25X)\b", re.IGNORECASE), CuLimits(64 << 10, 512)),
    (re.compile(r"\bMI35[05]X\b", re.IGNORECASE), CuLimits(160 << 10, 1280)),
)


def cu_limits_of(device_name: str) -> CuLimits | None:
    """Return the compute unit limits of an AMD Instinct ``device_name``; otherwise None."""
    return next((limits for name, limits in _LIMITS_BY_NAME if name.search(device_name)), None)


def occupancy_of_cu(
    limits: CuLimits, block_threads: _Int64Array, registers: _Int64Array, shared_bytes: _Int64Array
) -> Occupancy:
    """Return the theoretical occupancy on an AMD compute unit; arguments as in `occupancy_of`."""
    waves = -(-np.maximum(block_threads, 1) // _WAVE)
    of_lane = _rounded_up(np.maximum(registers, 1), _LANE_REGISTER_UNIT)
    on_simd = np.minimum(_WAVES_OF_SIMD, _LANE_REGISTERS // of_lane)
    allocated = _rounded_up(shared_bytes, limits.shared_unit_bytes)
    blocks_by_resource = {
        "waves": _SIMDS * _WAVES_OF_SIMD // waves,
        "registers": on_simd * _SIMDS // waves,
        "shared memory": np.where(
            allocated > 0, limits.shared_bytes // np.maximum(allocated, 1), _NO_LIMIT
        ),
    }
    blocks = np.minimum.reduce(list(blocks_by_resource.values()))
    ratio = blocks * waves / (_SIMDS * _WAVES_OF_SIMD)
    return Occupancy(
        blocks, ratio, {name: limit == blocks for name, limit in blocks_by_resource.items()}
    )


def _blocks_by_registers(
    limits: SmLimits, warps: _Int64Array, registers: _Int64Array
) -> _Int64Array:
    of_warp = _rounded_up(registers * _WARP, _REGISTER_UNIT)
    parts = np.full(len(warps), limits.parts, np.int64)

    def held(parts: _Int64Array) -> _Int64Array:
        in_part = limits.registers // parts // np.maximum(of_warp, 1)
        can_launch = (of_warp * _rounded_up(warps, parts) <= _MAX_BLOCK_REGISTERS) & (
            registers <= _MAX_THREAD_REGISTERS
        )
        return np.where(can_launch, in_part * parts // warps, 0)

    found = held(parts)
    if limits.parts == 2:  # for 6.0, the header also requires a fit in four parts
        found = np.where(held(np.full(len(warps), 4, np.int64)) == 0, 0, found)
    return np.where(registers == 0, _NO_LIMIT, found)


def _blocks_by_shared_memory(limits: SmLimits, shared_bytes: _Int64Array) -> _Int64Array:
    allocated = _rounded_up(shared_bytes + limits.reserved_bytes, limits.shared_unit_bytes)
    # A block that requested no more gets the default.
    has_more = shared_bytes > _DEFAULT_SHARED_BYTES
    max_bytes = limits.reserved_bytes + np.where(
        has_more, limits.opt_in_bytes, _DEFAULT_SHARED_BYTES
    )
    held = np.where(allocated > 0, limits.shared_bytes // np.maximum(allocated, 1), _NO_LIMIT)
    return np.where(allocated > max_bytes, 0, held)


def _rounded_up(values: _Int64Array, unit: int | _Int64Array) -> _Int64Array:
    return -(-values // unit) * unit
