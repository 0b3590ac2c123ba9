"""Cut a Kineto trace to a window; events are copied as they are written.

The file is read three times, in bounded memory: to find time 0, to find related events, and to
write. Kept are GPU events that overlap the window; CPU events that overlap it, launched a kept GPU
event, or enclose such a launch; flow arrows whose two ends are kept; and all events without a time.
Only clipped times and secrets are written differently.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, cast

import msgspec

from traceprof.errors import TraceError
from traceprof.formats.kineto.cut_rules import DEVICE, Related, Rules
from traceprof.formats.kineto.header import NOTE, cut_note_in, note_of
from traceprof.formats.kineto.parse import NO_TIME, Batch, KinetoEvent, batch_of_items, parse_batch
from traceprof.formats.kineto.rows import PHASES, YEAR_NS, becomes_row, is_stamped, usual_years
from traceprof.formats.shared import redaction
from traceprof.formats.shared.json_stream import ByteSource, JsonArrayStream, open_chrome_trace
from traceprof.formats.shared.redaction import secrets_of_values
from traceprof.model.cutting import REMOVED, CutProgress, CutReport, CutRequest
from traceprof.model.timing import TimeWindow
from traceprof.secrets import masked_text

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENVIRONMENT: Final = re.compile(r"env(s|iron(ment)?)?([_ ]?var(iable)?s?)?", re.IGNORECASE)


def clipped(
    text: bytes, event: KinetoEvent, batch: Batch, index: int, rules: Rules, related: Related
) -> bytes:
    """Return the text of an event clipped to the window; everything but its times is unchanged.

    For CPU events the lower limit is the first launch, if it precedes the window.
    """
    if event.ph != "X":
        return text
    start, duration = int(batch.start_ns[index]), int(batch.duration_ns[index])
    end = start + max(duration, 0)
    lower = rules.window.start_ns
    if event.cat not in DEVICE and related.first_ns is not None:
        lower = min(lower, related.first_ns)
    first, last = max(start, lower), min(end, rules.window.end_ns)
    if (first, last) == (start, end) or first > last:
        return text
    written = {key: bytes(value) for key, value in _MEMBERS.decode(text).items()}
    written |= {"ts": _microseconds(first), "dur": _microseconds(last - first)}
    pairs = (msgspec.json.encode(key) + b": " + value for key, value in written.items())
    return b"{" + b", ".join(pairs) + b"}"


def _microseconds(ns: int) -> bytes:
    """Return a time in microseconds as JSON, with three decimals if needed."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    full, fraction = divmod(ns, 1000)
    return (f"{sign}{full}.{fraction:03d}" if fraction else f"{sign}{full}").encode()


def parsed(text: bytes) -> Any:
    """Return the JSON value in ``text``; invalid UTF-8 becomes U+FFFD, as in reading a trace.

    Raises:
        ValueError: the text is not JSON.
        RecursionError: the JSON is nested too deeply.
    """
    return json.loads(text.decode("utf-8", "replace"), strict=False)


def header_shown(key: bytes, text: bytes) -> bytes:
    """Return a top-level value of the file without environment variables and secrets."""
    if _ENVIRONMENT.fullmatch(parsed(key)):
        return json.dumps(REMOVED).encode()
    if text.startswith(b'"'):
        pair = without_secrets(b"{%b: %b}" % (key, text))
        if pair.startswith(b"{" + key):
            return pair[len(key) + 3 : -1]
        (shown,) = parsed(pair).values()  # the whole pair was rewritten
        return json.dumps(shown).encode()
    return without_secrets(text)


def without_secrets(text: bytes) -> bytes:
    """Return a JSON value with masked secrets and without environment variables.

    The rest, in particular numbers, is unchanged.
    """
    try:
        value = parsed(text)
    except (ValueError, RecursionError):
        return text
    return _replace_texts(text, value, dict(_replaced(value)))


def without_known_secrets(text: bytes, secrets: Sequence[str]) -> bytes:
    """Return a JSON value with ``secrets`` masked in its texts; the rest is unchanged."""
    if not any(written in text for secret in secrets for written in _written(secret)):
        return text
    try:
        value = parsed(text)
    except (ValueError, RecursionError):
        return text
    texts = _texts(value, with_keys=True)
    shown = {inner_text: redaction.without_secrets(inner_text, secrets) for inner_text in texts}
    return _replace_texts(text, value, {old: new for old, new in shown.items() if old != new})


@cache
def _written(secret: str) -> Sequence[bytes]:
    """Return the ways in which JSON can write a text inside another text."""
    texts = (json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return tuple({text.encode("utf-8", "surrogatepass") for text in texts})


def _replace_texts(text: bytes, value: Any, replaced: Mapping[str, str]) -> bytes:
    """Return the JSON ``text`` of ``value`` with some of its texts replaced."""
    if not replaced:
        return text
    for old, new in replaced.items():
        for is_ascii in (True, False):
            written = json.dumps(old, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
            text = text.replace(written, json.dumps(new).encode())
    if not replaced.keys().isdisjoint(_texts(parsed(text), with_keys=True)):
        return json.dumps(_rewritten(value, replaced)).encode()
    return text


def _replaced(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text that must not be copied, and its replacement."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _ENVIRONMENT.fullmatch(key):
                yield from ((inner_text, REMOVED) for inner_text in _texts(inner))
            else:
                yield from _replaced(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _replaced(inner, name)
    elif isinstance(value, str) and (shown := _shown(value, name)) != value:
        yield value, shown


def _shown(value: str, name: str) -> str:
    """Return a text without its secrets; the key ``name`` may indicate that it is a secret."""
    shown = masked_text(value)
    if shown == value and name and value:
        shown = masked_text(f"{name}={value}").removeprefix(f"{name}=")
    return shown


def _texts(value: Any, *, with_keys: bool = False) -> set[str]:
    """Return all texts in a JSON value, optionally with the keys of its objects."""
    if isinstance(value, dict):
        keys = {*value} if with_keys else set()
        return keys.union(*(_texts(inner, with_keys=with_keys) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(_texts(inner, with_keys=with_keys) for inner in value))
    return {value} if isinstance(value, str) else set()


def _rewritten(value: Any, replaced: Mapping[str, str]) -> Any:
    """Return a JSON value with its texts and keys replaced."""
    if isinstance(value, dict):
        return {replaced.get(k, k): _rewritten(inner, replaced) for k, inner in value.items()}
    if isinstance(value, list):
        return [_rewritten(inner, replaced) for inner in value]
    return replaced.get(value, value) if isinstance(value, str) else value


_GZIP_LEVEL: Final = 5
_N_PASSES: Final = 3
_TEXTS: Final = msgspec.json.Decoder(list[msgspec.Raw])

_EventRun: TypeAlias = tuple[Batch, Sequence[bytes | msgspec.Raw]]
"""A run of events: parsed, and as they are written."""


def cut(source: Path, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write the part of a Kineto trace that ``request`` describes to the file ``target``.

    Raises:
        TraceError: the trace cannot be read.
        UsageError: ``target`` cannot be written.
    """
    reading = _Reading(source, progress)
    zero_ns = reading.zero_ns() if request.zero_ns is None else request.zero_ns
    rules = Rules(request, request.reach.moved(zero_ns))
    related = Related()
    for batch, _ in reading.pieces(1):
        related.add(batch, rules)
    related.settle()
    with ExitStack() as stack:
        out: IO[bytes] = stack.enter_context(target.open("wb"))
        if request.is_packed:
            packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, out, 0)
            out = cast("IO[bytes]", stack.enter_context(packed))
        n_events = _write(reading, out, rules, related, request.covered.moved(zero_ns))
    return CutReport(n_events, zero_ns=zero_ns)


def _write(
    reading: _Reading, out: IO[bytes], rules: Rules, related: Related, window: TimeWindow
) -> int:
    """Write the kept events, the other top-level values, and the note; return how many events."""
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
            out.write(separator + without_known_secrets(text, secrets))
            separator = b",\n  "
    out.write(b"\n]" if n_events or separator == b",\n  " else separator.rstrip() + b"]")
    notes: Any = []
    for key, text in reading.stream.header_texts:
        if key == json.dumps(NOTE).encode():
            with suppress(ValueError, RecursionError):
                notes = parsed(text)
            continue
        shown = text if request.keep_environment else header_shown(key, text)
        out.write(b",\n%b: %b" % (key, without_known_secrets(shown, secrets)))
    notes = notes if isinstance(notes, list) else []
    before = cut_note_in(notes)
    recorded, devices = related.recorded | before.recorded, related.devices | before.devices
    if request.devices is not None:
        devices &= request.devices
    notes += [note_of(request, window, recorded, devices)] if request.is_noted else []
    out.write(b",\n%b: %b\n}\n" % (json.dumps(NOTE).encode(), json.dumps(notes).encode()))
    return n_events


class _Reading:
    """A file that is read several times; ``stream`` is the latest pass."""

    def __init__(self, path: Path, progress: CutProgress) -> None:
        self.path = path
        self.progress = progress
        self.n_bytes = path.stat().st_size
        self.stream = JsonArrayStream(cast("ByteSource", None), "traceEvents")

    def zero_ns(self) -> int:
        """Return time 0 of the trace: the start of its first event.

        Raises:
            TraceError: no event has a time.
        """
        counts, firsts = Counter[int](), dict[int, int]()
        for batch, _ in self.pieces(0):
            starts, lengths = batch.start_ns.tolist(), batch.duration_ns.tolist()
            for event, start, length in zip(batch.events, starts, lengths, strict=True):
                is_timed = start != NO_TIME and (length >= 0 or event.ph == "i")
                if not is_timed or event.ph not in PHASES or not becomes_row(event):
                    continue
                if is_stamped(event.cat, start, length):
                    year = start // YEAR_NS
                    counts[year] += 1
                    firsts[year] = min(start, firsts.get(year, start))
        first = min((firsts[year] for year in usual_years(counts)), default=None)
        window = cut_note_in(self.stream.header.get(NOTE)).window
        if window is not None:
            return window.start_ns if first is None else min(first, window.start_ns)
        if first is None:
            raise TraceError(f"{self.path}: no event has a timestamp")
        return first

    def pieces(self, number: int) -> Iterator[_EventRun]:
        """Yield the events of the file in runs; ``number`` counts the previous passes."""
        with open_chrome_trace(self.path) as (self.stream, file):
            for run in self.stream.batches(_parsed):
                if isinstance(run, tuple):
                    yield run
                elif run and isinstance(run[0], dict):
                    yield batch_of_items(run), [self.stream.text]
                done = number * self.n_bytes + file.tell()
                self.progress(done, _N_PASSES * self.n_bytes, "bytes")
        if not self.stream.has_array:
            raise TraceError(f"{self.path}: the JSON contains no list of events (traceEvents)")


def _parsed(text: bytes) -> _EventRun | None:
    batch = parse_batch(text)
    return None if batch is None else (batch, _TEXTS.decode(text))
