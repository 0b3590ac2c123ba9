"""A whole host, or rack, arrives late at the collectives, and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.waiting import waiting_for
from traceprof.errors import NotRecordedError
from traceprof.facts.ranks.blame import why_withheld
from traceprof.facts.ranks.costs import cost_of
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.facts.ranks.waits import matches_in_step
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.03


def _check(context: Context) -> Iterator[Finding]:
    if not context.matches.is_shared:
        raise NotRecordedError("no collective is shared by several ranks")
    why_not = why_withheld(context.ranks)
    if why_not:
        raise NotRecordedError(why_not)
    hosts = {member.host for member in context.matches.members if member.host}
    if len(hosts) < 2:
        raise NotRecordedError(
            "all ranks are on one host, or their hosts are not known (--cluster FILE)"
        )
    found = find_late_whole(context.ranks)
    if found is None:
        return
    where, group = found
    cost_ns = cost_of(context.ranks, group.late_members)
    ratio = cost_ns / context.window_ns
    if ratio < _LEAST:
        return
    claims = waiting_for(context, group.late_members, cost_ns)
    kind = where.value
    table = matches_in_step(context.ranks).table
    names = [where.of_member(context.matches.members[place]) for place in table["last_member"]]
    own = table[[name == group.name for name in names]]
    worst = own.iloc[int(own["waited_ns"].to_numpy().argmax())]
    phase = (Note.of("they take longer in {phase}", phase=group.phase),) if group.phase else ()
    yield Finding(
        title=Note.of(
            f"slow {kind}: the others wait for {{name}}, {{share:ratio}} of the window",
            name=group.name,
            share=ratio,
        ),
        claims=claims,
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                f"{{late:count}} of the {{ranks:count}} ranks of {kind} {{name}} come late; it is "
                "last to {last:ratio} of the collectives that it shares with others and holds them "
                "up {cost:ns} in all",
                late=group.late_ranks,
                ranks=group.ranks,
                name=group.name,
                last=group.last_ratio,
                cost=group.cost_ns,
            ),
            *phase,
        ),
        action=_ACTIONS[kind].format(name=group.name),
        caveat="with clocks that are not aligned (--align) a whole host seems late",
        window=context.window_text(int(worst["first_start_ns"]), int(worst["end_ns"])),
    )


_ACTIONS: Final = {
    "host": (
        "look at what the ranks of {name} share (`traceprof show hosts`): its processors and their "
        "clock, other jobs on it, its data and storage, GPUs that are throttled; or leave it out"
    ),
    "rack": (
        "look at what the hosts of {name} share (`traceprof show racks`): cooling and power "
        "limits, storage, the switch; or leave it out"
    ),
}

RULE = Rule(
    name="slow_host",
    subject="ranks in step",
    summary="a whole host or rack is late at the collectives",
    needs=("kernels",),
    show="hosts",
    check=_check,
)
