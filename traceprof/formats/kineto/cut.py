"""Cutting a Kineto trace to a window: its events are passed on as they are written.

The file is read three times, in bounded memory: for time 0, for what belongs together, and to
write. Of device work what overlaps the window is kept, of the host what overlaps it, launched
that work, or encloses such a launch; arrows where both ends are kept; what has no time, always.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, cast

import msgspec

from traceprof.errors import TraceError
from traceprof.formats.kineto.batch import Batch
from traceprof.formats.kineto.cut_note import NOTE, cut_note, cut_note_in, note_of
from traceprof.formats.kineto.cut_rewrite import (
    clipped,
    header_shown,
    parsed,
    without_secrets,
    without_told,
)
from traceprof.formats.kineto.cut_rules import Related, Rules
from traceprof.formats.kineto.json_stream import ByteSource, JsonArrayStream, TooDeepError
from traceprof.formats.kineto.parse import NO_TIME, batch_of_items, parse_batch
from traceprof.formats.kineto.taken import PHASES, is_taken
from traceprof.formats.shared.files import GZIP_MAGIC, GzipSource
from traceprof.formats.shared.redaction import secrets_of_values
from traceprof.model.cutting import CutProgress, CutReport, CutRequest
from traceprof.model.timing import TimeWindow

__all__ = ["cut"]

_LEVEL: Final = 5
_PASSES: Final = 3
_TEXTS: Final = msgspec.json.Decoder(list[msgspec.Raw])

_Pieces: TypeAlias = tuple[Batch, Sequence[bytes | msgspec.Raw]]
"""Events as they are understood, and as they are written."""


def cut(source: Path, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write what ``request`` asks for of a Kineto trace to the file ``target``.

    Raises:
        TraceError: the trace cannot be read.
        UsageError: ``target`` cannot be written.
    """
    reading = _Reading(source, progress)
    zero_ns = reading.zero_ns() if request.zero_ns is None else request.zero_ns
    rules = Rules(request, _moved(request.reach, zero_ns))
    related = Related()
    for batch, _ in reading.pieces(1):
        related.add(batch, rules)
    related.settle()
    with ExitStack() as stack:
        out: IO[bytes] = stack.enter_context(target.open("wb"))
        if request.is_packed:
            packed = gzip.GzipFile("", "wb", _LEVEL, out, 0)
            out = cast("IO[bytes]", stack.enter_context(packed))
        n_events = _write(reading, out, rules, related, _moved(request.covered, zero_ns))
    return CutReport(n_events, zero_ns=zero_ns)


def _moved(window: TimeWindow, by_ns: int) -> TimeWindow:
    return TimeWindow(window.start_ns + by_ns, window.end_ns + by_ns)


def _write(
    reading: _Reading, out: IO[bytes], rules: Rules, related: Related, window: TimeWindow
) -> int:
    request = rules.request
    secrets = () if request.keep_environment else secrets_of_values(reading.stream.header)
    n_events, separator = 0, b'{\n"traceEvents": [\n  '
    for batch, texts in reading.pieces(2):
        for index in rules.kept(batch, related):
            event, text = batch.events[index], bytes(texts[index])
            if batch.start_ns[index] == NO_TIME:
                text = text if request.keep_environment else without_secrets(text)
            else:
                n_events += 1
                text = clipped(text, event, batch, index, rules, related) if request.clip else text
            out.write(separator + without_told(text, secrets))
            separator = b",\n  "
    out.write(b"\n]" if n_events or separator == b",\n  " else separator.rstrip() + b"]")
    notes: Any = []
    for key, text in reading.stream.header_texts:
        if key == json.dumps(NOTE).encode():
            with suppress(ValueError, RecursionError):
                notes = parsed(text)
            continue
        shown = text if request.keep_environment else header_shown(key, text)
        out.write(b",\n%b: %b" % (key, without_told(shown, secrets)))
    notes = notes if isinstance(notes, list) else []
    before = cut_note_in(notes)
    recorded, devices = related.recorded | before.recorded, related.devices | before.devices
    if request.devices is not None:
        devices &= request.devices
    notes += [note_of(request, window, recorded, devices)] if request.is_noted else []
    out.write(b",\n%b: %b\n}\n" % (json.dumps(NOTE).encode(), json.dumps(notes).encode()))
    return n_events


class _Reading:
    """A file that is read several times over; ``stream`` is the reading that came last."""

    def __init__(self, path: Path, progress: CutProgress) -> None:
        self.path = path
        self.progress = progress
        self.n_bytes = path.stat().st_size
        self.stream = JsonArrayStream(cast("ByteSource", None), "traceEvents")

    def zero_ns(self) -> int:
        """Return time 0 of the trace: when its first event starts.

        Raises:
            TraceError: no event has a time.
        """
        first: int | None = None
        for batch, _ in self.pieces(0):
            starts, lengths = batch.start_ns.tolist(), batch.duration_ns.tolist()
            for event, start, length in zip(batch.events, starts, lengths, strict=True):
                is_timed = start != NO_TIME and (length >= 0 or event.ph == "i")
                is_first = is_timed and (first is None or start < first)
                if is_first and event.ph in PHASES and is_taken(event):
                    first = start
        window = cut_note(self.stream.header).window
        if window is not None:
            return window.start_ns if first is None else min(first, window.start_ns)
        if first is None:
            raise TraceError(f"{self.path}: no events with times")
        return first

    def pieces(self, number: int) -> Iterator[_Pieces]:
        """Yield the events of the file in runs; ``number`` counts how often it was read before."""
        try:
            with self.path.open("rb") as raw:
                is_packed = raw.read(2) == GZIP_MAGIC
                raw.seek(0)
                source: ByteSource = GzipSource(raw) if is_packed else raw
                self.stream = JsonArrayStream(source, "traceEvents")
                for found in self.stream.batches(_parsed):
                    if isinstance(found, tuple):
                        yield found
                    elif found and isinstance(found[0], dict):
                        yield batch_of_items(found), [self.stream.text]
                    done = number * self.n_bytes + raw.tell()
                    self.progress(done, _PASSES * self.n_bytes, "bytes")
        except TooDeepError:
            raise TraceError(f"{self.path}: JSON that nests too deeply to be a trace") from None
        if not self.stream.has_array:
            raise TraceError(f"{self.path}: no list of events (traceEvents)")


def _parsed(text: bytes) -> _Pieces | None:
    batch = parse_batch(text)
    return None if batch is None else (batch, _TEXTS.decode(text))
