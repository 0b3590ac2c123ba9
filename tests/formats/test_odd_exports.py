"""What is rare in real exports is told of unread tables as their readers tell it, too."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.formats.test_contract import EXECUTION, MAIN, PID
from tests.formats.test_read_options import (
    SUBSETS,
    check_outline,
    check_subset,
    check_window,
    whole_trace,
    windows_of,
)
from traceprof.formats.nsys.schema import global_id
from traceprof.formats.nsys.writer import write_nsys

THREAD, OTHER = global_id(PID, MAIN), global_id(77, 78)
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
ODDITIES = {
    "rows out of order": f"""
        CREATE TABLE turned AS SELECT * FROM {KERNEL} ORDER BY start DESC;
        DROP TABLE {KERNEL}; ALTER TABLE turned RENAME TO {KERNEL};
        CREATE TABLE turned AS SELECT * FROM {RUNTIME} ORDER BY [end] % 7;
        DROP TABLE {RUNTIME}; ALTER TABLE turned RENAME TO {RUNTIME};""",
    "the last ends before it starts": f"""
        UPDATE {RUNTIME} SET start = 9500, end = 9400 WHERE start = 8600;""",
    "versions of layouts": f"ALTER TABLE {KERNEL} RENAME TO {KERNEL}_V2;",
    "ranges never closed": """
        UPDATE NVTX_EVENTS SET end = NULL WHERE start IN (100, 3000);""",
    "a short capture": "UPDATE ANALYSIS_DETAILS SET duration = 4050;",
    "graphs without their work": f"""
        INSERT INTO StringIds VALUES (9001, 'cudaGraphLaunch_v10000');
        UPDATE {RUNTIME} SET nameId = 9001 WHERE start < 400;""",
    "graphs as a whole": f"""
        INSERT INTO StringIds VALUES (9001, 'cudaGraphLaunch_v10000');
        UPDATE {RUNTIME} SET nameId = 9001 WHERE start < 400;
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS SELECT *, 5 AS graphId FROM {KERNEL};""",
    "devices of the machine": f"""
        CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0, {PID}), (2, 1, {PID});""",
    "another process": f"""
        INSERT INTO {RUNTIME} (start, end, eventClass, globalTid, nameId, returnValue)
            VALUES (10, 20, 0, {OTHER}, 1, 0), (30, 40, 0, NULL, 1, 0);
        INSERT INTO ThreadNames VALUES (1, 0, {OTHER}), (1, 0, {global_id(5, 6)});""",
    "threads of nobody": f"INSERT INTO ThreadNames VALUES (1, 0, {global_id(5, 6)});",
    "NCCL": f"""
        INSERT INTO StringIds VALUES (9001, 'ncclAllReduce');
        INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text, textId) VALUES
            (3090, 3300, 59, {THREAD}, NULL, 9001), (3400, 3500, 59, {THREAD}, 'ncclSend', NULL),
            (3600, 3700, 59, {THREAD}, 'ncclGroupEnd', NULL);""",
    "PyTorch's annotations": f"""
        INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) VALUES
            (3090, 3300, 59, {THREAD}, 'nccl:all_reduce'), (1, 2, 59, {THREAD}, 'nccl:no op');""",
    "networks": """
        CREATE TABLE NET_NIC_METRIC (start, end, globalId, metricsListId, metricsIdx, value);
        INSERT INTO NET_NIC_METRIC VALUES (0, 10, 1, 1, 1, 5), (10, 20, 1, 1, 1, 5),
            (40, 12000, 1, 1, 1, 5), (-5, 30000, 1, 1, 2, 9), (7, 8, 1, 1, 2, 9);
        CREATE TABLE TARGET_INFO_NETWORK_METRICS (metricsListId, metricsIdx, name, unit);
        INSERT INTO TARGET_INFO_NETWORK_METRICS VALUES
            (1, 1, 'IB: Bytes sent', 'bytes/ms'), (1, 2, 'IB: Errors', '1/ms');""",
    "counters": f"""
        CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value);
        INSERT INTO GPU_METRICS VALUES (-20, 1, 1, 50), (9700, 1, 2, 60);
        CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS
            (start, globalPid, deviceId, bytes, memKind, memoryOperationType);
        INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES
            (5, {THREAD}, 0, 8, 2, 0), (60, {THREAD}, 0, 8, 2, 1), (99999, {THREAD}, 0, 8, 1, 0);
        CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start, globalPid);
        INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (9800, {THREAD});""",
    "overheads and calls of the system": f"""
        CREATE TABLE OSRT_API (start, end, globalTid, nameId);
        INSERT INTO OSRT_API VALUES (-100, 50, {OTHER}, 1);
        CREATE TABLE MPI_COLLECTIVES_EVENTS (start, end, globalTid, textId, size, commHandle);
        INSERT INTO StringIds VALUES (9001, 'MPI_Allreduce'), (9002, 'MPI_Wait');
        INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (60, 70, {OTHER}, 9001, 8, 1),
            (80, NULL, {OTHER}, 9002, NULL, NULL);""",
}


@pytest.mark.parametrize("oddity", ODDITIES)
def test_unread_tables_are_told_of_as_their_readers_tell(oddity: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.sqlite"
    write_nsys(EXECUTION, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE IF NOT EXISTS NVTX_EVENTS (start);"
            "DROP TABLE IF EXISTS TRACEPROF_COLLECTIVES;" + ODDITIES[oddity]
        )
    check_outline(path)
    for tables in SUBSETS:
        check_subset(path, tables)
    for window in windows_of(whole_trace(path)):
        check_window(path, window)
        check_window(path, window, frozenset({"collectives"}))
