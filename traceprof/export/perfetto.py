"""Export a trace as JSON in the Chrome trace-event format (``perfetto`` and ``chrome``).

The events are written as a stream. Categories and arguments have the names that Kineto uses, if it
has the same kind of event.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from traceprof.errors import TraceprofError
from traceprof.export.chrome_lanes import (
    ChromeLanes,
    Places,
    Text,
    as_json,
    joined,
    microseconds,
    names_as_json,
    number,
    numbers_as_text,
    picked,
    quoted,
    text_of_each_row,
    trace_header,
)
from traceprof.export.request import Export, Exported, Request, check_tables
from traceprof.export.tracks import own_tracks
from traceprof.files import new_file
from traceprof.formats.kineto.rows import ANNOTATIONS, HOST_SOURCES
from traceprof.measures.host.launches import find_launches
from traceprof.model.grouping import groups_of
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
_EventTexts = Iterator[list[str]]
"""Lists with the JSON text of one event per row."""


@dataclass(slots=True)
class ChromeDrawing:
    """The state of an export.

    Times are relative to ``zero_ns``. ``trace`` contains the launches of GPU work. ``n_flows`` is
    the number of flow arrows so far.
    """

    lanes: ChromeLanes
    zero_ns: int
    trace: Trace
    n_flows: int = 0


def events_of(table: str, events: Table, to: ChromeDrawing) -> _EventTexts:
    """Yield the rows of ``table`` as event texts. Each text ends with a comma and a newline.

    Tables that contain details of another table have no events.
    """
    if len(events) and not TABLES[table].detail_of:
        yield from _WRITERS[table](events, to)


def _slices(
    events: Table,
    places: Places,
    zero_ns: int,
    category_and_name: tuple[Text, Text],
    *arguments: Text,
) -> list[str]:
    """Return complete events ("ph": "X") with start and duration.

    ``category_and_name`` are JSON strings. Each text of ``arguments`` starts with a comma.
    """
    starts = events["start_ns"]
    durations = events["end_ns"] - starts
    return joined(
        '{"ph":"X","cat":',
        category_and_name[0],
        ',"name":',
        category_and_name[1],
        *_place(places),
        ',"ts":',
        microseconds(starts - zero_ns),
        ',"dur":',
        microseconds(durations),
        *_arguments(arguments),
        "},\n",
    )


def _place(places: Places) -> tuple[Text, ...]:
    """Return the pieces of the "pid" and "tid" members."""
    pid, tid = map(numbers_as_text, places)
    return ',"pid":', pid, ',"tid":', tid


def _arguments(arguments: tuple[Text, ...]) -> tuple[Text, ...]:
    """Return the pieces of the "args" member. Remove the comma before the first argument."""
    if not arguments:
        return ()
    body = joined(*arguments)
    return (',"args":{', [text[1:] for text in body], "}")


def _number(events: Table, column: str, key: str = "") -> list[str]:
    """Return an integer column as arguments; an empty text for rows with `ABSENT`."""
    values = events[column]
    return number(key or column, values, values != ABSENT)


def _real_number(events: Table, column: str) -> list[str]:
    """Return a float column as arguments; an empty text for rows with NaN."""
    values = events[column]
    return number(column, values, np.isfinite(values))


def _device_numbers(events: Table) -> tuple[Text, ...]:
    """Return the arguments that all GPU work has: device, stream, and correlation."""
    names = ("device", "stream", "correlation")
    return tuple(_number(events, name) for name in names)


def _kernels(events: Table, to: ChromeDrawing) -> _EventTexts:
    places = to.lanes.of_devices("kernels", events)
    yield _slices(
        events,
        places,
        to.zero_ns,
        ('"kernel"', names_as_json(events["name"])),
        *_device_numbers(events),
        quoted("activity", events["activity"]),
        _number(events, "graph_node", "graph node id"),
    )
    yield from _flows(events, places, to)


def _copies(events: Table, to: ChromeDrawing) -> _EventTexts:
    is_memset = events["direction"] == "memset"
    n_bytes = events["n_bytes"]
    durations = events["end_ns"] - events["start_ns"]
    rates = np.round(n_bytes / np.maximum(durations, 1), 3)  # bytes/ns is GB/s
    is_known = (n_bytes != ABSENT) & (durations > 0)
    columns = [events[name] for name in ("direction", "src_kind", "dst_kind")]
    names = _format_by_names(columns, lambda kinds: _copy_name(*kinds))
    places = to.lanes.of_devices("copies", events)
    yield _slices(
        events,
        places,
        to.zero_ns,
        (np.where(is_memset, '"gpu_memset"', '"gpu_memcpy"').tolist(), names),
        *_device_numbers(events),
        _number(events, "n_bytes", "bytes"),
        number("memory bandwidth (GB/s)", rates, is_known),
        _number(events, "src_device", "fromDevice"),
        _number(events, "dst_device", "toDevice"),
        _number(events, "graph_node", "graph node id"),
    )
    yield from _flows(events, places, to)


def _format_by_names(columns: Sequence[Names], text: Callable[[Sequence[str]], str]) -> list[str]:
    """Return ``text(names)`` for each row, with the row's names in all ``columns``.

    Call ``text`` once for each distinct combination of names.
    """
    groups = groups_of(*columns)
    texts = (
        text([str(names.texts[code]) for names, code in zip(columns, key, strict=True)])
        for key in groups.keys
    )
    return picked(list(texts), groups.number)


def _copy_name(direction: str, source: str, target: str) -> str:
    """Return the name of a copy as Kineto shows it, "Memcpy HtoD (Pageable -> Device)", as JSON."""
    ends = [end.replace("_", " ").title() for end in (source, target) if end]
    kinds = f" ({' -> '.join(ends)})" if ends else ""
    return f'"{_DIRECTIONS.get(direction, "Memcpy")}{kinds}"'


def _api_calls(events: Table, to: ChromeDrawing) -> _EventTexts:
    names = events["name"]
    categories = list(map(_call_category, names.texts))
    category_and_name = (text_of_each_row(categories, names), names_as_json(names))
    lanes = to.lanes.of_threads("api_calls", events)
    yield _slices(events, lanes, to.zero_ns, category_and_name, _number(events, "correlation"))


def _call_category(name: str) -> str:
    """Return the category of an API call as Kineto names it, as a JSON string."""
    if name.startswith("hip"):
        return '"hip_runtime"'
    is_driver = name.startswith("cu") and not name.startswith("cuda")
    return '"cuda_driver"' if is_driver else '"cuda_runtime"'


def _ranges(events: Table, to: ChromeDrawing) -> _EventTexts:
    is_nested = events["kind"] != "start_end"
    for rows, kind in ((is_nested, ""), (~is_nested, "start/end ranges")):
        ranges = events.take(rows)
        if len(ranges):
            yield _slices(
                ranges,
                to.lanes.of_threads(f"ranges {kind}", ranges, kind),
                to.zero_ns,
                ('"user_annotation"', names_as_json(ranges["name"])),
                quoted("domain", ranges["domain"]),
                _number(ranges, "category"),
                _real_number(ranges, "payload"),
            )


def _marks(events: Table, to: ChromeDrawing) -> _EventTexts:
    starts = events["start_ns"]
    yield joined(
        '{"ph":"i","s":"t","cat":"mark","name":',
        names_as_json(events["name"]),
        *_place(to.lanes.of_threads("marks", events)),
        ',"ts":',
        microseconds(starts - to.zero_ns),
        *_arguments((quoted("domain", events["domain"]), _real_number(events, "payload"))),
        "},\n",
    )


def _host_ops(events: Table, to: ChromeDrawing) -> _EventTexts:
    for source in dict.fromkeys(events["source"]):
        ops = events.take(events["source"] == source)
        is_operator = source in ("cpu_op", "")
        kind = "" if is_operator else source
        category = [f'"{_host_category(source)}"'] * len(ops)
        yield _slices(
            ops,
            to.lanes.of_threads(f"host_ops {source}", ops, kind),
            to.zero_ns,
            (category, names_as_json(ops["name"])),
            _number(ops, "correlation"),
        )


def _host_category(source: str) -> str:
    """Return the category of host operators from ``source``, as the reader of Kineto knows it."""
    if source in ("", "cpu_op"):
        return "cpu_op"
    return source if source in (*HOST_SOURCES, *ANNOTATIONS) else "host_op"


def _collectives(events: Table, to: ChromeDrawing) -> _EventTexts:
    is_send = events["op"] == "send"
    peers = events["peer_rank"]
    yield _slices(
        events,
        to.lanes.of_threads("collectives", events, "collectives"),
        to.zero_ns,
        ('"collective"', names_as_json(events["op"])),
        *(_number(events, column, key) for column, key in _COLLECTIVE_NUMBERS.items()),
        number("Dst Rank", peers, is_send & (peers != ABSENT)),
        number("Src Rank", peers, ~is_send & (peers != ABSENT)),
        quoted("dtype", events["dtype"]),
        quoted("Process Group Name", events["group"]),
        quoted("backend", events["backend"]),
        _number(events, "correlation"),
    )


_COLLECTIVE_NUMBERS: Final = {
    "thread": "thread",
    "n_bytes": "bytes",
    "group_size": "Group size",
    "group_rank": "group_rank",
    "sequence": "Seq",
    "peer": "Rank",
    "tag": "tag",
}
"""The arguments of a collective, with the names that torch.profiler uses if it has one."""


def _syncs(events: Table, to: ChromeDrawing) -> _EventTexts:
    kinds = events["kind"]
    texts = [f'"{_SYNCS.get(kind, "Sync")}"' for kind in kinds.texts]
    category_and_name = ('"cuda_sync"', text_of_each_row(texts, kinds))
    places = to.lanes.of_devices("syncs", events, "waits")
    yield _slices(events, places, to.zero_ns, category_and_name, *_device_numbers(events))


def _functions(events: Table, to: ChromeDrawing) -> _EventTexts:
    category_and_name = ('"python_function"', names_as_json(events["name"]))
    places = to.lanes.of_threads("functions", events, "functions")
    yield _slices(events, places, to.zero_ns, category_and_name)


def _overheads(events: Table, to: ChromeDrawing) -> _EventTexts:
    category_and_name = ('"overhead"', names_as_json(events["name"]))
    places = to.lanes.of_threads("overheads", events, "profiler overhead")
    yield _slices(events, places, to.zero_ns, category_and_name)


def _samples(events: Table, to: ChromeDrawing) -> _EventTexts:
    samples = events.take(np.isfinite(events["value"]))
    if samples.empty:
        return
    names = _format_by_names(
        [samples["source"], samples["metric"]], lambda pair: as_json(" · ".join(pair))
    )
    values = numbers_as_text(samples["value"])
    yield joined(
        '{"ph":"C","name":',
        names,
        f',"pid":{to.lanes.process_of(ABSENT)},"ts":',
        microseconds(samples["start_ns"] - to.zero_ns),
        ',"args":{"value":',
        values,
        "}},\n",
    )


def _flows(events: Table, places: Places, to: ChromeDrawing) -> _EventTexts:
    """Yield the start and end events of the flow arrows from launches to GPU work."""
    launches = find_launches(to.trace, events.select("process", "correlation"))
    known = launches.is_known
    n_known = int(known.sum())
    if not n_known:
        return
    ids = numbers_as_text(np.arange(to.n_flows, to.n_flows + n_known))
    to.n_flows += n_known
    calls = tuple(np.maximum(values[known], 0) for values in (launches.process, launches.thread))
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


_WRITERS: Final[Mapping[str, Callable[[Table, ChromeDrawing], _EventTexts]]] = {
    "kernels": _kernels,
    "copies": _copies,
    "api_calls": _api_calls,
    "ranges": _ranges,
    "marks": _marks,
    "host_ops": _host_ops,
    "functions": _functions,
    "collectives": _collectives,
    "syncs": _syncs,
    "overheads": _overheads,
    "samples": _samples,
}


_ROWS_PER_WRITE: Final = 1 << 16
_LAST_EVENT: Final = '{"ph":"M","name":"trace_end","pid":0,"tid":0,"ts":0,"args":{}}'
_MAX_ANALYZED_BYTES: Final = 512_000_000
"""Above this size of the files, findings would take too much memory beside the export."""
_GZIP_LEVEL: Final = 4  # twice as fast as 6, and a tenth larger


def _export(run: Run, request: Request) -> Exported:
    exported = Exported(request.output)
    material = Material(run, request.ranks)
    names = check_tables(request.tables)
    ranks = material.ranks
    with (
        new_file(request.output, force=request.force, inputs=run.paths) as target,
        target.open("wb") as file,
        _compressed(file, is_compressed=request.output.suffix == ".gz") as out,
    ):
        out.write(trace_header(ranks))
        drawing = ChromeDrawing(ChromeLanes.of(ranks), ranks.span.start_ns, ranks.parts[0])
        for part in material.parts(names):
            drawing.trace = part.trace
            for name, table in part.tables.items():
                for first in range(0, len(table), _ROWS_PER_WRITE):
                    rows = table.take(slice(first, first + _ROWS_PER_WRITE))
                    for texts in events_of(name, rows, drawing):
                        out.write("".join(texts).encode("utf-8", "replace"))
                exported.n_rows += len(table)
            request.progress(exported.n_rows, 0, "rows")
        if request.has_tracks:
            _write_tracks(run, ranks.span.start_ns, out, exported)
        # The metadata events are last and never empty, so that the last event has no comma.
        described = [*drawing.lanes.described(), _LAST_EVENT]
        out.write(",\n".join(described).encode("utf-8", "replace") + b"\n]}\n")
    return exported


def _write_tracks(run: Run, zero_ns: int, out: BinaryIO, exported: Exported) -> None:
    """Write lanes with findings, steps, and idle gaps, unless analyzing the run fails."""
    if sum(path.stat().st_size for path in run.paths if path.is_file()) > _MAX_ANALYZED_BYTES:
        exported.remark("the export has no lanes with findings: the trace is too large")
        return
    try:
        texts = [f"{text},\n" for text in own_tracks(run, zero_ns)]
    except TraceprofError as error:
        exported.remark(f"the export has no lanes with findings: {error}")
        return
    out.write("".join(texts).encode("utf-8", "replace"))


@contextmanager
def _compressed(file: BinaryIO, *, is_compressed: bool) -> Iterator[BinaryIO]:
    """Yield ``file``, or a stream that writes gzip data to it."""
    if not is_compressed:
        yield file
        return
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed:
        yield compressed  # type: ignore[misc]


EXPORTS: Final[Mapping[str, Export]] = {"perfetto": _export, "chrome": _export}
