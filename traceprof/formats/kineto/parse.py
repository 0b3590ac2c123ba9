"""Parsing the events of a Chrome trace many at a time, typed, and with exact times.

A time of day in microseconds with three decimals does not fit a double. One counted from the
base that Kineto writes since 2024 does: below 2**43 µs a double is within half a ns of the
decimal number, so that rounding its fraction gives that number back. Only where it does not
are the digits themselves read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.arguments import (
    ATTRIBUTES,
    LONGEST_WHOLE,
    NO_ARGUMENTS,
    Arguments,
    Number,
)
from traceprof.formats.kineto.batch import Batch
from traceprof.model.tables import ABSENT

__all__ = [
    "NO_TIME",
    "UNREADABLE",
    "Event",
    "batch_of_items",
    "decode_events",
    "exact_ns",
    "parse_batch",
]

NO_TIME: Final = int(np.iinfo(np.int64).min)
"""Stands for a time that is not there, no number, or beyond all clocks."""

_EXACT_BELOW_US: Final = float(1 << 43)
_REPRESENTABLE_US: Final = 4e15  # the year 2096; twice it still fits 64 bits of ns
_REPRESENTABLE_NS: Final = int(_REPRESENTABLE_US) * 1000


class _Common(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = ""
    name: str | int | float | None = ""
    pid: Number = ABSENT
    tid: Number = ABSENT
    id: Any = ABSENT
    args: Arguments | None = None

    @property
    def arguments(self) -> Arguments:
        """The arguments; all absent where the event has none."""
        return self.args or NO_ARGUMENTS


class Event(_Common, gc=False):
    """One event: phase ``ph``, category ``cat``, ``name``, where it was, and its arguments."""

    ts: int | float = math.nan
    dur: int | float = math.nan


class _VerbatimEvent(_Common, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What parsers raise of text that is not what they read."""
_EVENTS: Final = msgspec.json.Decoder(list[Event])
_VERBATIM_EVENTS: Final = msgspec.json.Decoder(list[_VerbatimEvent])


def decode_events(text: bytes) -> list[Event]:
    """Return the events in the JSON array ``text``; raises one of `UNREADABLE`."""
    return _EVENTS.decode(text)


def parse_batch(text: bytes) -> Batch | None:
    """Return the events in the JSON array ``text``; None where it is not an array of events."""
    try:
        events = decode_events(text)
    except UNREADABLE:
        return None
    starts = _ns_of([event.ts for event in events])
    durations = _ns_of([event.dur for event in events])
    if starts is None or durations is None:
        return _parse_digits(text)
    return Batch(events, starts, durations)


def _parse_digits(text: bytes) -> Batch | None:
    try:
        events = _VERBATIM_EVENTS.decode(text)
    except UNREADABLE:
        return None
    starts = [_time(bytes(event.ts).decode()) for event in events]
    durations = [_time(bytes(event.dur).decode()) for event in events]
    return Batch(events, np.array(starts, np.int64), np.array(durations, np.int64))


def _ns_of(microseconds: Sequence[int | float]) -> npt.NDArray[np.int64] | None:
    """Return the times in ns; None where a double has lost the last digit of one."""
    try:
        values = np.array(microseconds, np.float64)
    except OverflowError:
        return None
    sizes = np.abs(values)
    is_time = sizes < _REPRESENTABLE_US
    coarse = np.flatnonzero(is_time & (sizes >= _EXACT_BELOW_US))
    if any(not isinstance(microseconds[index], int) for index in coarse.tolist()):
        return None
    values = np.where(is_time, values, 0.0)
    full = np.floor(values)
    fraction = values - full
    ns = full.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)
    return np.where(is_time, ns, NO_TIME)


def batch_of_items(items: Sequence[Any]) -> Batch:
    """Return the events among plain JSON values, numbers with a fraction being texts.

    What is no event is left out.
    """
    given = [item for item in items if isinstance(item, dict)]
    starts, durations = ([_time(item.get(name)) for item in given] for name in ("ts", "dur"))
    events = [_event_of(item) for item in given]
    return Batch(events, np.array(starts, np.int64), np.array(durations, np.int64))


def _time(microseconds: Any) -> int:
    """Return a time in ns, `NO_TIME` where the value is none that a clock can have."""
    ns = exact_ns(microseconds)
    return NO_TIME if ns is None or not -_REPRESENTABLE_NS < ns < _REPRESENTABLE_NS else ns


def _event_of(item: Mapping[str, Any]) -> Event:
    given = item.get("args")
    given = given if isinstance(given, dict) else {}
    arguments = Arguments()
    for key in given.keys() & ATTRIBUTES.keys():
        setattr(arguments, ATTRIBUTES[key], given[key])
    return Event(
        ph=str(item.get("ph", "")),
        cat=str(item.get("cat", "")),
        name=str(item.get("name", "")),
        pid=item.get("pid", ABSENT),
        tid=item.get("tid", ABSENT),
        id=item.get("id", ABSENT),
        args=arguments,
    )


def exact_ns(microseconds: Any) -> int | None:
    """Return the nanoseconds of a JSON number of microseconds, exact to the last digit.

    Of one beyond all clocks it is the first time that no trace can hold; None of what is no number.
    """
    if isinstance(microseconds, int) and not isinstance(microseconds, bool):
        return microseconds * 1000
    if not isinstance(microseconds, str):
        return None
    sign, digits = (-1, microseconds[1:]) if microseconds[:1] == "-" else (1, microseconds)
    full, _, fraction = digits.partition(".")
    if full.isdecimal() and (fraction.isdecimal() or not fraction):
        if len(full) > LONGEST_WHOLE:
            return sign * _REPRESENTABLE_NS
        return sign * (int(full) * 1000 + int(fraction[:3].ljust(3, "0")))
    try:
        return round(float(microseconds) * 1000)
    except (ValueError, OverflowError):
        return None
