"""The events of a Kineto (torch.profiler) Chrome trace as columns, with exact integer ns.

Kineto writes microseconds with three decimals, counted from ``baseTimeNanoseconds`` (since
1970) where the file has it and from 1970 where it has not. Event times here are always ns
since the base, which `KinetoEvents.base_time_ns` gives.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.json_stream import JsonArrayStream
from traceprof.model.tables import ABSENT

__all__ = ["KinetoEvents", "exact_ns", "read_kineto_events"]

NUMBER_ARGUMENTS: Final = (
    "External id",
    "correlation",
    "device",
    "stream",
    "context",
    "bytes",
    "graph node id",
    "wait_on_stream",
    "Group size",
    "In msg nelems",
    "Out msg nelems",
    "Seq",
)
TEXT_ARGUMENTS: Final = (
    "Collective name",
    "dtype",
    "Process Group Name",
    "Process Group Description",
)
_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class KinetoEvents:
    """The complete ("X") events of one file, a row each, in file order.

    ``start_ns`` and ``end_ns`` count from ``base_time_ns`` (0 where the file has no base: then
    they count from 1970, or from boot in files of 2023). ``process`` and ``thread`` are `ABSENT`
    where the file has a text there (such as "Spans"). ``arguments`` holds one array for each of
    `NUMBER_ARGUMENTS` (`ABSENT` where the event has none) and one categorical for each of
    `TEXT_ARGUMENTS` ("" where it has none). ``header`` holds the other top-level values of the
    document. ``is_complete`` is False when the document was cut off.
    """

    base_time_ns: int
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    category: pd.Categorical
    name: pd.Categorical
    arguments: Mapping[str, Any]
    process_names: Mapping[int, str]
    thread_names: Mapping[tuple[int, int], str]
    header: Mapping[str, Any]
    is_complete: bool

    def __len__(self) -> int:
        return len(self.start_ns)


def read_kineto_events(
    path: Path, keep: Callable[[Mapping[str, Any]], bool] | None = None
) -> KinetoEvents:
    """Return the events of the Chrome trace at ``path`` (plain or gzip), in bounded memory.

    ``keep`` may refuse events: those for which it returns False are left out.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        file: BinaryIO = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        stream = JsonArrayStream(file, "traceEvents")
        columns = _Columns()
        for event in stream:
            if isinstance(event, dict) and (keep is None or keep(event)):
                columns.add(event)
    return columns.finish(stream)


def exact_ns(microseconds: int | str | None) -> int:
    """Return the nanoseconds of a JSON number of microseconds, exact to the last digit."""
    if microseconds is None:
        return 0
    if isinstance(microseconds, int):
        return microseconds * 1000
    whole, _, fraction = microseconds.partition(".")
    if "e" in fraction or "E" in fraction or not whole.lstrip("-").isdigit():
        return round(float(microseconds) * 1000)
    ns = int(whole) * 1000
    if fraction:
        part = int(fraction[:3].ljust(3, "0"))
        ns += -part if whole[0] == "-" else part
    return ns


def _whole(value: Any) -> int:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdigit() else ABSENT


class _Codes(dict[str, int]):
    """Numbers strings in the order in which they appear."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


@dataclass(slots=True)
class _Columns:
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    processes: array[int] = field(default_factory=lambda: array("q"))
    threads: array[int] = field(default_factory=lambda: array("q"))
    categories: array[int] = field(default_factory=lambda: array("q"))
    names: array[int] = field(default_factory=lambda: array("q"))
    numbers: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in NUMBER_ARGUMENTS}
    )
    texts: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in TEXT_ARGUMENTS}
    )
    category_codes: _Codes = field(default_factory=_Codes)
    name_codes: _Codes = field(default_factory=_Codes)
    text_codes: _Codes = field(default_factory=lambda: _Codes({"": 0}))
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        kind = event.get("ph")
        if kind == "M":
            self._add_name(event)
        if kind != "X":
            return
        start = exact_ns(event.get("ts"))
        self.starts.append(start)
        self.ends.append(start + max(0, exact_ns(event.get("dur"))))
        self.processes.append(_whole(event.get("pid")))
        self.threads.append(_whole(event.get("tid")))
        self.categories.append(self.category_codes[str(event.get("cat", ""))])
        self.names.append(self.name_codes[str(event.get("name", ""))])
        arguments = event.get("args") or {}
        for name, numbers in self.numbers.items():
            numbers.append(_whole(arguments[name]) if name in arguments else ABSENT)
        for name, texts in self.texts.items():
            texts.append(self.text_codes[str(arguments[name])] if name in arguments else 0)

    def _add_name(self, event: dict[str, Any]) -> None:
        process = _whole(event.get("pid"))
        text = str((event.get("args") or {}).get("name", ""))
        if event.get("name") == "process_name":
            self.process_names[process] = text
        elif event.get("name") == "thread_name":
            self.thread_names[process, _whole(event.get("tid"))] = text

    def finish(self, stream: JsonArrayStream) -> KinetoEvents:
        texts = pd.Index(list(self.text_codes))
        return KinetoEvents(
            base_time_ns=_whole(stream.header.get("baseTimeNanoseconds", 0)),
            start_ns=_numbers(self.starts),
            end_ns=_numbers(self.ends),
            process=_numbers(self.processes),
            thread=_numbers(self.threads),
            category=_names(self.categories, pd.Index(list(self.category_codes), dtype=object)),
            name=_names(self.names, pd.Index(list(self.name_codes), dtype=object)),
            arguments={name: _numbers(column) for name, column in self.numbers.items()}
            | {name: _names(column, texts) for name, column in self.texts.items()},
            process_names=self.process_names,
            thread_names=self.thread_names,
            header=stream.header,
            is_complete=stream.is_complete,
        )


def _numbers(column: array[int]) -> npt.NDArray[np.int64]:
    return np.array(column, np.int64)


def _names(codes: array[int], texts: pd.Index) -> pd.Categorical:
    return pd.Categorical.from_codes(np.array(codes, np.int64), texts)
