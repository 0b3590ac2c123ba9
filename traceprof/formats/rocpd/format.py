"""Recognize databases of rocprofv3 (rocpd) by their tables, and its JSON by its first key.

The names of the tables end in a unique id.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call
from traceprof.formats.shared.files import GZIP_MAGIC, unpacked_head

PREFIX: Final = "rocpd_"
KERNELS: Final = "kernel_dispatch"
REGIONS: Final = "region"
ROOT: Final = "rocprofiler-sdk-tool"
"""The only key of the JSON document."""
_JSON: Final = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"%s"' % ROOT.encode())
_MARKS: Final = (f"{PREFIX}info_process", f"{PREFIX}{KERNELS}")


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file has the tables of rocpd; those of rocmProfileData differ."""
    return all(any(table.startswith(mark) for table in candidate.tables) for mark in _MARKS)


FORMAT: Final = TraceFormat(
    name="rocpd",
    summary="rocprofv3 or rocprof-sys database (rocpd, *_results.db)",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.rocpd.reader", "read"),
    secrets=partial(import_and_call, "traceprof.formats.rocpd.file", "find_secrets"),
)


def recognizes_json(candidate: Candidate) -> bool:
    """Return whether the file is JSON of rocprofv3, plain or gzip."""
    head = candidate.head
    if head.startswith(GZIP_MAGIC):
        head = unpacked_head(candidate.path, len(head))
    return _JSON.match(head) is not None


JSON_FORMAT: Final = TraceFormat(
    name="rocprofv3-json",
    summary="rocprofv3 JSON (*_results.json or .json.gz)",
    recognizes=recognizes_json,
    repeats=FORMAT.name,
    read=partial(import_and_call, "traceprof.formats.rocpd.reader", "read_json"),
)
