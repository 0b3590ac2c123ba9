"""Runs against runs, and what is kept of each: what is told about several is a `Comparison`."""

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
"""The results that are shown in ways of their own; charts are drawn of the last five."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results about several runs: everything was computed before, renderers compute nothing.

    ``title`` names the runs, ``verdict`` answers in a few sentences, ``notes`` must be read with
    the numbers, ``warnings`` say what makes the inputs suspicious and ``missing`` why a result
    that was asked for is not there. ``about`` says of each result in words what it is, by name.
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
