"""What a file is that no format takes, by its content, and what to do with it."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Final

from traceprof.formats.contract import Candidate
from traceprof.formats.shared.files import GZIP_MAGIC, unpacked_head
from traceprof.formats.sqlite.pages.tree import SQLITE_MAGIC


@cache
def _told() -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 (nearly every file can be read)

    return tomllib.loads(Path(__file__).with_name("unread.toml").read_text("utf-8"))


def described(candidate: Candidate) -> str:
    """Return what a file of no known format seems to be, and what to do with it."""
    if candidate.files:
        return (
            "the tables in this folder are not a trace; expected the output of `traceprof export "
            "--to parquet` or `nsys export --type parquetdir`"
        )
    packed = candidate.head.startswith(GZIP_MAGIC)
    head = unpacked_head(candidate.path, len(candidate.head)) if packed else candidate.head
    if (found := _of_protobuf(head)) or (found := _of_kinds(head.lstrip(), candidate.tables)):
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


def _of_kinds(head: bytes, tables: Collection[str]) -> str:
    told = _told()
    for kind in told["kinds"]:
        marks = [mark.encode("latin-1") for mark in kind.get("marks", ())]
        begins = head.startswith(kind.get("magic", "").encode("latin-1"))
        has_all = begins and all(mark in head for mark in marks)
        if set(kind["tables"]) <= {*tables} if "tables" in kind else has_all:
            return str(kind["says"]).format(**told["words"])
    return ""


_PACKETS: Final = (b"\x40", b"\x50", b"\x18", b"\x32", b"\x5a", b"\xe2\x03", b"\xd0\x03")
"""What the first field of a packet of Perfetto is: its time, its sequence, its clocks, a track."""


def _of_protobuf(head: bytes) -> str:
    """Return what a file of protobuf messages is: a list, the first of which begins the file."""
    if head[:1] != b"\n" or not any(byte < 9 for byte in head):
        return ""
    start = next((at + 1 for at, byte in enumerate(head) if at and byte < 128), 0)
    first = head[start:]
    if first.startswith(_PACKETS):
        return (
            "traceprof cannot read Perfetto traces (`rocprofv3 --output-format pftrace`); open it "
            f"in ui.perfetto.dev, or record with {_told()['words']['rocpd']}"
        )
    return ""
