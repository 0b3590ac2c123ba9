"""One run or several: what tells that the files of which somebody speaks do not belong together.

The one decision for every command, whether files were named one by one, by a pattern or by their
folders: manifests and the environment may name the run, one rank is in a run once, and ranks ran at
the same time. What nothing numbers is a run only where it was recorded together, in one folder.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from traceprof.errors import SeveralRunsError
from traceprof.formats.runs.manifest import RunManifest, read_manifest
from traceprof.formats.runs.ranks import RankClaim, varying_number
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

_RUN_VARIABLES: Final = ("TRACEPROF_RUN", "SLURM_JOB_ID")
_MOST_APART_NS: Final = 60_000_000_000
"""Wall clocks of hosts may differ by so much: ranks that say who they are may be so far apart."""
_PROCESS: Final = re.compile(r"(?<!\d)\d{3,7}(?!\d)")
_NOT_TOGETHER: Final = "they were not recorded at the same time"
_UNNUMBERED: Final = "no file contains its rank"
_HINT: Final = "{given}{names} look like {several}, not like ranks of one run ({why}); {todo}"
_BESIDE: Final = (
    "run `traceprof view {paths}` to see them side by side, or `traceprof compare` for the "
    "differences; use --run or a manifest to treat them as one run"
)
_EACH: Final = (
    "run `traceprof view {paths}` to see them side by side, or give one of them to other "
    "commands; use --run or a manifest to treat them as one run"
)
_MIXED: Final = (
    "move the files of each run into a separate folder and give that folder; use --run or a "
    "manifest to treat them as one run"
)
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class RunPart:
    """What belongs together in any case: a file, or all that the manifests of one run list.

    ``sources`` are what one names to open it, ``names`` what the run is called that it says it
    belongs to; ``is_told``: its ranks are not only the numbers in the names of files. ``span`` is
    when it was recorded, in ns since 1970.
    """

    files: tuple[Path, ...]
    sources: tuple[Path, ...]
    names: frozenset[str] = frozenset()
    ranks: Mapping[int, Path] = field(default_factory=dict)
    is_told: bool = True
    span: TimeWindow | None = None


@dataclass(slots=True)
class _Run:
    """The parts that may be one run, and what they have in common."""

    parts: list[RunPart]
    names: frozenset[str]
    ranks: dict[int, Path]
    is_told: bool
    starts_ns: list[int]
    ends_ns: list[int]

    @classmethod
    def of(cls, part: RunPart) -> Self:
        own = cls([], frozenset(), {}, True, [], [])
        own.add(part)
        return own

    def add(self, part: RunPart) -> None:
        self.parts.append(part)
        self.names = self.names & part.names or self.names or part.names
        self.ranks |= part.ranks
        self.is_told &= part.is_told
        if part.span is not None:
            self.starts_ns.append(part.span.start_ns)
            self.ends_ns.append(part.span.end_ns)

    def why_not(self, part: RunPart) -> str:
        """Return why ``part`` does not belong to this run; "" where it may."""
        if self.names and part.names and self.names.isdisjoint(part.names):
            return f"they belong to {', '.join(sorted(self.names | part.names))}"
        if both := sorted(self.ranks.keys() & part.ranks.keys()):
            one, other = told_apart([self.ranks[both[0]], part.ranks[both[0]]])
            return f"{one} and {other} both have rank {both[0]}"
        apart_ns = None
        if part.span is not None and self.starts_ns:
            latest = max(part.span.start_ns, *self.starts_ns)
            apart_ns = latest - min(part.span.end_ns, *self.ends_ns)
        most_ns = _MOST_APART_NS if self.is_told and part.is_told else 0
        if apart_ns is not None and apart_ns > most_ns:
            return _NOT_TOGETHER
        are_numbered = self.ranks and part.ranks
        if are_numbered or not self.names.isdisjoint(part.names):
            return ""
        known, new = self.parts[0].files[0], part.files[0]
        is_beside = known.parent == new.parent
        # As `nvprof -o out.%p` names the files of one job, by processes.
        is_alike = _PROCESS.sub("#", known.name) == _PROCESS.sub("#", new.name)
        is_known = self.ranks or part.ranks or apart_ns is not None or is_alike
        return "" if is_beside and is_known else _UNNUMBERED


def told_apart(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, whole where two of them are alike."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def listed_parts(manifests: Mapping[Path, RunManifest]) -> list[RunPart]:
    """Return what manifests list, those of one job together, and those in a folder of one label."""
    found: dict[tuple[Path | None, str], list[Path]] = {}
    for path, own in manifests.items():
        place = None if own.job else path.parent
        found.setdefault((place, own.job or own.label), []).append(path)
    return [
        _listed([(path, manifests[path]) for path in sources], name)
        for (_, name), sources in found.items()
    ]


def _listed(manifests: Sequence[tuple[Path, RunManifest]], name: str) -> RunPart:
    rows = [(file, row) for _, own in manifests for file, row in own.files.items()]
    ranks: dict[int, Path] = {}
    for file, row in rows:
        own = row.get("ranks") if isinstance(row.get("ranks"), list) else [row.get("rank")]
        ranks |= {rank: file for rank in own or () if isinstance(rank, int)}
    times = [(row.get("started_ns"), row.get("ended_ns")) for _, row in rows]
    starts = [start for start, _ in times if isinstance(start, int)]
    ends = [end for _, end in times if isinstance(end, int)]
    is_timed = bool(rows) and len(starts) == len(ends) == len(rows) and min(starts) <= max(ends)
    return RunPart(
        tuple(file for file, _ in rows),
        tuple(path for path, _ in manifests),
        frozenset(filter(None, [name])),
        ranks,
        span=TimeWindow(min(starts), max(ends)) if is_timed else None,
    )


def lone_parts(
    claims: Sequence[RankClaim], files_of: Mapping[str, Sequence[str]]
) -> Iterator[RunPart]:
    """Yield the files that no manifest lists.

    ``files_of`` are the files of a process that was recorded several times, by the first of them.
    """
    of_path: dict[Path, list[RankClaim]] = {}
    beside: dict[Path, Mapping[str, frozenset[str]]] = {}
    for claim in claims:
        of_path.setdefault(claim.path, []).append(claim)
    alone = [own[0] for own in of_path.values() if len(own) == 1]
    number_of = _numbers([claim.path for claim in alone if claim.member.rank < 0])
    for path, own in of_path.items():
        told = {claim.member.rank: path for claim in own if claim.member.rank != ABSENT}
        ranks = told or ({number_of[path]: path} if path in number_of else {})
        trace = own[0].member.trace
        files = tuple(map(Path, files_of.get(str(path), [str(path)])))
        epoch_ns = trace.info.utc_epoch_ns
        span = None if epoch_ns is None else trace.span.moved(epoch_ns)
        if path.parent not in beside:
            beside[path.parent] = _names_beside(path.parent)
        names = beside[path.parent].get(path.name) or _names_in(trace)
        yield RunPart(files, files, names, ranks, is_told=bool(told), span=span)


def _numbers(paths: Sequence[Path]) -> dict[Path, int]:
    """Return which ranks the names of files tell: of all of them, else of those of a folder."""
    for groups in (
        [paths],
        [[p for p in paths if p.parent == f] for f in {p.parent for p in paths}],
    ):
        found = {path: varying_number(own)(path) for own in groups for path in own}
        if found and ABSENT not in found.values():
            return found
    return {}


def _names_beside(folder: Path) -> dict[str, frozenset[str]]:
    """Return what the manifests in a folder call the runs of its files."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(folder.glob("*.json")):
        manifest = read_manifest(path)
        if manifest is not None:
            names = frozenset(filter(None, [manifest.job or manifest.label]))
            found |= {file.name: names for file in manifest.files if file.parent == folder}
    return found


def _names_in(trace: Trace) -> frozenset[str]:
    """Return the run that the environment of a file names."""
    own = dict(zip(trace.environment["name"], trace.environment["value"], strict=True))
    for name in _RUN_VARIABLES:
        if told := own.get(name) or own.get(f"env.{name}", ""):
            return frozenset([told])
    return frozenset()


def check_one_run(parts: Sequence[RunPart], given: Sequence[Path | str]) -> None:
    """Check that ``parts``, of which the user spoke as ``given``, may be one run.

    Raises:
        SeveralRunsError: they are several; the message says why, which, and what to do.
    """
    runs: list[_Run] = []
    reasons: list[str] = []
    for part in parts:
        why = [run.why_not(part) for run in runs]
        fitting = [run for run, reason in zip(runs, why, strict=True) if not reason]
        if fitting:
            max(fitting, key=lambda run: _likeness(run, part)).add(part)
            continue
        runs.append(_Run.of(part))
        reasons += why[:1]
    if len(runs) > 1:
        raise _several(runs, reasons[0], list(map(Path, given)))


def _likeness(run: _Run, part: RunPart) -> tuple[bool, int]:
    """Return how much a part looks like those of a run by its folder, and by its name."""
    own, other = run.parts[-1].files[0], part.files[0]
    return own.parent == other.parent, len(_start([own.name, other.name]))


def _start(texts: Sequence[str]) -> str:
    """Return what all of some texts begin with."""
    first, last = min(texts), max(texts)
    alike = (n for n, both in enumerate(zip(first, last, strict=False)) if both[0] != both[1])
    return first[: next(alike, min(len(first), len(last)))]


def _several(runs: Sequence[_Run], why: str, given: Sequence[Path]) -> SeveralRunsError:
    every = [file for run in runs for part in run.parts for file in part.files]
    words = [_word(run, every, given) for run in runs]

    def place(number: int) -> tuple[int, int]:
        """As they were named, else the earlier first."""
        word = words[number]
        own = {word} if word else {file for part in runs[number].parts for file in part.files}
        named = min((i for i, one in enumerate(given) if one in own), default=len(given))
        return named, min(runs[number].starts_ns, default=0)

    order = sorted(range(len(runs)), key=place)
    known = [words[number] for number in order]
    sources = [
        (word,) if word else tuple(source for part in runs[n].parts for source in part.sources)
        for word, n in zip(known, order, strict=True)
    ]
    if all(known):
        hint = _BESIDE if len(runs) == 2 else _EACH
        todo = hint.format(paths=_cut([shlex.quote(str(word)) for word in known], " "))
    else:
        todo = _MIXED
    firsts = told_apart([word or own[0] for word, own in zip(known, sources, strict=True)])
    names = [
        first if word else f"{first} and {len(own) - 1} more files"
        for first, word, own in zip(firsts, known, sources, strict=True)
    ]
    return SeveralRunsError(
        _HINT.format(
            given=f"{given[0]}: " if len(given) == 1 else "",
            names=f"{_cut(names[:-1], ', ')} and {names[-1]}",
            several="two runs" if len(runs) == 2 else "several runs",
            why=why,
            todo=todo,
        ),
        sources,
    )


def _cut(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _MOST_NAMED
    return between.join([*texts[:_MOST_NAMED], *(["…"] if more > 0 else [])])


def _word(run: _Run, every: Sequence[Path], given: Sequence[Path]) -> Path | None:
    """Return the one word that names the files of a run: file, folder, manifest or pattern."""
    files = {file for part in run.parts for file in part.files}
    sources = [source for part in run.parts for source in part.sources]
    if len(sources) == 1 and sources[0] not in files:
        folder = sources[0].parent
        is_whole = {file for file in every if folder in file.parents} == files
        return folder if is_whole and _is_below(folder, given) else sources[0]
    folders = [Path(one) for one in dict.fromkeys(f for file in files for f in file.parents)]
    for folder in sorted(folders, key=lambda one: len(one.parts)):
        own = {file for file in every if folder in file.parents}
        if own == files and _is_below(folder, given):
            return folder
    if len(files) == 1:
        return sources[0]
    names = [file.name for file in files]
    start, end = _start(names), _start([name[::-1] for name in names])[::-1]
    (folder, *others) = {file.parent for file in files}
    pattern = f"{glob.escape(start)}*{glob.escape(end)}"
    is_exact = start and not others and set(folder.glob(pattern)) == files
    return folder / pattern if is_exact else None


def _is_below(folder: Path, given: Sequence[Path]) -> bool:
    """Return whether the user spoke of a folder, or of one around it."""
    return any(one == folder or one in folder.parents for one in given if one.is_dir())
