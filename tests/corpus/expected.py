"""What is refused of the corpus and why, and what differs on purpose from the plain way."""

from __future__ import annotations

from typing import Final

__all__ = ["DIFFERENT", "REFUSED"]

_A_VIEW = "CUPTI_ACTIVITY_KIND_KERNEL is a view, expected a table"
_NO_NUMBERS = "CUPTI_ACTIVITY_KIND_KERNEL.start contains non-integer values"
_NO_EVENTS = "JSON without torch.profiler events"
_NO_TRACE = "the JSON contains no traceEvents"
_TOO_DEEP = "the JSON is nested too deeply"
_NOTHING = "no traces found"
_PENDING = "has unmerged changes in"

REFUSED: Final = {
    "bigblob.sqlite": _A_VIEW,
    "deepa.json": _TOO_DEEP,
    "deepe.json": _TOO_DEEP,
    "deeph.json": _TOO_DEEP,
    "float.sqlite": _NO_NUMBERS,
    "hot.sqlite": "a change was interrupted",
    "infview.sqlite": _A_VIEW,
    "m10.json": "is not a valid file name",
    "m11.json": _NO_EVENTS,
    "m12.json": _NO_EVENTS,
    "m13.json": _NO_EVENTS,
    "m16.json": _NOTHING,
    "m5.json": _NOTHING,
    "m6.json": _NO_EVENTS,
    "m7.json": _NOTHING,
    "m8.json": "is not a valid file name",
    "m9.json": _NOTHING,
    "noph.json": "the torch.profiler trace is empty",
    "numtext.sqlite": _NO_NUMBERS,
    "sum-overflow.sqlite": "the durations of its kernels add up to 634 years",
    "tenull.json": _NO_TRACE,
    "teobj.json": _NO_TRACE,
    "text.sqlite": _NO_NUMBERS,
    "utf16.json": "not a trace that traceprof can read",
    "utf16.sqlite": "text encoding UTF-16LE, expected UTF-8",
    "walp.sqlite": _PENDING,
    "walx.sqlite": _PENDING,
}
"""File → what the one line says of it."""

DIFFERENT: Final = {
    "benign2.json": (2200, "not aligned"),  # a manifest of two ranks: 600 and 1600
    "dup.json": (500_000, ""),  # two lists of one name: the first is read, json takes the last
    "gcrc.json.gz": (500_000, "the file is damaged (wrong checksum)"),
    "ge.json.gz": (500_000, "the file is damaged (wrong checksum)"),
    "gt.json.gz": (300_000, "the file is truncated after 6 events"),
    "gzalt.json.gz": (549_000, "the file is damaged (wrong checksum)"),
    "m0.json": (600, ""),
    "m1.json": (600, "an implausible world size of 1000000000 ranks"),
    "m14.json": (600, ""),
    "m15.json": (600, ""),
    "m2.json": (600, "no trace of 1 of the 2 ranks: 1"),
    "m2b.json": (600, ""),
    "m3.json": (600, "no trace of 2 of the 3 ranks: 0, 1"),
    "m3b.json": (600, "no trace of 1 of the 2 ranks: 1"),
    "mid.json": (250_000, "the file is damaged after 5 events"),
    "minj.json": (2200, "not aligned"),
    "ts-4e15.json": (500_000, "traceprof ignored 1 events"),  # 127 years after the base time
}
"""File → ns of kernels, and what a warning says: manifests, and what the plain way cannot read."""
