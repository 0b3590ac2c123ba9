"""What would make steps known, of a recording that has none."""

from __future__ import annotations

from typing import Final

from traceprof.facts.cache import fact
from traceprof.model.ranks import Ranks
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

__all__ = ["how_steps_get_known"]

_RECORD: Final = "record with `traceprof record`, or call traceprof.step()"
_SAY: Final = (
    "call traceprof.step() in the program, or say what a step is "
    "(`traceprof record --step-from loader`, every-forward or range:NAME)"
)


def how_steps_get_known(ranks: Ranks) -> str:
    """Return what to do where no steps are known; `traceprof record` is not advised again."""
    return _SAY if any(ranks.whole.each(_is_own)) else _RECORD


@fact
def _is_own(trace: Trace) -> bool:
    """Return whether `traceprof record` made the recording, whatever it saw."""
    domains = trace.ranges["domain"].cat.categories
    return trace.is_by_traceprof or OWN_DOMAIN in set(domains)
