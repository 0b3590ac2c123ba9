"""Compare and align the clocks of ranks by the ends of shared collectives.

A collective ends on all its ranks at the same time, so differences of its ends are differences of
clocks. The median difference is the offset. A robust line through the differences over time is the
drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.matches import Matches, find_matches
from traceprof.measures.collectives.members import Member
from traceprof.measures.facts import fact
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Int64Array
from traceprof.model.placement import UNTIED_CLOCKS, retime
from traceprof.model.ranks import Ranks, change_each
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace

_FloatArray = npt.NDArray[np.float64]

ENDS_TOGETHER: Final = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "barrier"),
    "send_recv",
)
"""Operations that end on all their ranks at the same time."""
BROADCAST: Final = "broadcast"
"""The root may end earlier by the time of the last chunk. It aligns clocks if nothing else does."""

_MIN_LATENESS_FACTOR: Final = 2.0  # times the difference of the ends
MAX_RESIDUAL_NS: Final = 1_000_000
"""If ends differ by more than this after alignment, collectives were matched wrongly."""
_MIN_SHARED_COLLECTIVES: Final = 3  # a single one fits any clock
UNRELIABLE_CLOCKS: Final = (
    "the ends of shared collectives differ by more than 1 ms after clock alignment, so some "
    "collectives are matched wrongly"
)
"""Why values that need a common clock of all ranks are not reported."""
_MIN_DRIFT_SPAN_NS: Final = 1_000_000_000  # jitter hides real drift in less time
_ROWS_PER_PIECE: Final = 1 << 14
_MAX_LISTED_RANKS: Final = 8
_MIN_FIT_POINTS: Final = 8
_MAX_FIT_POINTS: Final = 400
_MIN_SIGNIFICANCE: Final = 3.0  # times the uncertainty of a median


@dataclass(frozen=True, slots=True)
class Trend:
    """``level + slope · x``."""

    level: float
    slope: float = 0.0

    def at(self, x: _FloatArray) -> _FloatArray:
        """Return the value of the line at each ``x``."""
        return np.asarray(self.level + self.slope * x, np.float64)


def fit_line(x: _FloatArray, y: _FloatArray) -> Trend:
    """Return the line with the median slope between all pairs of points (Theil–Sen).

    Up to 29% of the points may be outliers. The slope is 0 with fewer than 8 points. It is also 0
    if its effect over the range of ``x`` is less than three times the uncertainty of a median,
    since it cannot be distinguished from scatter then.
    """
    flat = Trend(float(np.median(y)))
    if len(x) < _MIN_FIT_POINTS:
        return flat
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MAX_FIT_POINTS)).astype(np.int64))
    left, right = np.triu_indices(len(kept), 1)
    run = (x[kept][right] - x[kept][left]).astype(np.float64)
    rise = y[kept][right] - y[kept][left]
    if not run.any():
        return flat
    slope = float(np.median(rise[run != 0] / run[run != 0]))
    level = float(np.median(y - slope * x))
    scatter = float(np.median(np.abs(y - level - slope * x)))
    uncertainty = 1.4826 * scatter * 2 / np.sqrt(len(x))
    if abs(slope) * float(np.ptp(x)) <= _MIN_SIGNIFICANCE * uncertainty:
        return flat
    return Trend(level, slope)


def spread_of_ends_ns(table: Table) -> int:
    """Return the sum of the end spreads (latest minus earliest end) of the collectives, in ns.

    ``table`` is the table of `Matches` or a part of it. With one clock the spread is a few
    microseconds per collective. A larger spread means that the clocks differ.
    """
    return int(table["spread_ns"][table["op"].isin(ENDS_TOGETHER)].sum())


def is_beyond_clocks(late_ns: float, end_skew_ns: float) -> bool:
    """Return whether lateness is too large to come from clocks that differ by ``end_skew_ns``."""
    return late_ns > _MIN_LATENESS_FACTOR * end_skew_ns


def describe_clocks(who: str, late_ns: float, end_skew_ns: float) -> Note:
    """Return a note on lateness that different clocks can explain."""
    return Note.of(
        "{who} appears {late:ns} late in total, but the ends of the same collectives differ by "
        "{ends:ns}. Use --align collectives to align the clocks.",
        who=who,
        late=late_ns,
        ends=end_skew_ns,
    )


@dataclass(frozen=True, slots=True)
class RankClock:
    """The clock of a rank compared with the clock of the first rank.

    ``offset_ns``: how far the clock is ahead in the middle of the shared collectives.
    ``drift_ppm``: growth of the offset; 0 if it cannot be distinguished from jitter.
    ``residual_ns``: median distance of the ends from the fitted line.
    ``collectives_count``: number of collectives in the fit.
    ``device``: distinguishes the ranks of one process; None otherwise.

    The values are None if the rank shares too few collectives with the others. If the ends do not
    fit any line, only residual_ns is known.
    """

    rank: int | None
    offset_ns: float | None
    drift_ppm: float | None
    residual_ns: float | None
    collectives_count: int
    host: str
    process: int
    device: int | None = None

    @property
    def is_untied(self) -> bool:
        """Whether the rank shares too few collectives to compare its clock."""
        return self.offset_ns is None and self.residual_ns is None


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clocks of all ranks, and the correction of each process tied to the first clock."""

    clocks: tuple[RankClock, ...]
    corrections: dict[int, ClockCorrection]
    notes: tuple[Note, ...] = ()

    @property
    def has_unreliable_clock(self) -> bool:
        """Whether the collectives of some rank do not fit any clock."""
        return any(
            clock.offset_ns is None and clock.residual_ns is not None for clock in self.clocks
        )


@dataclass(frozen=True, slots=True)
class _Tie:
    """The correction of one clock to the first clock, its residual, and its sample count."""

    correction: ClockCorrection
    residual_ns: float
    count: int

    @property
    def is_good(self) -> bool:
        """Whether the ends fit the correction. Otherwise some collectives were matched wrongly."""
        return self.residual_ns <= MAX_RESIDUAL_NS


@fact
def find_alignment(ranks: Ranks) -> Alignment:
    """Compare the clocks of the ranks over the whole recording.

    For ranks that were aligned before, the result describes the clocks before that alignment.
    """
    matches = find_matches(ranks)
    members = matches.members
    clock_of = clocks_of(members)
    clocks_once = list(dict.fromkeys(clock_of))
    ties = _tie_clocks(clocks_once, _median_ends(matches, clocks_once, clock_of, ENDS_TOGETHER))
    if len(ties) < len(clocks_once):
        ops = (*ENDS_TOGETHER, BROADCAST)
        ties = _tie_clocks(clocks_once, _median_ends(matches, clocks_once, clock_of, ops))
    clocks = tuple(
        _make_rank_clock(
            member, ties.get(clock), ranks.clocks.get(member.process, ClockCorrection())
        )
        for member, clock in zip(members, clock_of, strict=True)
    )
    corrections = {
        member.process: ties[clock].correction
        for member, clock in zip(members, clock_of, strict=True)
        if clock in ties and ties[clock].is_good
    }
    return Alignment(clocks, corrections, tuple(_notes(clocks)))


def why_no_common_clock(ranks: Ranks) -> str:
    """Return why times of different ranks cannot be compared; "" if they can."""
    if find_alignment(ranks).has_unreliable_clock:
        return UNRELIABLE_CLOCKS
    return UNTIED_CLOCKS if UNTIED_CLOCKS in ranks.info.warnings else ""


def align_clocks(ranks: Ranks, alignment: Alignment | None = None) -> Ranks:
    """Return the whole recording with all ranks on the clock of the first rank.

    ``alignment`` is the result of `find_alignment`, if known already. Ranks that share no
    collective with the others keep their clock; a warning lists them.
    """
    alignment = alignment or find_alignment(ranks)
    whole = ranks.whole.parts
    moved = change_each(
        whole, retime, [(_corrections_of(part, alignment.corrections),) for part in whole]
    )
    span = TimeWindow(
        min(part.span.start_ns for part in moved), max(part.span.end_ns for part in moved)
    )
    parts = tuple(change_each(moved, _with_span, [(span,)] * len(moved)))
    # The warning about untied clocks is outdated, unless an untied rank shares a few collectives:
    # its times would be compared. `_warn_of_untied` lists all untied ranks.
    untied = [clock.process for clock in alignment.clocks if clock.is_untied]
    is_compared = bool(np.isin(find_matches(ranks).shared["process"], untied).any())
    kept = tuple(text for text in ranks.info.warnings if text != UNTIED_CLOCKS)
    info = replace(ranks.info, warnings=kept) if not is_compared else ranks.info
    info = info if len(alignment.corrections) > 1 else ranks.info
    aligned = replace(ranks.whole, parts=parts, info=info, clocks=alignment.corrections)
    return aligned.with_warnings(*_warn_of_untied(alignment.clocks))


def _corrections_of(
    trace: Trace, corrections: Mapping[int, ClockCorrection]
) -> Mapping[int, ClockCorrection]:
    """Return the corrections for the processes of a trace; all if its processes are unknown."""
    return {
        process: corrections[process]
        for process in trace.recordings or corrections
        if process in corrections
    }


def _with_span(trace: Trace, span: TimeWindow) -> Trace:
    return replace(trace, span=span)


def clocks_of(members: tuple[Member, ...]) -> list[str]:
    """Return the clock of each member: its host if all hosts are known, else its process."""
    if all(member.host for member in members):
        return [member.host for member in members]
    return [f"process {member.process}" for member in members]


def _median_ends(
    matches: Matches, clocks: list[str], clock_of: list[str], ops: Sequence[str]
) -> _FloatArray:
    """Return the median end of each match on each clock, shape (matches, clocks); NaN: no end.

    Only the operations ``ops`` count.
    """
    rows = matches.shared
    rows = rows.take(rows["op"].isin(ops))
    place = {clock: i for i, clock in enumerate(clocks)}
    clock = np.array([place[name] for name in clock_of], np.int64)[rows["member"]]
    groups = groups_of(rows["match"], clock)
    distinct, match = np.unique(groups.values[0], return_inverse=True)
    found = np.full((len(distinct), len(clocks)), np.nan)
    found[match, groups.values[1]] = groups.quantiles(rows["end_ns"])
    return found


def _tie_clocks(clocks: list[str], ends_by_clock: _FloatArray) -> dict[str, _Tie]:
    """Return the tie of each clock to the first clock, directly or through other clocks.

    ``ends_by_clock`` has the shape (matches, clocks), as `_median_ends` returns it. Each clock is
    tied to the tied clock with which it shares the most collectives (Prim's algorithm for a
    spanning tree). Of equal candidates the earlier clock wins. No clock is tied through a tie that
    is not good. Clocks that share too few collectives are not tied.
    """
    if not clocks:
        return {}
    is_known = ~np.isnan(ends_by_clock)
    # Only clocks with collectives can be tied. This avoids pairs of thousands of other processes.
    members = np.flatnonzero(is_known.any(axis=0))
    ties = {clocks[0]: _Tie(ClockCorrection(), 0.0, int(is_known[:, 0].sum()))}
    if not len(members) or members[0] != 0:
        return ties
    counts = _count_shared(is_known[:, members])
    corrected = ends_by_clock[:, members]
    most_shared, nearest = counts[0].copy(), np.zeros(len(members), np.int64)
    is_open = np.arange(len(members)) > 0
    while True:
        most_shared[~is_open] = 0
        tied, added = _find_closest(most_shared, nearest)
        if most_shared[added] < _MIN_SHARED_COLLECTIVES:
            return ties
        ends = ends_by_clock[:, members[added]]
        is_shared = is_known[:, members[tied]] & is_known[:, members[added]]
        tie = _fit_clock(ends[is_shared], ends[is_shared] - corrected[is_shared, tied])
        ties[clocks[members[added]]] = tie
        is_open[added] = False
        if not tie.is_good:
            continue
        corrected[:, added] = ends - tie.correction.error_ns(ends)
        is_nearer = (counts[added] > most_shared) | (
            (counts[added] == most_shared) & (added < nearest)
        )
        most_shared[is_nearer], nearest[is_nearer] = counts[added][is_nearer], added


def _count_shared(is_known: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return how many rows each pair of columns shares, as a float matrix.

    The counts are integers; floats make the matrix product fast.
    """
    n_rows, n_columns = is_known.shape
    counts = np.zeros((n_columns, n_columns))
    for first in range(0, n_rows, _ROWS_PER_PIECE):
        rows = is_known[first : first + _ROWS_PER_PIECE].astype(np.float64)
        counts += rows.T @ rows
    return counts


def _find_closest(most_shared: npt.NDArray[np.float64], nearest: Int64Array) -> tuple[int, int]:
    """Return (tied, open) column indices that share the most rows; the first pair of equals."""
    candidates = np.flatnonzero(most_shared == most_shared.max())
    added = candidates[np.argmin(nearest[candidates])]
    return int(nearest[added]), int(added)


def _fit_clock(instants: npt.NDArray[np.float64], ahead: npt.NDArray[np.float64]) -> _Tie:
    """Fit the difference ``ahead`` (ns) of a clock to the first clock at its ``instants`` (ns)."""
    at_ns = int(np.median(instants))
    is_long = float(np.ptp(instants)) >= _MIN_DRIFT_SPAN_NS
    line = fit_line(instants - at_ns, ahead) if is_long else Trend(float(np.median(ahead)))
    residual = float(np.median(np.abs(ahead - line.at(instants - at_ns))))
    return _Tie(ClockCorrection(line.level, line.slope, at_ns), residual, len(instants))


def _make_rank_clock(member: Member, tie: _Tie | None, before: ClockCorrection) -> RankClock:
    """Return the clock of a member; ``before`` is the correction that was already applied to it."""
    clock = RankClock(
        member.known_rank,
        offset_ns=None,
        drift_ppm=None,
        residual_ns=None,
        collectives_count=0,
        host=member.host,
        process=member.process,
        device=member.known_device,
    )
    if tie is None:
        return clock
    if not tie.is_good:
        return replace(clock, residual_ns=tie.residual_ns, collectives_count=tie.count)
    return replace(
        clock,
        offset_ns=tie.correction.offset_ns + before.offset_ns,
        drift_ppm=(tie.correction.drift_ratio + before.drift_ratio) * 1e6,
        residual_ns=tie.residual_ns,
        collectives_count=tie.count,
    )


def _notes(clocks: tuple[RankClock, ...]) -> Iterator[Note]:
    if len(clocks) < 2:
        yield Note("The trace contains only one rank, so there are no clocks to align.")
        return
    yield from map(Note, _warn_of_untied(clocks))
    known = [clock for clock in clocks[1:] if clock.residual_ns is not None]
    # Ranks that agree to the ns share a clock and were not moved.
    tied = [clock for clock in known if clock.offset_ns is not None]
    if any(clock.offset_ns or clock.residual_ns for clock in tied):
        text = (
            "After clock alignment, the ends of {n:count} shared collectives agree within "
            "{residual:ns}."
        )
        yield Note.of(text, **_worst_fit(tied))
    if unaligned := [clock for clock in known if clock.offset_ns is None]:
        text = (
            "traceprof did not align the clocks of {who}. The ends of {n:count} shared collectives "
            "differ by {residual:ns} after alignment, so some are matched wrongly."
        )
        yield Note.of(text, who=_list_ranks(unaligned), **_worst_fit(unaligned))


def _worst_fit(clocks: Sequence[RankClock]) -> dict[str, int | float]:
    """Return the values of a note: the largest residual and the smallest number of collectives."""
    return {
        "n": min(clock.collectives_count for clock in clocks),
        "residual": max(clock.residual_ns or 0.0 for clock in clocks),
    }


def _warn_of_untied(clocks: tuple[RankClock, ...]) -> Iterator[str]:
    """Yield a warning that lists the ranks that are not tied; nothing if all are tied."""
    if untied := [clock for clock in clocks if clock.is_untied]:
        few = (
            f"they share fewer than {_MIN_SHARED_COLLECTIVES} collectives that end at the same "
            "time on all ranks"
        )
        yield f"traceprof cannot align the clocks of {_list_ranks(untied)}: {few}"


def _list_ranks(clocks: Sequence[RankClock]) -> str:
    """Return the ranks (processes if a rank is unknown) as text for a sentence."""
    named = [str(clock.process if clock.rank is None else clock.rank) for clock in clocks]
    what = "process" if any(clock.rank is None for clock in clocks) else "rank"
    what += ("es" if what == "process" else "s") if len(named) > 1 else ""
    more = len(named) - _MAX_LISTED_RANKS
    return f"{what} {', '.join(named[:_MAX_LISTED_RANKS])}" + (
        f" and {more} more" if more > 0 else ""
    )


SPEC: Final = ResultSpec.of("""
    table clocks: one row per rank: its clock compared with the clock of the first rank
    same rank: rank
    same offset_ns: how far this clock is ahead, in the middle of the recording
    same drift_ppm [number]: drift of the offset, in parts per million
    same residual_ns: median distance between the ends of collectives and the fitted line
    same collectives_count: number of shared collectives in the fit
    same host: host of the rank
    key process: process of the rank
    key device: GPU of the rank, if a process uses several GPUs
    """)
_TABLE: Final = SPEC.tables[0]


def measure_alignment(ranks: Ranks) -> Result:
    """Return the comparison of the clocks over the whole recording."""
    alignment = find_alignment(ranks)
    tables = {"clocks": _TABLE.of_rows([asdict(clock) for clock in alignment.clocks])}
    return Result("alignment", SPEC, tables, notes=alignment.notes)


ALIGNMENT: Final = Analysis(
    "alignment",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes"),
    of_ranks=measure_alignment,
)
