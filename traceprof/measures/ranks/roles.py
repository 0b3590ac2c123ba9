"""Finds the roles of ranks: ranks that train, and ranks that work for them.

A rank trains if it has a backward pass or an optimizer. Another rank that shares collectives with
it has the role of its named phases (rollout, reference, reward, environment). A rank without named
phases trains if it has steps, and rolls out if it only computes. A rank whose hooks recorded an
optimizer without backward passes, or only communication, is a server: it keeps the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import find_members
from traceprof.measures.facts import fact
from traceprof.measures.host.phases import phases_of_all_ranges
from traceprof.measures.host.threads import autograd_rows
from traceprof.measures.rows import lengths_of
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.from_passes import FORWARD_PASSES
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

TRAINER: Final = "trainer"
ROLLOUT: Final = "rollout"
SERVER: Final = "server"
_ROLE_OF_PHASE: Final = {
    "rollout": ROLLOUT,
    "generation": ROLLOUT,
    "environment": "environment",
    "logprobs": "reference",
    "reward": "reward",
}


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of ranks, by position in `find_members`; empty if all ranks have one role."""

    of_member: Mapping[int, str]

    @property
    def have_server(self) -> bool:
        """Return whether a rank keeps the parameters of the others."""
        return SERVER in self.of_member.values()

    def are_whole(self, places: Collection[int]) -> bool:
        """Return whether ``places`` are all ranks of one or more roles."""
        inside = {role for place, role in self.of_member.items() if place in places}
        outside = {role for place, role in self.of_member.items() if place not in places}
        return bool(inside) and not inside & outside

    def places(self, *, are_trainers: bool) -> tuple[int, ...]:
        """Return the ranks that train, or the other ranks that have a role."""
        return tuple(
            place for place, role in self.of_member.items() if (role == TRAINER) == are_trainers
        )


@fact
def find_roles(ranks: Ranks) -> Roles:
    """Return the roles of the ranks that share collectives or messages."""
    of_process = {p: role for found in ranks.each(_roles_in) for p, role in found.items()}
    if not _are_several(of_process.values()):  # the usual case, which needs no collectives
        return Roles({})
    rows = find_matches(ranks.whole).shared
    sharing = set(np.unique(rows["member"]).tolist())
    roles = {
        place: of_process[member.process]
        for place, member in enumerate(find_members(ranks))
        if place in sharing and member.process in of_process
    }
    return Roles(roles if _are_several(roles.values()) else {})


def _are_several(roles: Collection[str]) -> bool:
    """Return whether some ranks train, and others have another role."""
    return TRAINER in roles and bool(set(roles) - {TRAINER})


def _roles_in(trace: Trace) -> dict[int, str]:
    """Return the role of each process of a trace that trains, has named phases, or computes."""
    ranges, phases = trace.whole.ranges, phases_of_all_ranges(trace)
    steps = find_steps(trace.whole)
    with_steps = steps.table["process"].tolist() if steps.source != FORWARD_PASSES else []
    operators = trace.whole.host_ops
    learning = {*operators["process"][autograd_rows(operators["name"])].tolist()}
    learning |= {*ranges["process"][phases == PHASES.index("backward")].tolist()}
    updating = ranges["process"][phases == PHASES.index("optimizer")].tolist()
    # The recorder tells passes with and without gradients apart, so these ranks only evaluate.
    without_gradients = (phases == PHASES.index("eval")) & (ranges["domain"] == TRACEPROF_DOMAIN)
    found = dict.fromkeys(np.unique(trace.whole.kernels["process"]).tolist(), ROLLOUT)
    found |= dict.fromkeys(with_steps, TRAINER)
    found |= dict.fromkeys(np.unique(ranges["process"][without_gradients]).tolist(), ROLLOUT)
    longest: dict[int, int] = {}
    for phase, role in _ROLE_OF_PHASE.items():
        rows = ranges.take(phases == PHASES.index(phase))
        for process in np.unique(rows["process"]).tolist():
            time_ns = int(lengths_of(rows.take(rows["process"] == process)).sum())
            if time_ns > longest.get(process, 0):
                longest[process], found[process] = time_ns, role
    found |= dict.fromkeys((*updating, *learning), TRAINER)
    return {**found, **dict.fromkeys(_servers_in(trace, found.keys(), learning), SERVER)}


def _servers_in(trace: Trace, known: Collection[int], learning: Collection[int]) -> set[int]:
    """Return the processes that only update parameters, or only communicate.

    The recorder sees all optimizers and backward passes, so ranges of other tools do not count.
    """
    ranges = trace.whole.ranges.take(trace.whole.ranges["domain"] == TRACEPROF_DOMAIN)
    is_update = [text.partition("#")[0] == "optimizer" for text in ranges["name"].texts.tolist()]
    updating = {*ranges["process"][ranges["name"].by_text(np.array(is_update, bool))].tolist()}
    silent = {*ranges["process"].tolist()} & {*trace.whole.collectives["process"].tolist()}
    return (updating | silent.difference(known)).difference(learning)
