"""What must be read with the numbers of collectives, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from traceprof.facts.host.phase_names import UNCLAIMED
from traceprof.model.results import Note, Result

__all__ = ["NOTHING_STARTS", "note_on_collectives"]

NOTHING_STARTS: Final = Note("no collective starts in this window")


def note_on_collectives(result: Result) -> Result:
    """Return the collectives with remarks on them and the peaks that they are judged by."""
    if not result.scalars["count"]:
        return result.with_notes(NOTHING_STARTS)
    return result.with_notes(
        _on_waiting(result),
        *_on_pace(result),
        *_on_phases(result),
        *_on_what_is_missing(result),
        *_on_peaks(result),
    )


def _on_waiting(result: Result) -> Note:
    shared, count = result.scalars["shared_count"], result.scalars["count"]
    if not shared:
        return Note(
            "no collective is shared by several ranks of the trace: times include waiting for "
            "the others, bandwidths are lower bounds"
        )
    return Note.of(
        "{shared:count} of {count:count} are shared by several ranks of the trace: bandwidths are "
        "by the shortest time of the ranks, which holds no waiting",
        shared=shared,
        count=count,
    )


def _on_pace(result: Result) -> Iterator[Note]:
    said = {
        "pace": ("{pace:number} collectives per second", result.scalars.get("collectives_per_s")),
        "count": ("{count:number} per step", result.scalars.get("per_step_count")),
        "size": ("{size:bytes} per step", result.scalars.get("per_step_bytes")),
        "share": (
            "all-reduce runs in {share:ratio} of the step",
            result.scalars.get("all_reduce_ratio"),
        ),
    }
    known = {name: value for name, (_, value) in said.items() if value is not None}
    if known:
        yield Note(", ".join(said[name][0] for name in known), known)


def _on_phases(result: Result) -> Iterator[Note]:
    """Yield which phases called the collectives whose time compute does not hide."""
    phases = result.tables["phases"]
    exposed = phases[phases["exposed_ns"] > 0]
    if exposed.empty or exposed["phase"].tolist() == [UNCLAIMED]:
        return
    values: dict[str, Any] = {}
    parts = []
    pairs = zip(exposed["phase"], exposed["exposed_ns"], strict=True)
    for i, (phase, exposed_ns) in enumerate(pairs):
        values |= {f"phase{i}": phase, f"exposed{i}": exposed_ns}
        parts.append(f"{{phase{i}}} {{exposed{i}:ns}}")
    yield Note(f"exposed by the phase that called them: {', '.join(parts)}", values)


def _on_what_is_missing(result: Result) -> Iterator[Note]:
    texts = {
        "unsized_count": "the size of {n:count} of {count:count} was not recorded: no bandwidth is "
        "claimed for them",
        "uncalled_count": "{n:count} of {count:count} are kernels whose launch is not in the trace",
        "untimed_count": "{n:count} of {count:count} are calls whose kernel is not in the trace: "
        "how long they took is not known",
    }
    for name, text in texts.items():
        if result.scalars[name]:
            yield Note.of(text, n=result.scalars[name], count=result.scalars["count"])


def _on_peaks(result: Result) -> Iterator[Note]:
    peaks = result.tables["peaks"]
    known = peaks[peaks["peak_bytes_per_s"].notna()]
    for row in known.to_dict("records"):
        text = "peak for groups of {n:count} ranks: {peak:bytes/s} ({link}; {source})"
        if not row["is_wider"]:
            text += "; assumed is that they share a machine"
        yield Note.of(
            text,
            n=row["group_size"],
            peak=row["peak_bytes_per_s"],
            link=row["link"],
            source=row["source"],
        )
    unknown = peaks.loc[peaks["peak_bytes_per_s"].isna(), "group_size"]
    if len(unknown):
        yield Note.of(
            "groups of {sizes} ranks have more ranks than a machine of this trace has GPUs: give "
            "the network of a GPU by --link nic=400Gb/s",
            sizes=", ".join(map(str, unknown.tolist())),
        )
