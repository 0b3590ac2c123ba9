"""All that the viewer draws of a run; once it is there the trace itself is not needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

from traceprof.model.trace import Trace
from traceprof.render.timeline.channels import Channel, Lanes, NameTotals
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.render import timeline_head
from traceprof.render.timeline.samples import SampleSeries, sample_series
from traceprof.render.timeline.states import with_states
from traceprof.values import dataclass
from traceprof.viewer.pyramid import Level, build_levels

__all__ = ["About", "Timeline"]


class About(NamedTuple):
    """What stands above a timeline; ``warnings`` are sentences about the run."""

    profiler: str
    host: str
    n_events: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The exact lanes, their levels of detail, samples and totals; ``head`` is that of a page.

    Times are ns after the start of the trace.
    """

    lanes: Lanes
    samples: Sequence[SampleSeries]
    totals: NameTotals
    head: dict[str, Any]
    about: About
    levels: dict[Channel, tuple[Level, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, notes: Sequence[str] = ()) -> Timeline:
        """Return the timeline of the whole of ``trace``; ``notes`` are more to be said of it."""
        exact = build_lanes(trace, trace.span)
        lanes = with_states(exact, trace.span.duration_ns)
        samples, remarks = sample_series(trace, trace.span)
        info = trace.info
        warnings = (*info.warnings, *notes, *remarks)
        return cls(
            lanes=lanes,
            samples=samples,
            totals=NameTotals.of_every(lanes),
            head=timeline_head(trace, trace.span, lanes.n_events),
            about=About(info.profiler, info.host, lanes.n_events, warnings),
        )

    @property
    def duration_ns(self) -> int:
        """How long the trace is; at least 1."""
        duration: int = self.head["duration_ns"]
        return duration

    def levels_of(self, channel: Channel) -> tuple[Level, ...]:
        """Return the levels of detail of ``channel``, which are kept from the first time on."""
        found = self.levels.get(channel)
        if found is None:
            found = self.levels[channel] = self.build_levels(channel)
        return found

    def build_levels(self, channel: Channel) -> tuple[Level, ...]:
        """Return the levels of detail of ``channel``."""
        return build_levels(channel, self.duration_ns)
