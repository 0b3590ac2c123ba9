"""Lives: the starts of a program that was started again, as its manifests tell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceprof.errors import UsageError
from traceprof.formats.runs.manifest import LAUNCHER
from traceprof.model.ranks import Attempt
from traceprof.model.tables import ABSENT
from traceprof.units import format_duration

__all__ = ["chosen_life", "lives_in", "warning_on_lives"]

_SOON_NS: Final = 1_000_000_000


def lives_in(told: Mapping[Path, Mapping[str, Any]]) -> tuple[Attempt, ...]:
    """Return every start of every rank in the order of time; none where manifests do not tell.

    All ranks that were started together are one life of the program. Its ranks ran at the same
    time and knew of equally many ranks; none of them is there twice.
    """
    rows = [_life(path, row) for path, row in told.items()]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return ()
    known.sort(key=lambda one: (one.start_ns, one.rank))
    is_once = len({one.rank for one in known}) == len(known)
    if is_once and not any(row.get("run_id") for row in told.values()):
        return tuple(known)
    groups: list[list[Attempt]] = []
    for one in known:
        if not groups or not _is_of(one, groups[-1]):
            groups.append([])
        groups[-1].append(one)
    return tuple(one.numbered(life) for life, group in enumerate(groups) for one in group)


def chosen_life(lives: Sequence[Attempt], wanted: int | None) -> int:
    """Return the life to look at: the one that is wanted, else the longest, of equals the last.

    Raises:
        UsageError: there is no such life.
    """
    numbers = sorted({one.life for one in lives})
    if wanted is None:
        return max(numbers, key=lambda life: (_duration_ns(lives, life), life), default=0)
    if wanted not in (numbers or [0]):
        known = ", ".join(map(str, numbers)) or "0"
        raise UsageError(f"no life {wanted}: the program was started as life {known}")
    return wanted


def warning_on_lives(lives: Sequence[Attempt], chosen: int, *, is_wanted: bool) -> str:
    """Return which of several lives is looked at; "" where there is one."""
    numbers = sorted({one.life for one in lives})
    if len(numbers) < 2:
        return ""
    why = "as asked for" if is_wanted else "the longest"
    each = "; ".join(
        f"life {life}: {_ranks(lives, life)}, {format_duration(_duration_ns(lives, life))}"
        for life in numbers
    )
    return (
        f"the program was started {len(numbers)} times, and life {chosen} is shown, {why} "
        f"({each}): --life chooses, `traceprof elastic` shows all"
    )


def _life(path: Path, row: Mapping[str, Any]) -> Attempt | None:
    started, ended, size = (row.get(name) for name in ("started_ns", "ended_ns", "world_size"))
    if not isinstance(row.get("rank"), int) or not isinstance(started, int):
        return None
    return Attempt(
        life=0,
        rank=int(row["rank"]),
        path=str(path),
        host=str(row.get("host", "")),
        start_ns=started,
        # One that was killed before it did anything ended nobody knows when.
        end_ns=max(ended, started) if isinstance(ended, int) else started,
        ended=str(row.get("ended", "")),
        world_size=size if isinstance(size, int) else ABSENT,
        launcher=str(row.get(LAUNCHER, "")),
    )


def _is_of(one: Attempt, group: Sequence[Attempt]) -> bool:
    return (
        one.rank not in {other.rank for other in group}
        and one.world_size == group[0].world_size
        and one.start_ns < min(_end_ns(other) for other in group)
    )


def _end_ns(one: Attempt) -> int:
    """Return when a life ended; of one of which that is not known, soon after it was started."""
    return one.end_ns if one.end_ns > one.start_ns else one.start_ns + _SOON_NS


def _duration_ns(lives: Sequence[Attempt], life: int) -> int:
    own = [one for one in lives if one.life == life]
    return max(one.end_ns for one in own) - min(one.start_ns for one in own)


def _ranks(lives: Sequence[Attempt], life: int) -> str:
    ranks = sorted({one.rank for one in lives if one.life == life})
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    is_whole = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    shown = f"{ranks[0]}–{ranks[-1]}" if is_whole else ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}"
