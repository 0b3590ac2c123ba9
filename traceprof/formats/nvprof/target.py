"""What a file of nvprof says of itself and of the machine."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nvprof.file import NvprofFile, object_ids, whole
from traceprof.formats.nvprof.format import PREFIX
from traceprof.model.tables import empty_table, make_table
from traceprof.model.trace import TraceInfo

__all__ = ["read_devices", "read_environment", "read_info", "read_processes"]

_GPU: Final = 1
_PCIE_GPU: Final = 0
_FIRST_EPOCH_NS: Final = 10**18  # September 2001: an earlier time is not one of day


def read_info(file: NvprofFile, format_name: str) -> TraceInfo:
    """Return where the file comes from."""
    versions = file.database.rows("SELECT version FROM Version")
    version = str(versions[0][0]) if versions else ""
    return TraceInfo(
        path=str(file.database.path),
        format=format_name,
        profiler="nvprof",
        schema_version=version,
        utc_epoch_ns=file.zero_ns if file.zero_ns >= _FIRST_EPOCH_NS else None,
    )


def read_devices(file: NvprofFile) -> pd.DataFrame:
    """Return the accelerators."""
    numbers = ("id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors")
    present = file.database.columns(f"{PREFIX}DEVICE")
    if not {*numbers, "uuid"} <= present:
        return empty_table("devices")
    capability = ("computeCapabilityMajor", "computeCapabilityMinor")
    columns = [*map(whole, numbers), "hex(uuid)"]
    columns += map(whole, capability) if present.issuperset(capability) else ["0", "-1"]
    rows = file.database.rows(f"SELECT {', '.join(columns)} FROM {PREFIX}DEVICE ORDER BY 1")
    return make_table(
        "devices",
        {
            "device": [row[0] for row in rows],
            "name": [file.strings.get(row[1], "") for row in rows],
            "uuid": [_uuid(row[5]) for row in rows],
            "memory_bytes": [row[2] for row in rows],
            "memory_bytes_per_s": [row[3] * 1000 for row in rows],
            "sm_count": [row[4] for row in rows],
            "compute_capability": [row[6] * 10 + row[7] for row in rows],
        },
    )


def read_processes(file: NvprofFile, used: np.ndarray) -> pd.DataFrame:
    """Return the processes with these ids, named by their programs.

    nvprof keeps the whole command line, whose arguments may hold secrets.
    """
    names: dict[int, str] = {}
    if {"objectKind", "objectId", "name"} <= file.database.columns(f"{PREFIX}NAME"):
        rows = file.database.rows(
            f"SELECT hex(objectId), {whole('name')} FROM {PREFIX}NAME WHERE objectKind = 1"
        )
        processes, _ = object_ids([row[0] for row in rows])
        names = {
            int(process): _program(file.strings.get(row[1], ""))
            for process, row in zip(processes, rows, strict=True)
        }
    return make_table(
        "processes",
        {"process": used, "name": [names.get(int(process), "") for process in used]},
    )


def read_environment(file: NvprofFile) -> pd.DataFrame:
    """Return how the devices are connected."""
    found = {**_pcie(file), **_nvlink(file)}
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def _pcie(file: NvprofFile) -> dict[str, str]:
    numbers = ("pcieGeneration", "linkRate", "linkWidth")
    if not {*numbers, "id", "type"} <= file.database.columns(f"{PREFIX}PCIE"):
        return {}
    rows = file.database.rows(
        f"SELECT hex(id), {', '.join(map(whole, numbers))} "
        f"FROM {PREFIX}PCIE WHERE type = {_PCIE_GPU}"
    )
    return {
        f"pcie device {int.from_bytes(bytes.fromhex(device)[:4], 'little')}": (
            f"generation {generation}, {width} lanes, {rate / 1000:g} GT/s each"
        )
        for device, generation, rate, width in rows
    }


def _nvlink(file: NvprofFile) -> dict[str, str]:
    numbers = ("typeDev0", "typeDev1", "physicalNvLinkCount", "bandwidth")
    has_links = {*numbers, "idDev0", "idDev1"} <= file.database.columns(f"{PREFIX}NVLINK")
    if not has_links or not {"id", "uuid"} <= file.database.columns(f"{PREFIX}DEVICE"):
        return {}
    devices = {
        uuid: f"device {device}"
        for device, uuid in file.database.rows(f"SELECT id, hex(uuid) FROM {PREFIX}DEVICE")
    }
    rows = file.database.rows(
        f"SELECT {', '.join(map(whole, numbers))}, hex(idDev0), hex(idDev1) FROM {PREFIX}NVLINK"
    )
    found = {}
    for kind, other_kind, n_links, kilobytes_per_s, end, other_end in rows:
        ends = (
            devices.get(uuid, "device") if code == _GPU else "processor"
            for code, uuid in ((kind, end), (other_kind, other_end))
        )
        found[f"nvlink {' - '.join(sorted(ends))}"] = (
            f"{n_links} links, {kilobytes_per_s / 1e6:g} GB/s"
        )
    return found


def _program(command: str) -> str:
    """Return the program and, where it is an interpreter, the script."""
    program, *arguments = command.split() or [""]
    script = arguments[:1] if arguments and arguments[0].endswith((".py", ".sh")) else []
    return " ".join([program, *script])


def _uuid(digits: str) -> str:
    """Return a UUID as nvidia-smi groups it."""
    plain = digits.lower()
    cuts = (0, 8, 12, 16, 20, len(plain))
    return "-".join(plain[start:end] for start, end in pairwise(cuts))
