"""Recognize Kineto (torch.profiler) Chrome traces, plain or gzip."""

from __future__ import annotations

from codecs import BOM_UTF8
from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call
from traceprof.formats.shared.files import GZIP_MAGIC, unpacked_head

_KEYS: Final = (b'"traceEvents"', b'"deviceProperties"', b'"ph"')
_FAR_BYTES: Final = 1 << 20


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file is JSON (or gzipped JSON) with the keys of a Chrome trace."""
    head = candidate.head
    is_packed = head.startswith(GZIP_MAGIC)
    head = unpacked_head(candidate.path, len(head)) if is_packed else head
    if head.removeprefix(BOM_UTF8).lstrip()[:1] not in (b"{", b"["):
        return False
    if any(key in head for key in _KEYS):
        return True
    # Other tools write their own metadata before the events.
    with candidate.path.open("rb") as file:
        further = unpacked_head(candidate.path, _FAR_BYTES) if is_packed else file.read(_FAR_BYTES)
    return any(key in further for key in _KEYS)


FORMAT: Final = TraceFormat(
    name="kineto",
    summary="torch.profiler (Kineto) Chrome trace, .json or .json.gz",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.kineto.reader", "read"),
    cut=partial(import_and_call, "traceprof.formats.kineto.cut", "cut"),
)
