"""Compare runs and summarize them; results about several runs are a `Comparison`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from traceprof.model.results import Note, Result

EXPLAIN: Final = "explain"
SCALING: Final = "scaling"
CURVE_NAME: Final = "curve"
TIMELINE_NAME: Final = "job-timeline"
NODES_NAME: Final = "nodes"
TRIED: Final = "tried"
"""Results with their own display. The last five have charts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results about several runs; everything is computed, and renderers compute nothing.

    ``title`` names the runs. ``verdict`` answers the question in a few sentences. ``notes`` are
    needed to read the numbers. ``warnings`` list problems of the inputs. ``missing`` gives the
    reason for each missing result that was requested. ``about`` describes each result, by name.
    """

    title: str
    results: Mapping[str, Result]
    verdict: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    ranks: ClassVar[Mapping[int, int]] = {}
    """The processes of several runs have no ranks in common."""
