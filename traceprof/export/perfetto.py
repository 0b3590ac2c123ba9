"""``perfetto`` (and ``chrome``): a trace as JSON of Chrome's trace events, written as a stream.

Events are in the words of Kineto where it has some.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.export.chrome_lanes import (
    ChromeLanes,
    Places,
    Text,
    as_json,
    bytes_of,
    joined,
    microseconds,
    names_as_json,
    number,
    quoted,
    taken,
)
from traceprof.export.request import Export, Exported, Request, check_tables
from traceprof.files import new_file
from traceprof.measures.host.launches import find_launches
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import Trace
from traceprof.session.material import Material
from traceprof.session.run import Run

_DIRECTIONS: Final = {
    "h2d": "Memcpy HtoD",
    "d2h": "Memcpy DtoH",
    "d2d": "Memcpy DtoD",
    "p2p": "Memcpy PtoP",
    "h2h": "Memcpy HtoH",
    "memset": "Memset",
}
_SYNCS: Final = {
    "event": "Event Sync",
    "stream_wait": "Stream Wait Event",
    "stream": "Stream Sync",
    "context": "Context Sync",
}
_Made = Iterator[pa.Array]


@dataclass(slots=True)
class ChromeDrawing:
    """Into what rows are drawn; times count from ``zero_ns``, and ``trace`` has the launches."""

    lanes: ChromeLanes
    zero_ns: int
    trace: Trace
    n_flows: int = 0


def events_of(table: str, events: Table, to: ChromeDrawing) -> _Made:
    """Yield rows of ``table`` as texts of events, each with a comma and a newline behind it.

    Details of another table are none.
    """
    if len(events) and not TABLES[table].detail_of:
        yield from _EVENTS[table](events, to)


def _slices(
    events: Table, places: Places, zero_ns: int, told: tuple[Text, Text], *arguments: Text
) -> pa.Array:
    """Return complete events: ``told`` are category and name as JSON; arguments begin so: ",x"."""
    starts = events["start_ns"]
    durations = events["end_ns"] - starts
    return joined(
        '{"ph":"X","cat":',
        told[0],
        ',"name":',
        told[1],
        *_place(places),
        ',"ts":',
        microseconds(starts - zero_ns),
        ',"dur":',
        microseconds(durations),
        *_arguments(arguments),
        "},\n",
    )


def _place(places: Places) -> tuple[Text, ...]:
    pid, tid = (pa.array(numbers).cast(pa.string()) for numbers in places)
    return ',"pid":', pid, ',"tid":', tid


def _arguments(arguments: tuple[Text, ...]) -> tuple[Text, ...]:
    if not arguments:
        return ()
    body = joined(*arguments)
    return (',"args":{', pc.utf8_slice_codeunits(body, 1), "}")


def _number(events: Table, column: str, key: str = "") -> pa.Array:
    values = events[column]
    return number(key or column, values, values != ABSENT)


def _real(events: Table, column: str) -> pa.Array:
    values = events[column]
    return number(column, values, np.isfinite(values))


def _device(events: Table) -> tuple[Text, ...]:
    names = ("device", "stream", "correlation")
    return tuple(_number(events, name) for name in names)


def _kernels(events: Table, to: ChromeDrawing) -> _Made:
    places = to.lanes.of_devices("kernels", events)
    yield _slices(
        events,
        places,
        to.zero_ns,
        ('"kernel"', names_as_json(events["name"])),
        *_device(events),
        quoted("activity", events["activity"]),
        _number(events, "graph_node", "graph node id"),
    )
    yield from _flows(events, places, to)


def _copies(events: Table, to: ChromeDrawing) -> _Made:
    is_memset = events["direction"] == "memset"
    n_bytes = events["n_bytes"]
    lasted = events["end_ns"] - events["start_ns"]
    rates = np.round(n_bytes / np.maximum(lasted, 1), 3)  # bytes per ns are GB per s
    is_rated = (n_bytes != ABSENT) & (lasted > 0)
    places = to.lanes.of_devices("copies", events)
    yield _slices(
        events,
        places,
        to.zero_ns,
        (pa.array(np.where(is_memset, '"gpu_memset"', '"gpu_memcpy"')), _names_of_copies(events)),
        *_device(events),
        _number(events, "n_bytes", "bytes"),
        number("memory bandwidth (GB/s)", rates, is_rated),
        _number(events, "src_device", "fromDevice"),
        _number(events, "dst_device", "toDevice"),
        _number(events, "graph_node", "graph node id"),
    )
    yield from _flows(events, places, to)


def _names_of_copies(events: Table) -> pa.Array:
    columns = [events[name] for name in ("direction", "src_kind", "dst_kind")]
    return _of_all(columns, lambda kinds: _name_of_copy(*kinds))


def _of_all(columns: Sequence[Names], text: Callable[[Sequence[str]], str]) -> pa.Array:
    """Return what ``text`` makes of each row's names in all of ``columns``."""
    groups = groups_of(*(names.packed for names in columns))
    texts = (
        text([str(names.texts[code]) for names, code in zip(columns, key, strict=True)])
        for key in groups.keys
    )
    return pa.array(list(texts), pa.string()).take(pa.array(groups.number))


def _name_of_copy(direction: str, source: str, target: str) -> str:
    ends = [end.replace("_", " ").title() for end in (source, target) if end]
    kinds = f" ({' -> '.join(ends)})" if ends else ""
    return f'"{_DIRECTIONS.get(direction, "Memcpy")}{kinds}"'


def _api_calls(events: Table, to: ChromeDrawing) -> _Made:
    names = events["name"]
    words = list(map(_category_of_call, names.texts))
    told = (taken(words, names), names_as_json(names))
    lanes = to.lanes.of_threads("api_calls", events)
    yield _slices(events, lanes, to.zero_ns, told, _number(events, "correlation"))


def _category_of_call(name: str) -> str:
    if name.startswith("hip"):
        return '"hip_runtime"'
    is_driver = name.startswith("cu") and not name.startswith("cuda")
    return '"cuda_driver"' if is_driver else '"cuda_runtime"'


def _ranges(events: Table, to: ChromeDrawing) -> _Made:
    is_nested = events["kind"] != "start_end"
    for rows, kind in ((is_nested, ""), (~is_nested, "start/end ranges")):
        own = events.take(rows)
        if len(own):
            yield _slices(
                own,
                to.lanes.of_threads(f"ranges {kind}", own, kind),
                to.zero_ns,
                ('"user_annotation"', names_as_json(own["name"])),
                quoted("domain", own["domain"]),
                _number(own, "category"),
                _real(own, "payload"),
            )


def _marks(events: Table, to: ChromeDrawing) -> _Made:
    starts = events["start_ns"]
    yield joined(
        '{"ph":"i","s":"t","cat":"mark","name":',
        names_as_json(events["name"]),
        *_place(to.lanes.of_threads("marks", events)),
        ',"ts":',
        microseconds(starts - to.zero_ns),
        *_arguments((quoted("domain", events["domain"]), _real(events, "payload"))),
        "},\n",
    )


def _host_ops(events: Table, to: ChromeDrawing) -> _Made:
    for source in dict.fromkeys(events["source"]):
        own = events.take(events["source"] == source)
        is_operator = source in ("cpu_op", "")
        kind = "" if is_operator else source
        category = pa.array([source or "cpu_op"] * len(own))
        yield _slices(
            own,
            to.lanes.of_threads(f"host_ops {source}", own, kind),
            to.zero_ns,
            (joined('"', category, '"'), names_as_json(own["name"])),
            _number(own, "correlation"),
        )


def _collectives(events: Table, to: ChromeDrawing) -> _Made:
    numbers = ("n_bytes", "group_size", "group_rank", "sequence", "peer", "peer_rank", "tag")
    yield _slices(
        events,
        to.lanes.of_threads("collectives", events, "collectives"),
        to.zero_ns,
        ('"collective"', names_as_json(events["op"])),
        *(_number(events, name, {"n_bytes": "bytes"}.get(name, "")) for name in numbers),
        *(quoted(name, events[name]) for name in ("dtype", "group", "backend")),
        _number(events, "correlation"),
    )


def _syncs(events: Table, to: ChromeDrawing) -> _Made:
    kinds = events["kind"]
    words = [f'"{_SYNCS.get(kind, "Sync")}"' for kind in kinds.texts]
    told = ('"cuda_sync"', taken(words, kinds))
    places = to.lanes.of_devices("syncs", events, "waits")
    yield _slices(events, places, to.zero_ns, told, *_device(events))


def _overheads(events: Table, to: ChromeDrawing) -> _Made:
    told = ('"overhead"', names_as_json(events["name"]))
    places = to.lanes.of_threads("overheads", events, "profiler overhead")
    yield _slices(events, places, to.zero_ns, told)


def _samples(events: Table, to: ChromeDrawing) -> _Made:
    own = events.take(np.isfinite(events["value"]))
    if own.empty:
        return
    names = _of_all([own["source"], own["metric"]], lambda pair: as_json(" · ".join(pair)))
    values = pa.array(own["value"]).cast(pa.string())
    yield joined(
        '{"ph":"C","name":',
        names,
        f',"pid":{to.lanes.process_of(ABSENT)},"ts":',
        microseconds(own["start_ns"] - to.zero_ns),
        ',"args":{"value":',
        values,
        "}},\n",
    )


def _flows(events: Table, places: Places, to: ChromeDrawing) -> _Made:
    """Yield the arrows from the launches to their work."""
    launches = find_launches(to.trace, events.select("process", "correlation"))
    known = launches.is_known
    n_known = int(known.sum())
    if not n_known:
        return
    ids = pa.array(np.arange(to.n_flows, to.n_flows + n_known)).cast(pa.string())
    to.n_flows += n_known
    calls = tuple(np.maximum(own[known], 0) for own in (launches.process, launches.thread))
    starts = events["start_ns"][known]
    for phase, (pid, tid), instants in (
        ('"s"', calls, launches.start_ns[known]),
        ('"f","bp":"e"', (places[0][known], places[1][known]), starts),
    ):
        yield joined(
            f'{{"ph":{phase},"cat":"ac2g","name":"ac2g","id":',
            ids,
            *_place((pid, tid)),
            ',"ts":',
            microseconds(instants - to.zero_ns),
            "},\n",
        )


_EVENTS: Final[Mapping[str, Callable[[Table, ChromeDrawing], _Made]]] = {
    "kernels": _kernels,
    "copies": _copies,
    "api_calls": _api_calls,
    "ranges": _ranges,
    "marks": _marks,
    "host_ops": _host_ops,
    "collectives": _collectives,
    "syncs": _syncs,
    "overheads": _overheads,
    "samples": _samples,
}


_ROWS: Final = 1 << 16
_LAST: Final = '{"ph":"M","name":"trace_end","pid":0,"tid":0,"ts":0,"args":{}}'
_OF_DEVICE: Final = {"numSms": "sm_count", "totalGlobalMem": "memory_bytes"}
_GZIP_LEVEL: Final = 4  # twice as fast as 6, and a tenth larger


def _export(run: Run, request: Request) -> Exported:
    done = Exported(request.output)
    material = Material(run, request.ranks)
    names = check_tables(request.tables)
    ranks = material.ranks
    with (
        new_file(request.output, force=request.force, inputs=run.paths) as target,
        target.open("wb") as file,
        _packed(file, is_packed=request.output.suffix == ".gz") as out,
    ):
        out.write(_head(ranks))
        drawing = ChromeDrawing(ChromeLanes.of(ranks), ranks.span.start_ns, ranks.parts[0])
        for part in material.parts(names):
            drawing.trace = part.trace
            for name, table in part.tables.items():
                for first in range(0, len(table), _ROWS):
                    rows = table.take(slice(first, first + _ROWS))
                    for texts in events_of(name, rows, drawing):
                        out.write(bytes_of(texts))
                done.n_rows += len(table)
            request.progress(done.n_rows, 0, "rows")
        # The list of events ends with what is not empty: the last of them has no comma.
        described = [*drawing.lanes.described(), _LAST]
        out.write(",\n".join(described).encode("utf-8", "replace") + b"\n]}\n")
    return done


def _head(ranks: Ranks) -> bytes:
    """Return what stands before the events: the clock, the devices, and which rank it is."""
    told: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns"}
    if ranks.info.utc_epoch_ns is not None:
        told["baseTimeNanoseconds"] = ranks.info.utc_epoch_ns + ranks.span.start_ns
    devices = ranks.table("devices").rows()
    if devices:
        told["deviceProperties"] = [
            {
                "id": row["device"],
                "name": row["name"],
                **{key: row[name] for key, name in _OF_DEVICE.items() if row[name] != ABSENT},
            }
            for row in devices
        ]
    own = [row for row in ranks.table("processes").rows() if row["rank"] != ABSENT]
    if len({row["rank"] for row in own}) == 1:
        size = max(row["world_size"] for row in own)
        told["distributedInfo"] = {
            "rank": own[0]["rank"],
            **({"world_size": size} if size != ABSENT else {}),
        }
    text = json.dumps(told, indent=1)
    return f'{text.removesuffix("}").rstrip()},\n "traceEvents": [\n'.encode()


@contextmanager
def _packed(file: BinaryIO, *, is_packed: bool) -> Iterator[BinaryIO]:
    if not is_packed:
        yield file
        return
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
        yield packed  # type: ignore[misc]


EXPORTS: Final[Mapping[str, Export]] = {"perfetto": _export, "chrome": _export}
