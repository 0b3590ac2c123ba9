"""Joins the steps of ranks with different roles into rounds.

In post-training, a trainer may make several updates with the rollouts that other ranks send. Both
roles exchange data (rollouts and weights) by collectives or messages. The steps of a rank between
two exchanges are one round, so that a round includes the time in which a role waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import find_members
from traceprof.measures.ranks.roles import TRAINER, find_roles
from traceprof.measures.rows import Ints, rows_by
from traceprof.measures.steps.find import find_steps, with_steps_of
from traceprof.measures.steps.from_phases import RECORDED_PHASES, with_updates
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import STEP_COLUMNS


def join_steps_of_roles(ranks: Ranks) -> Ranks:
    """Return the ranks with rounds as steps if ranks have roles and traceprof recorded the phases.

    The ranks are returned unchanged if no rank has several steps between two exchanges.
    """
    found = ranks.each(find_steps)
    if not any(steps.source.startswith(RECORDED_PHASES) for steps in found):
        return ranks
    found_roles = find_roles(ranks)
    if not (roles := found_roles.of_member) or found_roles.have_server:
        return ranks
    exchanges = _exchanges(ranks, {place: role == TRAINER for place, role in roles.items()})
    tables = [_joined(steps.table.select(*STEP_COLUMNS), exchanges) for steps in found]
    before = np.concatenate([steps.table["process"] for steps in found])
    after = np.concatenate([table["process"] for table in tables])
    if len(after) == len(before):
        return ranks
    trainers = {
        find_members(ranks)[place].process for place, role in roles.items() if role == TRAINER
    }
    n_steps, n_rounds = (np.isin(column, [*trainers]).sum() for column in (before, after))
    return with_steps_of(ranks, tables, RECORDED_PHASES + with_updates(round(n_steps / n_rounds)))


def _exchanges(ranks: Ranks, trains: Mapping[int, bool]) -> dict[int, Ints]:
    """Return when each process called a collective or message that trainers share with others."""
    rows, members = find_matches(ranks).shared, find_members(ranks)
    rows = rows.take(np.isin(rows["member"], [*trains]))
    is_trainer = np.isin(rows["member"], [place for place, value in trains.items() if value])
    matches = groups_of(rows["match"])
    is_between = matches.differ(is_trainer.astype(np.int64))[matches.number]
    times = np.where(rows["call_ns"] != ABSENT, rows["call_ns"], rows["start_ns"])
    found: dict[int, Ints] = {}
    for place in trains:
        of_member = times[is_between & (rows["member"] == place)]
        earlier = found.get(members[place].process, of_member[:0])
        found[members[place].process] = np.sort(np.concatenate([earlier, of_member]))
    return found


def _joined(steps: Table, exchanges: Mapping[int, Ints]) -> Table:
    """Return the steps of a trace, joined between exchanges and numbered again."""
    kept: list[int] = []
    ends: list[int] = []
    numbers: list[int] = []
    for process, rows in rows_by(steps, "process").items():
        starts = steps["start_ns"][rows]
        place = np.searchsorted(exchanges.get(process, starts[:0]), starts, side="right")
        firsts = np.flatnonzero(np.append(True, np.diff(place) > 0))
        kept += rows[firsts].tolist()
        # A role waits at the end of its round.
        ends += [*starts[firsts[1:]].tolist(), int(steps["end_ns"][rows].max())]
        numbers += range(len(firsts))
    return steps.take(np.array(kept, np.int64)).assign(end_ns=ends, step=numbers)
