"""What is known of the rounds of one rank of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

import pandas as pd

from traceprof.model.timing import TimeWindow
from traceprof.values import dataclass

__all__ = ["BOTH", "FORWARD", "INDEPENDENT", "ONE", "SYNCHRONISED", "NodeRounds"]

FORWARD: Final = "forward"
BOTH: Final = "forward+backward"

ONE: Final = "one"
SYNCHRONISED: Final = "synchronised"
INDEPENDENT: Final = "independent"


@dataclass(frozen=True, slots=True, eq=False)
class NodeRounds:
    """The rounds of a rank without warm-up; None: not known.

    ``rounds_ns`` is the time of all ``rounds_count`` together, ``phases`` the ns of the host in
    each phase in them; ``are_phases_ours``: the recorder named them, all that there are.
    ``layers`` has a row for each layer: layer, type, count, host_ns, where it
    is told host_backward_ns, where devices were recorded device_ns and backward_ns, of all rounds
    together. ``calls_count`` collectives after the first round handed in ``calls_bytes`` and took
    ``calls_ns``; the rounds after it took ``calls_rounds_ns``, without what lies between rounds,
    such as a profiler that starts. ``waited_ns`` were spent in all rounds waiting for others.
    ``span`` goes from the first of the rounds to the last.
    """

    run: str
    rank: int | None
    node: str
    ranks_count: int
    rounds_count: int
    warmup_count: int
    rounds_ns: int
    phases: Mapping[str, int] = field(default_factory=dict)
    layers: pd.DataFrame = field(default_factory=pd.DataFrame)
    are_phases_ours: bool = True
    samples_count: float | None = None
    calls_count: int | None = None
    calls_rounds_ns: int = 0
    calls_bytes: float | None = None
    calls_ns: float | None = None
    waited_ns: float | None = None
    span: TimeWindow | None = None

    @property
    def mode(self) -> str:
        """Whether there is a backward pass; "" where that is not known.

        Where others named the phases, nothing is said of those that they did not name.
        """
        if self.phases.get("backward", 0) or self.phases.get("optimizer", 0):
            return BOTH
        return FORWARD if self.are_phases_ours and self.phases.get("forward", 0) else ""

    @property
    def ranks(self) -> str:
        """Whether ranks exchange anything in a round; "" where collectives were not recorded."""
        if self.ranks_count == 1:
            return ONE
        if self.calls_count is None:
            return ""
        return SYNCHRONISED if self.calls_count else INDEPENDENT
