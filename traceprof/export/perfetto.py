"""``perfetto`` (and ``chrome``): a trace as JSON of Chrome's trace events, written as a stream."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from traceprof.export.base import Export, Exported, Request, check_tables
from traceprof.export.chrome_events import Drawing, events_of
from traceprof.export.json_rows import bytes_of
from traceprof.export.lanes import Lanes
from traceprof.files import new_file
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.session.material import Material
from traceprof.session.run import Run

__all__ = ["EXPORTS"]

_ROWS: Final = 1 << 16
_LAST: Final = '{"ph":"M","name":"trace_end","pid":0,"tid":0,"ts":0,"args":{}}'
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
        drawing = Drawing(Lanes.of(ranks), ranks.span.start_ns, ranks.parts[0])
        for part in material.parts(names):
            drawing.trace = part.trace
            for name, frame in part.frames.items():
                for first in range(0, len(frame), _ROWS):
                    rows = frame.iloc[first : first + _ROWS]
                    for texts in events_of(name, rows, drawing):
                        out.write(bytes_of(texts))
                done.n_rows += len(frame)
            request.progress(done.n_rows, 0, "rows")
        # The list of events ends with what is not empty: the last of them has no comma.
        described = [*drawing.lanes.described(), _LAST]
        out.write(",\n".join(described).encode("utf-8", "replace") + b"\n]}\n")
    for warning in ranks.info.warnings:
        done.remark(f"warning: {warning}")
    return done


def _head(ranks: Ranks) -> bytes:
    """Return what stands before the events: the clock, the devices, and which rank it is."""
    told: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns"}
    if ranks.info.utc_epoch_ns is not None:
        told["baseTimeNanoseconds"] = ranks.info.utc_epoch_ns + ranks.span.start_ns
    devices = ranks.table("devices")
    if len(devices):
        told["deviceProperties"] = [
            {
                "id": int(row["device"]),
                "name": str(row["name"]),
                **({"numSms": int(row["sm_count"])} if row["sm_count"] != ABSENT else {}),
                **(
                    {"totalGlobalMem": int(row["memory_bytes"])}
                    if row["memory_bytes"] != ABSENT
                    else {}
                ),
            }
            for row in devices.to_dict("records")
        ]
    processes = ranks.table("processes")
    own = processes[processes["rank"] != ABSENT]
    if len(set(own["rank"])) == 1:
        size = int(own["world_size"].max())
        told["distributedInfo"] = {
            "rank": int(own["rank"].iloc[0]),
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
