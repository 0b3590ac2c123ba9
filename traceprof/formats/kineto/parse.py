"""Parse events of a Chrome trace in batches with msgspec: typed, and with exact times.

A time since 1970 in microseconds with three decimals does not fit a double. A time since the base
that Kineto writes since 2024 does: below 2**43 µs a double is within half a ns of the decimal
number, so that rounding its fraction returns that number. Only larger times are parsed from their
digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.model.tables import ABSENT

SHAPE: Final = (
    "context",
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
    "registers",
    "shared_bytes",
)
"""How a kernel was launched: whole numbers, `ABSENT` if unknown."""
NO_SHAPE: Final = (ABSENT,) * len(SHAPE)
MAX_DIGITS: Final = 400
"""Maximum number of digits: far more than fit 64 bits, fewer than Python rejects."""
_INT64: Final = np.iinfo(np.int64)

Number = int | float | str | bool | None


_NO_VALUE: Final = msgspec.Raw(b"")


def _named(name: str, default: Any = ABSENT) -> Any:
    return msgspec.field(default=default, name=name)


class Arguments(msgspec.Struct, gc=False):
    """The members of an event's ``args`` that traceprof reads; numbers may be texts."""

    external_id: Number = _named("External id")
    correlation: Number = ABSENT
    device: Number = ABSENT
    stream: Number = ABSENT
    context: Number = ABSENT
    n_bytes: Number = _named("bytes")
    graph_node: Number = _named("graph node id")
    wait_on_stream: Number = ABSENT
    group_size: Number = _named("Group size")
    in_elements: Number = _named("In msg nelems")
    out_elements: Number = _named("Out msg nelems")
    sequence: Number = _named("Seq")
    group_rank: Number = _named("Rank")
    exported_rank: Number = _named("group_rank")
    exported_thread: Number = _named("thread")
    tag: Number = ABSENT
    source_rank: Number = _named("Src Rank")
    target_rank: Number = _named("Dst Rank")
    from_device: Number = _named("fromDevice")
    to_device: Number = _named("toDevice")
    allocated: Number = _named("Total Allocated")
    reserved: Number = _named("Total Reserved")
    memory_device: Number = _named("Device Id")
    memory_device_type: Number = _named("Device Type")
    collective: Any = _named("Collective name", "")
    dtype: Any = ""
    backend: Any = ""
    group_name: Any = _named("Process Group Name", "")
    group_description: Any = _named("Process Group Description", "")
    group_ranks: Any = _named("Process Group Ranks", "")
    kind: Any = ""
    name: Any = ""
    grid: Any = None
    block: Any = None
    registers: Number = _named("registers per thread")
    shared_bytes: Number = _named("shared memory")
    dims: msgspec.Raw = _named("Input Dims", _NO_VALUE)
    early_dims: msgspec.Raw = _named("Input dims", _NO_VALUE)
    types: msgspec.Raw = _named("Input type", _NO_VALUE)
    concrete: msgspec.Raw = _named("Concrete Inputs", _NO_VALUE)
    flop: msgspec.Raw = _named("kernel_flop", _NO_VALUE)
    gigabytes: msgspec.Raw = _named("kernel_num_gb", _NO_VALUE)

    @property
    def shape(self) -> tuple[int, ...]:
        """How the kernel was launched, in the order of `SHAPE`; `NO_SHAPE` if unknown."""
        if self.grid is None:
            return NO_SHAPE
        return (
            whole(self.context),
            *_axes(self.grid),
            *_axes(self.block),
            whole(self.registers),
            whole(self.shared_bytes),
        )


NO_ARGUMENTS: Final = Arguments()
"""The arguments of an event that has none; do not modify."""

_FIELDS: Final = msgspec.structs.fields(Arguments)
ATTRIBUTES: Final = {field.encode_name: field.name for field in _FIELDS}
"""Name of an argument in a file → its attribute of `Arguments`."""
NUMBER_ARGUMENTS: Final = tuple(
    field.encode_name
    for field in _FIELDS
    if field.default == ABSENT and field.name not in ("registers", "shared_bytes")
)
"""Arguments that are whole numbers; `ABSENT` if the event has none."""
TEXT_ARGUMENTS: Final = tuple(
    field.encode_name for field in _FIELDS if field.default == "" and field.name != "name"
)
"""Arguments that are texts; "" if the event has none."""
VALUE_ARGUMENTS: Final = tuple(field.encode_name for field in _FIELDS if field.default is _NO_VALUE)
"""Arguments that are any JSON value, as written; "" if the event has none."""


def whole(value: Any) -> int:
    """Return a JSON value as a whole number; `ABSENT` if it is none or does not fit 64 bits."""
    if isinstance(value, str):
        text = value.removeprefix("-")
        is_whole = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
        value = int(value) if is_whole else ABSENT
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not _INT64.min <= value <= _INT64.max:
        return ABSENT
    return int(value)


PROCESS_ID_OFFSET: Final = 100_000_000
"""Offset between the IDs of processes with one ID in the file; larger than any real ID."""
_LABELLED: Final = re.compile(r"(.*\D)(\d{1,7})", re.DOTALL)
_N_LABELS: Final = 1_000_000


def labelled_process(value: Any) -> int:
    """Return the process of an ID with a label as prefix, such as "[TP00] 4000".

    Processes with different labels get different IDs.
    """
    return _labelled(value) if isinstance(value, str) else whole(value)


@lru_cache(maxsize=1024)
def _labelled(value: str) -> int:
    found, number = _LABELLED.fullmatch(value), whole(value)
    if number != ABSENT or found is None:
        return number
    return (1 + crc32(found[1].encode()) % _N_LABELS) * PROCESS_ID_OFFSET + int(found[2])


def label_of(value: Any) -> str:
    """Return the label of such an ID; "" if it has none."""
    found = _LABELLED.fullmatch(value) if isinstance(value, str) else None
    return "" if found is None or whole(value) != ABSENT else found[1].strip()


def _axes(sizes: Any) -> tuple[int, int, int]:
    """Return the sizes of the three axes; `ABSENT` unless there are three."""
    if not isinstance(sizes, list) or len(sizes) != len("xyz"):
        return (ABSENT, ABSENT, ABSENT)
    x, y, z = map(whole, sizes)
    return (x, y, z)


Kind = tuple[Any, Any, Any]
"""Phase, category and name of an event."""
METADATA: Final = "M"
"""The phase of events that name processes and threads."""

_Distinct = TypeVar("_Distinct")


class Codes(dict[_Distinct, int]):
    """Numbers distinct values in the order in which they appear."""

    def __missing__(self, value: _Distinct) -> int:
        code = self[value] = len(self)
        return code

    def of(self, values: Iterable[_Distinct]) -> npt.NDArray[np.int32]:
        """Return the number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int32)


@dataclass(frozen=True)
class Batch:
    """Events, and one element per event for its exact times in ns; `NO_TIME` if it has none."""

    events: Sequence[Any]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]


NO_TIME: Final = int(np.iinfo(np.int64).min)
"""Value of a time that is missing, not a number, or out of range."""

_EXACT_BELOW_US: Final = float(1 << 43)
_REPRESENTABLE_US: Final = 4e15  # the year 2096; twice this time still fits 64 bits of ns
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
        """The arguments; all absent if the event has none."""
        return self.args or NO_ARGUMENTS


class KinetoEvent(_Common, gc=False):
    """One event: phase ``ph``, category ``cat``, ``name``, process, thread, and arguments."""

    ts: int | float = math.nan
    dur: int | float = math.nan


class _VerbatimEvent(_Common, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of parsers for text that is not the expected JSON."""
decode_events: Final = msgspec.json.Decoder(list[KinetoEvent]).decode
"""Returns the events in the JSON array ``text``; raises one of `UNREADABLE`."""
_VERBATIM_EVENTS: Final = msgspec.json.Decoder(list[_VerbatimEvent])


kind_of: Final = attrgetter("ph", "cat", "name")
"""Returns the `Kind` of an event."""


def parse_batch(text: bytes) -> Batch | None:
    """Return the events in the JSON array ``text``; None if it is not an array of events."""
    try:
        events = decode_events(text)
        starts = _ns_of([event.ts for event in events])
        durations = _ns_of([event.dur for event in events])
        if starts is not None and durations is not None:
            return Batch(events, starts, durations)
        verbatim = _VERBATIM_EVENTS.decode(text)
    except UNREADABLE:
        return None
    return _batch(
        verbatim,
        [bytes(event.ts).decode() for event in verbatim],
        [bytes(event.dur).decode() for event in verbatim],
    )


def _batch(events: Sequence[Any], starts: Sequence[Any], durations: Sequence[Any]) -> Batch:
    """Return events with times parsed from their digits."""
    start_ns, duration_ns = (list(map(_time, values)) for values in (starts, durations))
    return Batch(events, np.array(start_ns, np.int64), np.array(duration_ns, np.int64))


def _ns_of(microseconds: Sequence[int | float]) -> npt.NDArray[np.int64] | None:
    """Return the times in ns; None if a double lost the last digit of a time."""
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
    """Return the events among plain JSON values, in which numbers with a fraction are texts.

    Values that are not events are ignored.
    """
    event_items = [item for item in items if isinstance(item, dict)]
    starts, durations = ([item.get(name) for item in event_items] for name in ("ts", "dur"))
    return _batch([_event_of(item) for item in event_items], starts, durations)


def _time(microseconds: Any) -> int:
    """Return a time in ns; `NO_TIME` if the value is not a possible time."""
    ns = exact_ns(microseconds)
    return NO_TIME if ns is None or not -_REPRESENTABLE_NS < ns < _REPRESENTABLE_NS else ns


def _event_of(item: Mapping[str, Any]) -> KinetoEvent:
    args = item.get("args")
    args = args if isinstance(args, dict) else {}
    arguments = Arguments()
    for key in args.keys() & ATTRIBUTES.keys():
        value = args[key]
        written = msgspec.Raw(msgspec.json.encode(value)) if key in VALUE_ARGUMENTS else value
        setattr(arguments, ATTRIBUTES[key], written)
    return KinetoEvent(
        ph=str(item.get("ph", "")),
        cat=str(item.get("cat", "")),
        name=str(item.get("name", "")),
        pid=item.get("pid", ABSENT),
        tid=item.get("tid", ABSENT),
        id=item.get("id", ABSENT),
        args=arguments,
    )


def exact_ns(microseconds: Any) -> int | None:
    """Return a JSON number of microseconds in ns, exact to the last digit.

    A number that is out of range becomes the first time that no trace can contain. Values that are
    not numbers become None.
    """
    if isinstance(microseconds, int) and not isinstance(microseconds, bool):
        return microseconds * 1000
    if not isinstance(microseconds, str):
        return None
    sign, digits = (-1, microseconds[1:]) if microseconds[:1] == "-" else (1, microseconds)
    full, _, fraction = digits.partition(".")
    if full.isdecimal() and (fraction.isdecimal() or not fraction):
        if len(full) > MAX_DIGITS:
            return sign * _REPRESENTABLE_NS
        return sign * (int(full) * 1000 + int(fraction[:3].ljust(3, "0")))
    try:
        return round(float(microseconds) * 1000)
    except (ValueError, OverflowError):
        return None
