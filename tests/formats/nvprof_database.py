"""Writes small files of nvprof with the columns of version 12 that a reader needs."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

DEVICE_WORK = "start, end, deviceId, contextId, streamId, correlationId"
COLUMNS = {
    "CONCURRENT_KERNEL": f"{DEVICE_WORK}, name",
    "KERNEL": f"{DEVICE_WORK}, name",
    "MEMCPY": f"{DEVICE_WORK}, copyKind, srcKind, dstKind, flags, bytes",
    "MEMCPY2": f"{DEVICE_WORK}, copyKind, srcKind, dstKind, flags, bytes, srcDeviceId, dstDeviceId",
    "MEMSET": f"{DEVICE_WORK}, value, bytes, memoryKind",
    "RUNTIME": "cbid, start, end, processId, threadId, correlationId, returnValue",
    "DRIVER": "cbid, start, end, processId, threadId, correlationId, returnValue",
    "SYNCHRONIZATION": "type, start, end, correlationId, contextId, streamId, cudaEventId",
    "OVERHEAD": "overheadKind, objectKind, objectId, start, end",
    "UNIFIED_MEMORY_COUNTER": "counterKind, value, start, end, address, srcId, dstId, streamId",
    "MARKER": "flags, timestamp, id, objectKind, objectId, name, domain",
    "MARKER_DATA": "flags, id, payloadKind, payload, color, category",
    "NAME": "objectKind, objectId, name",
    "CONTEXT": "contextId, deviceId, computeApiKind, nullStreamId",
    "DEVICE": "id, name, uuid, globalMemorySize, globalMemoryBandwidth, numMultiprocessors",
    "PCIE": "type, id, pcieGeneration, linkRate, linkWidth",
    "NVLINK": "typeDev0, typeDev1, idDev0, idDev1, physicalNvLinkCount, bandwidth",
    "GRAPH_TRACE": "correlationId, start, end, deviceId, graphId, contextId, streamId",
}


class NvprofDatabase:
    """A file that is being written; close it (or use it as a context) when it is done."""

    def __init__(self, path: Path, version: int = 12) -> None:
        self.path = path
        self._strings: dict[str, int] = {}
        self._connection = sqlite3.connect(path)
        self._connection.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
        self._connection.execute("CREATE TABLE Version (version INTEGER)")
        self._connection.execute("INSERT INTO Version VALUES (?)", [version])
        self.string("-- null --")
        for table, columns in COLUMNS.items():
            quoted = columns.replace("end", '"end"')
            self._connection.execute(
                f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} (_id_ INTEGER PRIMARY KEY, {quoted})"
            )

    def __enter__(self) -> NvprofDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._connection):
            self._connection.commit()

    def string(self, text: str) -> int:
        """Return the id of a string."""
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            row = (self._strings[text], text)
            self._connection.execute("INSERT INTO StringTable VALUES (?, ?)", row)
        return self._strings[text]

    def add(self, table: str, **values: Any) -> None:
        """Add a row; columns that are left out are 0."""
        names = [name.strip() for name in COLUMNS[table].split(",")]
        row = [values.pop(name, 0) for name in names]
        assert not values, f"{table} has no {values}"
        marks = ",".join("?" * len(row))
        quoted = ",".join(f'"{name}"' for name in names)
        self._connection.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} ({quoted}) VALUES ({marks})", row
        )

    def drop_column(self, table: str, column: str) -> None:
        """Take away what an older version did not have."""
        self._connection.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_{table} DROP COLUMN {column}")


def object_id(process: int, thread: int = 0) -> bytes:
    """Return the 12 bytes that name a process or a thread."""
    return struct.pack("<IIi", process, thread & 0xFFFFFFFF, 0)
