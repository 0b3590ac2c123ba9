"""Findings as people read them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.selection import select

__all__ = ["Found", "findings_of", "in_default_window"]


def in_default_window(of: Trace | Ranks) -> Ranks:
    """Return ``of`` in the window that is looked at where nobody types one: its usual steps."""
    ranks = of if isinstance(of, Ranks) else Ranks.of(of)
    return ranks.within(select(ranks, None).window)


@dataclass(frozen=True)
class Found:
    """A finding with its sentences in words."""

    rule: str
    title: str
    claimed_ratio: float
    saving_ratio: float
    saving_ns: int
    evidence: tuple[str, ...]
    action: str
    caveat: str
    window: str
    ranges: tuple[str, ...]
    kind: str
    one_time_ns: float | None
    is_minor: bool
    range_ns: tuple[int, int] | None
    model: str


def findings_of(of: Trace | Ranks) -> list[Found]:
    """Return the findings on a trace, the best first."""
    return [
        Found(
            rule=row["rule"],
            title=note_text(row["title"]),
            claimed_ratio=row["claimed_ratio"],
            saving_ratio=row["saving_ratio"],
            saving_ns=row["saving_ns"],
            evidence=tuple(map(note_text, row["evidence"])),
            action=row["action"],
            caveat=row["caveat"],
            window=row["window"],
            ranges=tuple(filter(None, row["ranges"].split("; "))),
            kind=row["kind"],
            one_time_ns=row["one_time_ns"],
            is_minor=row["is_minor"],
            range_ns=None
            if row["min_saving_ns"] is None
            else (row["min_saving_ns"], row["max_saving_ns"]),
            model=note_text(row["model"]) if row["model"] else "",
        )
        for row in run("findings", of).table.to_frame().to_dict("records")
    ]
