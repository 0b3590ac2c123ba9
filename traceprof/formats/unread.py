"""Say what an unsupported file is, by its content, and what the user can do with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.formats.contract import Candidate
from traceprof.formats.shared.files import (
    GZIP_MAGIC,
    examine,
    is_truncated_gzip,
    unpacked_head,
)
from traceprof.formats.sqlite.pages.tree import SQLITE_MAGIC


@cache
def _load_kinds() -> dict[str, Any]:
    """Return the unsupported kinds of files that ``unread.toml`` describes."""
    import tomllib  # noqa: PLC0415 (nearly every file can be read)

    return tomllib.loads(Path(__file__).with_name("unread.toml").read_text("utf-8"))


def described(candidate: Candidate) -> str:
    """Return a sentence: what a file of unknown format seems to be, and what to do with it."""
    if candidate.files:
        return (
            "the tables in this folder are not a trace; expected the output of `traceprof export "
            "--to parquet` or `nsys export --type parquetdir`"
        )
    packed = candidate.head.startswith(GZIP_MAGIC)
    if packed and is_truncated_gzip(candidate.path):
        return "the gzip file is truncated or damaged; copy it again"
    head = unpacked_head(candidate.path, len(candidate.head)) if packed else candidate.head
    if (found := _describe_protobuf(head)) or (
        found := _describe_kind(head.lstrip(), candidate.tables)
    ):
        return f"gzipped: {found}" if packed else found
    if candidate.tables or head.startswith(SQLITE_MAGIC):
        return (
            "a SQLite database without profiler tables; expected one from nsys export --type sqlite"
        )
    if packed:
        return "a gzip file; unpack it first (gunzip)"
    return (
        "not a trace that traceprof can read; expected a SQLite file from "
        "`traceprof record` or `nsys export --type sqlite` "
        "(use `traceprof runs show LOG` for the log of a training run)"
    )


def _describe_kind(head: bytes, tables: Collection[str]) -> str:
    """Return the sentence of the first kind in ``unread.toml`` that matches; "" if none does."""
    known = _load_kinds()
    for kind in known["kinds"]:
        marks = [mark.encode("latin-1") for mark in kind.get("marks", ())]
        begins = head.startswith(kind.get("magic", "").encode("latin-1"))
        has_all = begins and all(mark in head for mark in marks)
        if set(kind["tables"]) <= {*tables} if "tables" in kind else has_all:
            return str(kind["says"]).format(**known["words"])
    return ""


def name_kind(candidate: Candidate) -> str:
    """Return a sentence about a file that is known and not read; "" for other files."""
    return "" if candidate.files else _describe_kind(candidate.head.lstrip(), candidate.tables)


def name_kind_in(paths: Iterable[Path | str]) -> str:
    """Return name and kind of the first file in folders that is known and not read; "" if none."""
    folders = (path for path in map(Path, paths) if path.is_dir())
    for file in islice(chain.from_iterable(sorted(one.rglob("*")) for one in folders), _MAX_FILES):
        with suppress(TraceError):
            if file.is_file() and (kind := name_kind(examine(file))):
                return f"{file.name}: {kind}"
    return ""


_MAX_FILES: Final = 100
_PERFETTO_FIRST_FIELDS: Final = (
    b"\x40",
    b"\x50",
    b"\x18",
    b"\x32",
    b"\x5a",
    b"\xe2\x03",
    b"\xd0\x03",
)
"""The possible first fields of a Perfetto packet: its time, sequence, clocks, or track."""


def _describe_protobuf(head: bytes) -> str:
    """Return a sentence about a Perfetto trace; "" for other files.

    A Perfetto trace begins with a length-prefixed list entry, its first packet.
    """
    if head[:1] != b"\n" or not any(byte < 9 for byte in head):
        return ""
    start = next((at + 1 for at, byte in enumerate(head) if at and byte < 128), 0)
    first = head[start:]
    if first.startswith(_PERFETTO_FIRST_FIELDS):
        return (
            "traceprof cannot read Perfetto traces (`rocprofv3 --output-format pftrace`); open it "
            f"in ui.perfetto.dev, or record with {_load_kinds()['words']['rocpd']}"
        )
    return ""
