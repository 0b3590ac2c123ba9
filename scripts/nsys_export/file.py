"""One export: a SQLite file, written as nsys writes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from scripts.nsys_export.header import domain_rows, header_rows
from scripts.nsys_export.rows import Columns, Rank
from scripts.nsys_export.samples import Recorder
from scripts.nsys_export.schema import (
    DDL,
    ENVIRONMENT,
    EVENTS,
    NVTX,
    OPERATORS,
    RECORDED_DDL,
    RUNTIME,
    SAMPLES,
    insert_into,
)
from scripts.nsys_export.strings import Strings

__all__ = ["ExportFile"]

_BATCH: Final = 60
"""Kernels between two changes of the table: pages of the tables lie interleaved."""

_DISPLACED: Final = 0.03
_DISPLACED_BY_NS: Final = 2_000_000


class ExportFile:
    """An export of some ranks; rows come nearly, but not strictly, in the order of time.

    API calls come process by process: those of the first beside the other tables, those of the
    others at the end. With a ``recorder`` it is what `traceprof record` makes of an export.
    """

    def __init__(
        self,
        path: Path,
        ranks: Sequence[Rank],
        strings: Strings,
        seed: int,
        recorder: Recorder | None = None,
    ) -> None:
        self._ranks, self._strings, self._recorder = ranks, strings, recorder
        self._events = EVENTS if recorder is None else (*EVENTS, OPERATORS)
        self._random = np.random.default_rng((seed, ranks[0].number))
        self._held: list[Columns] = []
        self._last_ns = 0
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        for name, value in (
            ("page_size", "4096"),
            ("journal_mode", "OFF"),
            ("synchronous", "OFF"),
            ("locking_mode", "EXCLUSIVE"),
        ):
            self._database.execute(f"PRAGMA {name} = {value}")
        self._database.execute("BEGIN")
        layouts = DDL if recorder is None else {**DDL, **RECORDED_DDL}
        for table, columns in layouts.items():
            self._database.execute(f"CREATE TABLE {table} ({columns})")
        self._insert("StringIds", {"id": list(strings.texts), "value": strings.texts.values()})
        self._insert_rows({NVTX: domain_rows(ranks)})

    def add(self, parts: Sequence[Mapping[str, Columns]]) -> None:
        """Write what each rank did in the same steps, one part a rank."""
        self._held += [part[RUNTIME] for part in parts[1:]]
        tables = {}
        for table in self._events:
            own = parts[:1] if table == RUNTIME else parts
            tables[table] = self._in_file_order(_stacked([part[table] for part in own]))
            self._last_ns = max(self._last_ns, int(tables[table]["end"].max()))
        lists = {
            table: {name: column.tolist() for name, column in columns.items()}
            for table, columns in tables.items()
        }
        n_batches = max(1, len(tables[EVENTS[0]]["start"]) // _BATCH)
        for batch in range(n_batches):
            for table, columns in lists.items():
                size = len(columns["start"])
                part = slice(size * batch // n_batches, size * (batch + 1) // n_batches)
                self._insert(table, {name: column[part] for name, column in columns.items()})

    def close(self, *, utc_epoch_ns: int, host: str) -> None:
        """Write what is left, and what the export says of itself and the machine."""
        for calls in self._held:
            self._insert(RUNTIME, {name: column.tolist() for name, column in calls.items()})
        if self._recorder is not None:
            samples = self._recorder.samples_of(self._ranks, self._last_ns)
            self._insert(SAMPLES, {name: column.tolist() for name, column in samples.items()})
            facts = self._recorder.environment()
            self._insert(ENVIRONMENT, {"name": facts.keys(), "value": facts.values()})
        self._insert_rows(
            header_rows(self._ranks, self._strings, self._last_ns, utc_epoch_ns, host)
        )
        self._database.execute("COMMIT")
        self._database.close()

    def _in_file_order(self, columns: Columns) -> Columns:
        keys = columns["start"].astype(np.int64)
        if "eventType" not in columns:  # NVTX rows are in order in genuine exports
            late = self._random.random(len(keys)) < _DISPLACED
            keys[late] += self._random.integers(-_DISPLACED_BY_NS, _DISPLACED_BY_NS, late.sum())
        order = np.argsort(keys, kind="stable")
        return {name: column[order] for name, column in columns.items()}

    def _insert_rows(self, tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
        for table, rows in tables.items():
            for row in rows:
                self._insert(table, {name: [value] for name, value in row.items()})

    def _insert(self, table: str, columns: Mapping[str, Iterable[object]]) -> None:
        rows = zip(*columns.values(), strict=True)
        self._database.executemany(insert_into(table, tuple(columns)), rows)


def _stacked(parts: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
