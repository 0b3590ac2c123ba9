"""Writes small rocpd databases as rocprofv3 has them: tables with a unique id, and views."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Self

GUID = "0000aaaa_1111_2222_3333_444455556666"
_TABLES = """
metadata: tag value
string: guid string
info_node: guid machine_id system_name hostname release
info_process: guid nid ppid pid command environment extdata
info_thread: guid nid pid tid name
info_agent: guid nid pid type absolute_index logical_index type_index name product_name extdata
info_queue: guid name
info_stream: guid name
info_kernel_symbol: guid kernel_name display_name arch_vgpr_count accum_vgpr_count
track: guid nid pid tid name_id
event: guid category_id stack_id parent_stack_id correlation_id extdata
arg: guid event_id position type name value
region: guid nid pid tid start end name_id event_id
sample: guid track_id timestamp event_id
kernel_dispatch: guid nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end
  group_segment_size workgroup_size_x workgroup_size_y workgroup_size_z grid_size_x grid_size_y
  grid_size_z event_id
memory_copy: guid nid pid tid start end name_id dst_agent_id src_agent_id size queue_id stream_id
  event_id
"""
_VIEWS = {"processes": "info_process", "threads": "info_thread", "kernels": "kernel_dispatch"}


class RocpdDatabase:
    """A file with the tables of one process, which is agent 0's host and has two GPUs: 4 and 6."""

    def __init__(self, path: Path, pid: int = 4242, guid: str = GUID, **process: Any) -> None:
        self.file = sqlite3.connect(path)
        self.suffix = f"_{guid}"
        self.pid = pid
        self.strings: dict[str, int] = {}
        text = _TABLES.replace("\n  ", " ").strip()
        for name, columns in (line.split(": ") for line in text.splitlines()):
            listed = ", ".join(f'"{column}"' for column in columns.split())
            self.file.execute(
                f'CREATE TABLE "rocpd_{name}{self.suffix}" (id INTEGER PRIMARY KEY, {listed})'
            )
        for view, name in _VIEWS.items():
            self.file.execute(
                f'CREATE VIEW IF NOT EXISTS {view} AS SELECT * FROM "rocpd_{name}{self.suffix}"'
            )
        self.add("metadata", tag="schema_version", value="3")
        self.add("info_node", id=7, system_name="Linux", hostname="alpha", release="6.8")
        self.add(
            "info_process", id=pid, nid=7, pid=pid, **{"command": "python train.py", **process}
        )
        self.add("info_agent", id=0, type="CPU", type_index=0, name="EPYC", extdata="{}")
        for agent, index in ((4, 0), (6, 1)):
            self.add(
                "info_agent",
                id=agent,
                type="GPU",
                type_index=index,
                name="gfx942",
                product_name="AMD Instinct MI300X",
                extdata=json.dumps({"cu_count": 304}),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.commit()
        self.file.close()

    def add(self, table: str, /, **row: Any) -> int:
        """Add a row to a table and return its id."""
        columns = ", ".join(f'"{column}"' for column in row)
        marks = ", ".join("?" * len(row))
        added = self.file.execute(
            f'INSERT INTO "rocpd_{table}{self.suffix}" ({columns}) VALUES ({marks})',
            list(row.values()),
        )
        return int(added.lastrowid or 0)

    def string(self, text: str) -> int:
        """Return the id of a text."""
        if text not in self.strings:
            self.strings[text] = self.add("string", string=text)
        return self.strings[text]

    def event(self, category: str, stack: int, message: str = "") -> int:
        """Add an event: what a row is and which call it belongs to; return its id."""
        told = json.dumps({"message": message}) if message else "{}"
        return self.add("event", category_id=self.string(category), stack_id=stack, extdata=told)

    def thread(self, tid: int, name: str = "") -> int:
        """Return the id of a thread."""
        place = f'"rocpd_info_thread{self.suffix}"'
        found = self.file.execute(f"SELECT id FROM {place} WHERE tid = ?", (tid,)).fetchone()
        if found:
            return int(found[0])
        return self.add("info_thread", nid=7, pid=self.pid, tid=tid, name=name or None)

    def region(
        self,
        category: str,
        name: str,
        span: tuple[int, int],
        tid: int,
        stack: int,
        message: str = "",
    ) -> int:
        """Add a call or a range of the host, and return its event."""
        event = self.event(category, stack, message)
        place = {"nid": 7, "pid": self.pid, "tid": self.thread(tid), "event_id": event}
        times = {"start": span[0], "end": span[1]}
        self.add("region", name_id=self.string(name), **times, **place)
        return event

    def kernel(
        self,
        name: str,
        span: tuple[int, int],
        stack: int,
        agent: int = 4,
        stream: int = 1,
        **more: Any,
    ) -> None:
        """Add a kernel that the call ``stack`` launched."""
        symbols = f'"rocpd_info_kernel_symbol{self.suffix}"'
        found = self.file.execute(f"SELECT id FROM {symbols} WHERE display_name = ?", (name,))
        row = found.fetchone()
        told = {"arch_vgpr_count": 40, "accum_vgpr_count": 8}
        symbol = row[0] if row else self.add("info_kernel_symbol", display_name=name, **told)
        place = {"nid": 7, "pid": self.pid, "agent_id": agent, "queue_id": 3, "stream_id": stream}
        groups = {
            f"workgroup_size_{axis}": size for axis, size in zip("xyz", (64, 2, 1), strict=True)
        }
        items = {f"grid_size_{axis}": size for axis, size in zip("xyz", (640, 4, 1), strict=True)}
        event = self.event("KERNEL_DISPATCH", stack)
        own = {"kernel_id": symbol, "event_id": event, "group_segment_size": 1024, **more}
        self.add("kernel_dispatch", start=span[0], end=span[1], **place, **groups, **items, **own)

    def copy(
        self,
        way: str,
        span: tuple[int, int],
        stack: int,
        size: int,
        agents: tuple[int, int],
        stream: int = 1,
    ) -> None:
        """Add a copy from the first of ``agents`` to the second."""
        event = self.event("MEMORY_COPY", stack)
        place = {"nid": 7, "pid": self.pid, "stream_id": stream, "event_id": event}
        ends = {"src_agent_id": agents[0], "dst_agent_id": agents[1], "size": size}
        name = self.string(f"MEMORY_COPY_{way}")
        self.add("memory_copy", start=span[0], end=span[1], name_id=name, **place, **ends)


def sums(path: Path, table: str) -> tuple[int, int]:
    """Return how many rows a table has, and how long they are together, by SQL."""
    with closing(sqlite3.connect(path)) as file:
        names = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        every = [name for (name,) in names if name.startswith(f"rocpd_{table}")]
        found = [
            file.execute(
                f'SELECT count(*), coalesce(sum("end" - start), 0) FROM "{name}"'
            ).fetchone()
            for name in every
        ]
    return sum(n for n, _ in found), sum(total for _, total in found)
