"""Build small traces by hand, readably: every test's numbers stand in the test itself.

>>> trace = (
...     TraceBuilder()
...     .range("forward", 0, 100)
...     .kernel("gemm", 120, 180, launched_ns=(10, 15))
...     .copy("h2d", 0, 50, n_bytes=1000)
...     .build()
... )

Times are plain numbers of nanoseconds. A kernel or copy with ``launched_ns`` gets the API call
that launched it, with a correlation of its own. Process and thread are 1 where nothing is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

from traceprof.model.activity import Activity
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, TABLES, make_table
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.names.classes import KernelRule, classify

__all__ = ["PROCESS", "THREAD", "TraceBuilder", "plain"]

PROCESS = 1
THREAD = 1

_CUDA_TABLES = frozenset({"kernels", "copies", "api_calls", "syncs"})
_NVTX_TABLES = frozenset({"ranges", "marks"})


class TraceBuilder:
    """Collects rows; `build` returns the Trace."""

    def __init__(self, rules: Iterable[KernelRule] = ()) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
        self._rules = tuple(rules)
        self._correlation = 0

    def kernel(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        launched_ns: tuple[int, int] | None = None,
        device: int = 0,
        stream: int = 7,
        process: int = PROCESS,
        thread: int = THREAD,
        correlation: int | None = None,
        activity: Activity | None = None,
        graph_node: int = ABSENT,
        api: str = "cudaLaunchKernel",
        shape: Mapping[str, int] | None = None,
    ) -> Self:
        """Add a kernel; its activity follows from its name where none is given.

        ``shape`` says how it was launched, by columns of `kernel_shapes`.
        """
        own = self._launch(launched_ns, api, process, thread, correlation)
        if shape is not None:
            place = {"device": device, "stream": stream, "process": process, "correlation": own}
            self._add("kernel_shapes", start_ns=start_ns, end_ns=end_ns, **place, **shape)
        return self._add(
            "kernels",
            start_ns=start_ns,
            end_ns=end_ns,
            device=device,
            stream=stream,
            process=process,
            correlation=own,
            name=name,
            activity=activity.value if activity else None,
            graph_node=graph_node,
        )

    def copy(
        self,
        direction: str,
        start_ns: int,
        end_ns: int,
        *,
        n_bytes: int = 0,
        launched_ns: tuple[int, int] | None = None,
        device: int = 0,
        stream: int = 7,
        process: int = PROCESS,
        thread: int = THREAD,
        correlation: int | None = None,
        src_kind: str | None = None,
        dst_kind: str | None = None,
        src_device: int = ABSENT,
        dst_device: int = ABSENT,
        api: str = "cudaMemcpyAsync",
    ) -> Self:
        """Add a copy (h2d d2h d2d p2p h2h) or a memset; host memory is pinned unless said."""
        host = {"h2d": ("pinned", "device"), "d2h": ("device", "pinned"), "h2h": ("pinned",) * 2}
        kinds = host.get(direction, ("device", "device"))
        own = self._launch(launched_ns, api, process, thread, correlation)
        return self._add(
            "copies",
            start_ns=start_ns,
            end_ns=end_ns,
            device=device,
            stream=stream,
            process=process,
            correlation=own,
            direction=direction,
            n_bytes=n_bytes,
            src_kind=kinds[0] if src_kind is None else src_kind,
            dst_kind=kinds[1] if dst_kind is None else dst_kind,
            src_device=src_device,
            dst_device=dst_device,
            graph_node=ABSENT,
        )

    def memset(self, start_ns: int, end_ns: int, *, n_bytes: int = 0, **more: Any) -> Self:
        """Add a memset; ``dst_kind`` is "device" unless said."""
        return self.copy(
            "memset", start_ns, end_ns, n_bytes=n_bytes, src_kind="", api="cudaMemsetAsync", **more
        )

    def api_call(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        process: int = PROCESS,
        thread: int = THREAD,
        correlation: int | None = None,
    ) -> Self:
        """Add a call of the CUDA runtime."""
        own = self._next_correlation() if correlation is None else correlation
        return self._add(
            "api_calls",
            start_ns=start_ns,
            end_ns=end_ns,
            process=process,
            thread=thread,
            correlation=own,
            name=name,
        )

    def range(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        domain: str = "",
        process: int = PROCESS,
        thread: int = THREAD,
        kind: str = "push_pop",
        payload: float = np.nan,
        category: int = ABSENT,
    ) -> Self:
        """Add an NVTX range; its depth is worked out from the others on its thread."""
        return self._add(
            "ranges",
            start_ns=start_ns,
            end_ns=end_ns,
            process=process,
            thread=thread,
            domain=domain,
            category=category,
            name=name,
            payload=payload,
            kind=kind,
        )

    def phase(self, name: str, start_ns: int, end_ns: int, **more: Any) -> Self:
        """Add a range as `traceprof record` injects them (data, forward, backward …)."""
        return self.range(name, start_ns, end_ns, domain=TRACEPROF_DOMAIN, **more)

    def step(self, start_ns: int, end_ns: int, number: int | None = None, **more: Any) -> Self:
        """Add a step as ``traceprof.step()`` marks it."""
        payload = np.nan if number is None else float(number)
        return self.phase("user_step", start_ns, end_ns, payload=payload, **more)

    def mark(
        self,
        name: str,
        at_ns: int,
        payload: float = np.nan,
        *,
        domain: str = "",
        process: int = PROCESS,
        thread: int = THREAD,
    ) -> Self:
        """Add an instant."""
        return self._add(
            "marks",
            start_ns=at_ns,
            process=process,
            thread=thread,
            domain=domain,
            name=name,
            payload=payload,
        )

    def batch(self, at_ns: int, n_samples: int, **more: Any) -> Self:
        """Add the mark with which the recorder notes the size of a batch."""
        return self.mark("batch", at_ns, n_samples, domain=TRACEPROF_DOMAIN, **more)

    def host_op(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        source: str = "cpu_op",
        inputs: tuple[object, object, object] | None = None,
        **more: Any,
    ) -> Self:
        """Add an operator on the host; ``inputs`` are the sizes, types and values it was given."""
        row = {"process": PROCESS, "thread": THREAD, "correlation": ABSENT, **more}
        if inputs is not None:
            told = dict(zip(("dims", "types", "concrete"), map(json.dumps, inputs), strict=True))
            place = {"process": row["process"], "thread": row["thread"]}
            self._add(
                "operator_inputs", start_ns=start_ns, end_ns=end_ns, name=name, **place, **told
            )
        return self._add(
            "host_ops", start_ns=start_ns, end_ns=end_ns, source=source, name=name, **row
        )

    def function(self, name: str, start_ns: int, end_ns: int, **more: Any) -> Self:
        """Add a call of a Python function: "train.py(3): main"."""
        row = {"process": PROCESS, "thread": THREAD, **more}
        return self._add("functions", start_ns=start_ns, end_ns=end_ns, name=name, **row)

    def sync(self, kind: str, start_ns: int, end_ns: int, **more: Any) -> Self:
        """Add a wait as CUPTI records it (event, stream_wait, stream, context)."""
        row = {
            "device": 0,
            "stream": ABSENT,
            "process": PROCESS,
            "correlation": ABSENT,
            **more,
        }
        return self._add("syncs", start_ns=start_ns, end_ns=end_ns, kind=kind, **row)

    def collective(
        self, op: str, start_ns: int, end_ns: int, *, n_bytes: int = ABSENT, **more: Any
    ) -> Self:
        """Add a collective as the host issued it."""
        row = {
            "process": PROCESS,
            "thread": THREAD,
            "dtype": "float32",
            "group": "0",
            "group_size": 2,
            "backend": "nccl",
            "sequence": ABSENT,
            "correlation": ABSENT,
            **dict.fromkeys(("group_rank", "peer", "peer_rank", "tag"), ABSENT),
            **more,
        }
        return self._add(
            "collectives", start_ns=start_ns, end_ns=end_ns, op=op, n_bytes=n_bytes, **row
        )

    def sample(self, metric: str, at_ns: int, value: float, *, source: str = "gpu 0") -> Self:
        """Add one value of a time series."""
        return self._add("samples", start_ns=at_ns, source=source, metric=metric, value=value)

    def overhead(self, name: str, start_ns: int, end_ns: int, **more: Any) -> Self:
        """Add time that the profiler itself took."""
        row = {"process": PROCESS, "thread": THREAD, **more}
        return self._add("overheads", start_ns=start_ns, end_ns=end_ns, name=name, **row)

    def device(self, device: int, name: str = "GPU", **more: Any) -> Self:
        """Add a device of the machine, whether it works or not."""
        return self._add("devices", device=device, name=name, **more)

    def process(self, process: int, *, rank: int = ABSENT, **more: Any) -> Self:
        """Add a process, with its rank."""
        return self._add("processes", process=process, rank=rank, **more)

    def thread_name(self, thread: int, name: str, *, process: int = PROCESS) -> Self:
        """Add the name of a thread."""
        return self._add("threads", process=process, thread=thread, name=name)

    def setting(self, name: str, value: str) -> Self:
        """Add a line of the environment."""
        return self._add("environment", name=name, value=value)

    def build(
        self,
        *,
        recorded: Iterable[str] | None = None,
        span: tuple[int, int] | None = None,
        info: TraceInfo | None = None,
    ) -> Trace:
        """Return the trace.

        Without ``recorded`` a table counts as recorded when it has rows, or when a table that
        the same profiler option fills has.
        """
        tables = {name: self._table(name) for name in TABLES if self._rows[name]}
        return make_trace(
            info or TraceInfo(path="built.sqlite", format="built"),
            tables,
            self._recorded() if recorded is None else recorded,
            None if span is None else TimeWindow(*span),
        )

    def _add(self, table: str, **row: Any) -> Self:
        self._rows[table].append(row)
        return self

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(
        self,
        launched_ns: tuple[int, int] | None,
        api: str,
        process: int,
        thread: int,
        correlation: int | None,
    ) -> int:
        own = correlation
        if own is None:
            own = ABSENT if launched_ns is None else self._next_correlation()
        if launched_ns is not None:
            self.api_call(api, *launched_ns, process=process, thread=thread, correlation=own)
        return own

    def _table(self, name: str) -> Table:
        rows = self._rows[name]
        given = {key for row in rows for key in row}
        blank = {"memory_bytes": ABSENT, "memory_bytes_per_s": ABSENT, "sm_count": ABSENT}
        blank |= {"used": ABSENT, "local_rank": ABSENT, "world_size": ABSENT}
        blank |= {"compute_capability": ABSENT}
        if name == "kernel_shapes":
            blank = dict.fromkeys(TABLES[name].columns, ABSENT)
        columns = {
            key: [row.get(key, blank.get(key, "")) for row in rows]
            for key in TABLES[name].columns
            if key in given
        }
        if name == "kernels":
            columns["activity"] = self._activities(rows)
        table = make_table(name, columns)
        return _with_depth(table) if name == "ranges" else table

    def _activities(self, rows: list[dict[str, Any]]) -> list[str]:
        found = classify(Names.of(row["name"] for row in rows), self._rules)
        return [row["activity"] or str(own) for row, own in zip(rows, found, strict=True)]

    def _recorded(self) -> set[str]:
        recorded = {name for name, rows in self._rows.items() if rows}
        for together in (_CUDA_TABLES, _NVTX_TABLES):
            if recorded & together:
                recorded |= together
        return recorded


def plain(rows: Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table as tuples of plain values, for comparing in tests."""
    return list(zip(*(rows[name].tolist() for name in columns), strict=True))


def _with_depth(ranges: Table) -> Table:
    depth = np.zeros(len(ranges), np.int64)
    starts, ends = ranges["start_ns"], ranges["end_ns"]
    lanes = rows_by_values(ranges["process"], ranges["thread"], ranges["kind"].codes)
    for rows in lanes.values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
    return ranges.assign(depth=depth)
