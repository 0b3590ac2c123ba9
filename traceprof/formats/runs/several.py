"""Decide whether files belong to one run or to several.

All commands use this decision, for files, patterns, and folders. Manifests and environments may
name the run, a run has each rank once, and its ranks ran at the same time. Files without rank
numbers are one run only if they were recorded together, in one folder.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceprof.errors import SeveralRunsError
from traceprof.formats.runs.manifest import RunManifest, read_manifest
from traceprof.formats.runs.ranks import RankClaim, varying_number
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

_RUN_VARIABLES: Final = ("TRACEPROF_RUN", "SLURM_JOB_ID")
_MAX_GAP_NS: Final = 60_000_000_000
"""Largest gap between ranks with certain numbers: wall clocks of hosts may differ by this."""
_PROCESS: Final = re.compile(r"(?<!\d)\d{3,7}(?!\d)")
_NOT_TOGETHER: Final = "they were not recorded at the same time"
_UNNUMBERED: Final = "no file contains its rank"
_MESSAGE: Final = "{given}{names} look like {several}, not like ranks of one run ({why}); {todo}"
_TODO_FOR_TWO: Final = (
    "run `traceprof view {paths}` to see them side by side, or `traceprof compare` for the "
    "differences; use --run or a manifest to treat them as one run"
)
_TODO_FOR_MANY: Final = (
    "run `traceprof view {paths}` to see them side by side, or give one of them to other "
    "commands; use --run or a manifest to treat them as one run"
)
_TODO_FOR_MIXED: Final = (
    "move the files of each run into a separate folder and give that folder; use --run or a "
    "manifest to treat them as one run"
)
_MAX_LISTED_RUNS: Final = 8


@dataclass(frozen=True, slots=True)
class RunPart:
    """Files that belong together in any case: one file, or all files in the manifests of one run.

    ``sources`` are the paths to open it. ``names`` are the names of its run. ``has_certain_ranks``
    is False if ranks are only numbers in file names. ``span`` is the time of the recording, in ns
    since 1970.
    """

    files: tuple[Path, ...]
    sources: tuple[Path, ...]
    names: frozenset[str] = frozenset()
    ranks: Mapping[int, Path] = field(default_factory=dict)
    has_certain_ranks: bool = True
    span: TimeWindow | None = None


@dataclass(slots=True)
class _Run:
    """Parts that may be one run, and their common names, ranks, and times."""

    parts: list[RunPart] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    ranks: dict[int, Path] = field(default_factory=dict)
    has_certain_ranks: bool = True
    starts_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)

    def add(self, part: RunPart) -> None:
        """Add a part to the run."""
        self.parts.append(part)
        self.names = self.names & part.names or self.names or part.names
        self.ranks |= part.ranks
        self.has_certain_ranks &= part.has_certain_ranks
        if part.span is not None:
            self.starts_ns.append(part.span.start_ns)
            self.ends_ns.append(part.span.end_ns)

    def why_not(self, part: RunPart) -> str:
        """Return why ``part`` does not belong to this run; "" if it may."""
        if self.names and part.names and self.names.isdisjoint(part.names):
            return f"they belong to {', '.join(sorted(self.names | part.names))}"
        if common_ranks := sorted(self.ranks.keys() & part.ranks.keys()):
            first, second = distinct_names(
                [self.ranks[common_ranks[0]], part.ranks[common_ranks[0]]]
            )
            return f"{first} and {second} both have rank {common_ranks[0]}"
        gap_ns = None
        if part.span is not None and self.starts_ns:
            latest = max(part.span.start_ns, *self.starts_ns)
            gap_ns = latest - min(part.span.end_ns, *self.ends_ns)
        max_gap_ns = _MAX_GAP_NS if self.has_certain_ranks and part.has_certain_ranks else 0
        if gap_ns is not None and gap_ns > max_gap_ns:
            return _NOT_TOGETHER
        if (self.ranks and part.ranks) or not self.names.isdisjoint(part.names):
            return ""
        known_file, new_file = self.parts[0].files[0], part.files[0]
        is_same_folder = known_file.parent == new_file.parent
        # `nvprof -o out.%p` writes the files of one job with process ids in their names.
        has_similar_name = _PROCESS.sub("#", known_file.name) == _PROCESS.sub("#", new_file.name)
        is_known = self.ranks or part.ranks or gap_ns is not None or has_similar_name
        return "" if is_same_folder and is_known else _UNNUMBERED


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of files, or their full paths if two of the names are equal."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def listed_parts(manifests: Mapping[Path, RunManifest]) -> list[RunPart]:
    """Return the parts that manifests list: one for each job, or for each folder and label."""
    found: dict[tuple[Path | None, str], list[Path]] = {}
    for path, manifest in manifests.items():
        place = None if manifest.job else path.parent
        found.setdefault((place, manifest.job or manifest.label), []).append(path)
    return [
        _listed([(path, manifests[path]) for path in sources], name)
        for (_, name), sources in found.items()
    ]


def _listed(manifests: Sequence[tuple[Path, RunManifest]], name: str) -> RunPart:
    """Return the part that the manifests of one run list."""
    rows = [(file, row) for _, manifest in manifests for file, row in manifest.files.items()]
    ranks: dict[int, Path] = {}
    for file, row in rows:
        listed = row.get("ranks") if isinstance(row.get("ranks"), list) else [row.get("rank")]
        ranks |= {rank: file for rank in listed or () if isinstance(rank, int)}
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


def unlisted_parts(
    claims: Sequence[RankClaim], files_of: Mapping[str, Sequence[str]]
) -> Iterator[RunPart]:
    """Yield the files that no manifest lists, one part for each file.

    ``files_of`` has the files of each process that was recorded several times, by the first file.
    """
    of_path: dict[Path, list[RankClaim]] = {}
    names_by_folder: dict[Path, Mapping[str, frozenset[str]]] = {}
    for claim in claims:
        of_path.setdefault(claim.path, []).append(claim)
    single_claims = [file_claims[0] for file_claims in of_path.values() if len(file_claims) == 1]
    number_of = _numbers_in_names([claim.path for claim in single_claims if claim.member.rank < 0])
    for path, file_claims in of_path.items():
        certain_ranks = {
            claim.member.rank: path for claim in file_claims if claim.member.rank != ABSENT
        }
        ranks = certain_ranks or ({number_of[path]: path} if path in number_of else {})
        trace = file_claims[0].member.trace
        files = tuple(map(Path, files_of.get(str(path), [str(path)])))
        epoch_ns = trace.info.utc_epoch_ns
        span = None if epoch_ns is None else trace.span.moved(epoch_ns)
        if path.parent not in names_by_folder:
            names_by_folder[path.parent] = _names_in_manifests(path.parent)
        names = names_by_folder[path.parent].get(path.name) or _name_in_environment(trace)
        yield RunPart(files, files, names, ranks, has_certain_ranks=bool(certain_ranks), span=span)


def _numbers_in_names(paths: Sequence[Path]) -> dict[Path, int]:
    """Return the ranks in file names: from all names together, otherwise folder by folder."""
    for groups in (
        [paths],
        [[file for file in paths if file.parent == f] for f in {file.parent for file in paths}],
    ):
        found = {path: varying_number(group)(path) for group in groups for path in group}
        if found and ABSENT not in found.values():
            return found
    return {}


def _names_in_manifests(folder: Path) -> dict[str, frozenset[str]]:
    """Return file name → names of its run, from the manifests in a folder."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(folder.glob("*.json")):
        manifest = read_manifest(path)
        if manifest is not None:
            names = frozenset(filter(None, [manifest.job or manifest.label]))
            found |= {file.name: names for file in manifest.files if file.parent == folder}
    return found


def _name_in_environment(trace: Trace) -> frozenset[str]:
    """Return the name of the run in the environment of a trace."""
    environment = dict(zip(trace.environment["name"], trace.environment["value"], strict=True))
    for name in _RUN_VARIABLES:
        if run_name := environment.get(name) or environment.get(f"env.{name}", ""):
            return frozenset([run_name])
    return frozenset()


def check_one_run(parts: Sequence[RunPart], given: Sequence[Path | str]) -> None:
    """Check that ``parts`` may be one run; ``given`` are the paths that the user named.

    Raises:
        SeveralRunsError: they are several runs; the message says why, which, and what to do.
    """
    runs: list[_Run] = []
    reasons: list[str] = []
    for part in parts:
        why = [run.why_not(part) for run in runs]
        fitting = [run for run, reason in zip(runs, why, strict=True) if not reason]
        if fitting:
            max(fitting, key=lambda run: _similarity(run, part)).add(part)
            continue
        runs.append(_Run())
        runs[-1].add(part)
        reasons += why[:1]
    if len(runs) > 1:
        raise _several_runs_error(runs, reasons[0], list(map(Path, given)))


def _similarity(run: _Run, part: RunPart) -> tuple[bool, int]:
    """Return whether ``part`` is in the folder of the run, and how long their names agree."""
    last_file, new_file = run.parts[-1].files[0], part.files[0]
    return last_file.parent == new_file.parent, len(_common_prefix([last_file.name, new_file.name]))


def _common_prefix(texts: Sequence[str]) -> str:
    """Return the common prefix of all texts."""
    first, last = min(texts), max(texts)
    differences = (n for n, both in enumerate(zip(first, last, strict=False)) if both[0] != both[1])
    return first[: next(differences, min(len(first), len(last)))]


def _several_runs_error(runs: Sequence[_Run], why: str, given: Sequence[Path]) -> SeveralRunsError:
    """Return the error that lists the runs; ``why`` is the reason that separates them."""
    all_files = [file for run in runs for part in run.parts for file in part.files]
    run_paths = [_path_of_run(run, all_files, given) for run in runs]

    def place(number: int) -> tuple[int, int]:
        """Return the sort key of a run: its position in ``given``, then its start."""
        path, files = run_paths[number], {f for part in runs[number].parts for f in part.files}
        names = {path} if path else files
        position = min((i for i, name in enumerate(given) if name in names), default=len(given))
        return position, min(runs[number].starts_ns, default=0)

    order = sorted(range(len(runs)), key=place)
    paths = [run_paths[number] for number in order]
    sources = [
        (path,) if path else tuple(source for part in runs[n].parts for source in part.sources)
        for path, n in zip(paths, order, strict=True)
    ]
    if all(paths):
        hint = _TODO_FOR_TWO if len(runs) == 2 else _TODO_FOR_MANY
        todo = hint.format(paths=_join_first([shlex.quote(str(path)) for path in paths], " "))
    else:
        todo = _TODO_FOR_MIXED
    firsts = distinct_names([run_sources[0] for run_sources in sources])
    names = [
        first if path else f"{first} and {len(run_sources) - 1} more files"
        for first, path, run_sources in zip(firsts, paths, sources, strict=True)
    ]
    return SeveralRunsError(
        _MESSAGE.format(
            given=f"{given[0]}: " if len(given) == 1 else "",
            names=f"{_join_first(names[:-1], ', ')} and {names[-1]}",
            several="two runs" if len(runs) == 2 else "several runs",
            why=why,
            todo=todo,
        ),
        sources,
    )


def _join_first(texts: Sequence[str], between: str) -> str:
    """Return the first texts, joined, with an ellipsis if there are more."""
    n_omitted = len(texts) - _MAX_LISTED_RUNS
    return between.join([*texts[:_MAX_LISTED_RUNS], *(["…"] if n_omitted > 0 else [])])


def _path_of_run(run: _Run, all_files: Sequence[Path], given: Sequence[Path]) -> Path | None:
    """Return one path for all files of a run: file, folder, manifest, or pattern.

    None: no path stands for exactly these files.
    """
    files = {file for part in run.parts for file in part.files}
    sources = [source for part in run.parts for source in part.sources]
    if len(sources) == 1 and sources[0] not in files:
        folder = sources[0].parent
        is_whole = {file for file in all_files if folder in file.parents} == files
        return folder if is_whole and _is_below(folder, given) else sources[0]
    folders = [Path(path) for path in dict.fromkeys(f for file in files for f in file.parents)]
    for folder in sorted(folders, key=lambda path: len(path.parts)):
        inside = {file for file in all_files if folder in file.parents}
        if inside == files and _is_below(folder, given):
            return folder
    if len(files) == 1:
        return sources[0]
    names = [file.name for file in files]
    start, end = _common_prefix(names), _common_prefix([name[::-1] for name in names])[::-1]
    (folder, *others) = {file.parent for file in files}
    pattern = f"{glob.escape(start)}*{glob.escape(end)}"
    is_exact = start and not others and set(folder.glob(pattern)) == files
    return folder / pattern if is_exact else None


def _is_below(folder: Path, given: Sequence[Path]) -> bool:
    """Return whether the user named ``folder`` or a folder that contains it."""
    return any(path == folder or path in folder.parents for path in given if path.is_dir())
