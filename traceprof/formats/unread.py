"""What a file is that no format takes, by its content, and what to do with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from traceprof.formats.contract import Candidate
from traceprof.formats.shared.files import GZIP_MAGIC, unpacked_head
from traceprof.formats.sqlite.pages.tree import SQLITE_MAGIC


@dataclass(frozen=True, slots=True)
class UnreadKind:
    """A kind of file that is known and not read: ``says`` what it is and what to do.

    It is one where the file has all the ``tables``; or begins with ``magic``, white space left
    out, and has all of ``marks`` in its first bytes.
    """

    says: str
    magic: bytes = b""
    marks: tuple[bytes, ...] = ()
    tables: frozenset[str] = frozenset()

    def is_that(self, head: bytes, tables: Collection[str]) -> bool:
        """Return whether a file is of this kind."""
        if self.tables:
            return self.tables.issubset(tables)
        return head.startswith(self.magic) and all(mark in head for mark in self.marks)


_EXPORT: Final = "give the report itself, or `nsys export --type=sqlite --include-blobs=true` of it"
_ROCPD: Final = "`rocprofv3 --sys-trace --output-format rocpd -- PROGRAM`"
_BY_ROCPROFV3: Final = (
    f"of rocprofv3, which is not read: record with {_ROCPD}, and give the .db file"
)
_JSON: Final = "JSON without the events of torch.profiler (traceEvents)"

_KINDS: Final = (
    UnreadKind(
        "a database of rocmProfileData (.rpd), which is not read: record with torch.profiler or "
        f"{_ROCPD}",
        tables=frozenset({"rocpd_api", "rocpd_op"}),
    ),
    UnreadKind(
        "a database of DLProf, which holds its sums: give the nsys_profile.sqlite (or .qdrep) that "
        "DLProf wrote beside it",
        tables=frozenset({"read_only_kernels", "read_only_op_instances"}),
    ),
    UnreadKind(
        "a report of Nsight Compute, which measures single kernels and holds no times of a run: "
        "read it with `ncu --import FILE`, and record the run with `traceprof record` or nsys",
        b"NVR\0",
    ),
    UnreadKind(
        "a memory snapshot of PyTorch, which holds allocations and no times of kernels: "
        "`traceprof memory FILE` tells what held the memory",
        b"\x80",
        (b"segments",),
    ),
    UnreadKind(
        "a dump of PyTorch's flight recorder, which holds collectives and no times of kernels: "
        "`torchfrtrace` reads it",
        b"\x80",
        (b"pg_config", b"entries"),
    ),
    UnreadKind("a pickle of Python, which no trace is", b"\x80\x04"),
    UnreadKind(
        f"an HDF5 file (`nsys export --type=hdf` writes such), which is not read: {_EXPORT}",
        b"\x89HDF\r\n\x1a\n",
    ),
    UnreadKind(
        f"an Arrow file of all tables (`nsys export --type=arrow`), which is not read: {_EXPORT}, "
        "or the folder of `nsys export --type=arrowdir`",
        b"\xff\xff\xff\xff",
    ),
    UnreadKind("a single table (Arrow): give the folder with all tables of the trace", b"ARROW1"),
    UnreadKind("a single table (Parquet): give the folder with all tables of the trace", b"PAR1"),
    UnreadKind(
        f"an export of Nsight Systems as text, which is not read: {_EXPORT}", b'data: "[Unknown]"'
    ),
    UnreadKind(
        f"an export of Nsight Systems as JSON, which is not read: {_EXPORT}",
        b'{"data":["[Unknown]"',
    ),
    UnreadKind(
        f"what `nsys export --type=info` says of a report: {_EXPORT}",
        b"{",
        (b"VmSystemInformation",),
    ),
    UnreadKind(f"JSON {_BY_ROCPROFV3}", b"{", (b'"rocprofiler-sdk-tool"',)),
    UnreadKind(f"a CSV table {_BY_ROCPROFV3}", b'"Kind",', (b"_Id",)),
    UnreadKind(
        f"a CSV table of rocprof, which is not read: record with {_ROCPD}, and give the .db file",
        marks=(b"KernelName", b"gpu-id"),
    ),
    UnreadKind(
        "an execution trace of PyTorch, which holds operators and no work of devices: record with "
        "torch.profiler",
        b"{",
        (b'"schema"', b'"nodes"'),
    ),
    UnreadKind(
        "a dump of PyTorch's flight recorder, which holds collectives and no times of kernels",
        b"{",
        (b'"pg_config"', b'"entries"'),
    ),
    UnreadKind(_JSON, b"{"),
    UnreadKind(
        "an XML session of the Visual Profiler: give the SQLite file that nvprof wrote", b"<?xml"
    ),
    UnreadKind("a zip archive: unpack it and give the trace inside", b"PK\x03\x04"),
)


def described(candidate: Candidate) -> str:
    """Return what a file of no known format seems to be, and what to do with it."""
    if candidate.files:
        return (
            "a folder of tables that are no trace: expected what `traceprof export --to parquet` "
            "or `nsys export --type parquetdir` wrote"
        )
    packed = candidate.head.startswith(GZIP_MAGIC)
    head = unpacked_head(candidate.path, len(candidate.head)) if packed else candidate.head
    if (found := _of_protobuf(head)) or (found := _of_kinds(head.lstrip(), candidate.tables)):
        return f"gzipped: {found}" if packed else found
    if candidate.tables or head.startswith(SQLITE_MAGIC):
        return "a SQLite database without the tables of a profiler (nsys export --type sqlite)"
    if packed:
        return "a gzip file: unpack it first (gunzip)"
    return (
        "not a trace that can be read: expected a SQLite file from "
        "`traceprof record` or `nsys export --type sqlite` "
        "(what a program printed: `traceprof runs show LOG`)"
    )


def _of_kinds(head: bytes, tables: Collection[str]) -> str:
    return next((kind.says for kind in _KINDS if kind.is_that(head, tables)), "")


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
            "a trace of Perfetto (`rocprofv3 --output-format pftrace` writes such), which is not "
            f"read: ui.perfetto.dev shows it; record with {_ROCPD}"
        )
    return ""
