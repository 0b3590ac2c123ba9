"""Recognize traces of jax.profiler and TensorFlow, plain or gzip.

The profiler writes ``HOST.xplane.pb``, a protobuf, and for viewers ``HOST.trace.json.gz`` with a
part of the same data.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call
from traceprof.formats.shared.files import GZIP_MAGIC, unpacked_head

_PLANES: Final = (b"/device:", b"/host:", b"Task Environment")
_FIRST_BYTES: Final = 64
_HEAD_BYTES: Final = 1 << 16
_NAMED: Final = re.compile(rb'"process_name"[^{}]{0,99}\{\s*+"name"\s*+:\s*+"/(device|host):')
_OF_KINETO: Final = (b'"schemaVersion"', b'"deviceProperties"', b'"baseTimeNanoseconds"')


def _head(candidate: Candidate, n_bytes: int) -> bytes:
    """Return the first bytes of the file's content."""
    if candidate.head.startswith(GZIP_MAGIC):
        return unpacked_head(candidate.path, n_bytes)
    if len(candidate.head) >= n_bytes:
        return candidate.head
    with candidate.path.open("rb") as file:
        return file.read(n_bytes)


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file is a list of planes: the name of a plane is near its start."""
    if candidate.tables or candidate.files:
        return False
    head = _head(candidate, len(candidate.head))
    # A text that begins with an empty line contains no byte as small as the type of a field.
    is_message = head[:1] == b"\n" and any(byte < 9 for byte in head)
    return is_message and any(plane in head[:_FIRST_BYTES] for plane in _PLANES)


FORMAT: Final = TraceFormat(
    name="xplane",
    summary="jax.profiler or TensorFlow XPlane file (.xplane.pb)",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.xla.reader", "read"),
)


def recognizes_json(candidate: Candidate) -> bool:
    """Return whether the file is a Chrome trace whose processes are planes."""
    if candidate.tables or candidate.files:
        return False
    if _head(candidate, len(candidate.head)).lstrip()[:1] not in (b"{", b"["):
        return False
    head = _head(candidate, _HEAD_BYTES)
    return _NAMED.search(head) is not None and not any(key in head for key in _OF_KINETO)


JSON_FORMAT: Final = replace(
    FORMAT,
    name="xplane-json",
    summary="jax.profiler or TensorFlow Chrome trace (.trace.json.gz)",
    recognizes=recognizes_json,
    repeats=FORMAT.name,
    read=partial(import_and_call, "traceprof.formats.xla.reader", "read_json"),
)
