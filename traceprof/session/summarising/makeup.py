"""What the window of a run is made of, on all its devices together."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.composition import WAITING, composition_of_devices
from traceprof.measures.device.times import used_devices
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.session.summarising.steps import rank_numbers

__all__ = ["makeup_of_run"]


def makeup_of_run(ranks: Ranks) -> tuple[int, pd.DataFrame, tuple[Note, ...]]:
    """Return how many devices worked, what they did in the window, and what is not told.

    Columns: part, kind, name, ns, count, n_bytes (see `makeup_of_devices`), all devices together.
    The ns add up to the window of all devices, as far as it was recorded.
    """
    spans = {
        (place, device): ranks.span
        for place, part in enumerate(ranks.whole.parts)
        for device in used_devices(part)
    }
    why_not = find_blame(ranks.whole).why_not
    made = composition_of_devices(ranks, spans, knows_waits=not why_not)
    made["name"] = _named_by_rank(made, rank_numbers(ranks).of_process)
    groups = made.groupby(["part", "kind", "name"])
    sizes = groups["n_bytes"].sum(min_count=1)
    together = groups[["ns", "count"]].sum().assign(n_bytes=sizes).reset_index()
    note = Note.of("whom ranks wait for is not told: {why}", why=why_not)
    return len(spans), together, (note,) if why_not and len(spans) > 1 else ()


def _named_by_rank(made: pd.DataFrame, numbers: Mapping[int, int]) -> pd.Series:
    """Return the names, of ranks that are waited for their numbers: other runs know these, too."""
    ranks = {f"process {process}": f"rank {rank}" for process, rank in numbers.items()}
    waited = (made["kind"] == WAITING) & made["name"].isin(list(ranks))
    return made["name"].where(~waited, made["name"].map(ranks))
