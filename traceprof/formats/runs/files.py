"""Open a run: a directory, a pattern, several files, or a manifest that lists them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from traceprof.errors import TraceError
from traceprof.formats import name_kind_in, open_trace, outline, recognized
from traceprof.formats.contract import Outline, ReadOptions, outline_of, trace_of_outline
from traceprof.formats.runs import ranks
from traceprof.formats.runs.cycles import joined_outlines
from traceprof.formats.runs.manifest import (
    RunManifest,
    attempts_in,
    chosen_attempt,
    is_work_folder,
    read_manifest,
    warning_on_attempts,
    warning_on_unlisted,
)
from traceprof.formats.runs.several import check_one_run, listed_parts, unlisted_parts
from traceprof.formats.shared.files import TABLE_FILES, examine, is_packed_database
from traceprof.model.ranks import Attempt, RankTrace, RunFiles, measure_each
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

if TYPE_CHECKING:
    from traceprof.workers.remote import Pool

_TraceAndWork: TypeAlias = tuple[Trace, Callable[[], ranks.Work]]
"""The trace of a file, and a function that returns the device work of the whole file."""
_TRACE_SUFFIXES: Final = frozenset(
    {".sqlite", ".nvprof", ".nsys-rep", ".qdrep", ".qdstrm", ".nvvp", ".json", ".gz"}
)
"""Suffixes of traces, readable or not; other files, such as logs, are no traces."""
_MAX_SHOWN_CHARACTERS: Final = 200
"""The length limit of a file name in an error."""
_WILDCARDS: Final = re.compile(r"[*?\[]")


@dataclass(slots=True)
class _RunSearch:
    """The files of a run, and what its manifests say about them.

    ``entries`` has the manifest entry of each listed file. ``searched``: the files were found by a
    search, so that some of them may be missing. ``ignored`` are warnings on what it left out.
    """

    label: str = ""
    files: list[Path] = field(default_factory=list)
    manifests: dict[Path, RunManifest] = field(default_factory=dict)
    entries: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    world_size: int = ABSENT
    searched: bool = False
    ignored: list[str] = field(default_factory=list)
    agents: list[Mapping[str, Any]] = field(default_factory=list)
    attempts: tuple[Attempt, ...] = ()
    attempt: int = 0


PoolOf: TypeAlias = "Callable[[Sequence[Path]], Pool | None]"
"""Chooses the workers that hold the traces in these files; None: this process holds them."""


def open_run(
    paths: Sequence[Path | str],
    options: ReadOptions | None = None,
    attempt: int | None = None,
    *,
    choose_pool: PoolOf = lambda _: None,
    allow_missing: bool = False,
    is_one: bool = False,
) -> RunFiles:
    """Return the run in ``paths``: files, directories, patterns, manifests, of any format.

    The rank of a file comes from the first of these sources that has it: the manifest; the trace (a
    recording of traceprof, ``distributedInfo``, MPI); NCCL and the environment in the trace; the
    file name; the order of the files, with a warning.

    A manifest is a JSON file: see `traceprof.formats.runs.manifest`. Processes and environment are
    always read, also if ``options`` exclude them, because they contain the ranks. If ranks were
    started more than once, the run is one attempt: ``attempt``, or the longest one by default.
    ``is_one``: do not check that the files belong to one run. ``allow_missing``: ignore unreadable
    files.

    Raises:
        TraceError: no trace is found, or one that was named cannot be read.
        SeveralRunsError: the files are of several runs.
        UsageError: there is no such attempt.
    """
    options = options or ReadOptions()
    if options.tables is not None:
        options = replace(options, tables=options.tables | {"processes", "environment"})

    def read(files: Sequence[Path]) -> Iterator[_TraceAndWork | TraceError]:
        for path, trace in zip(files, _traces(files, options, choose_pool(files)), strict=True):
            if isinstance(trace, TraceError):
                yield trace
            else:
                yield trace, partial(_work_in, path, trace, options)

    return _open(paths, read, attempt, allow_missing=allow_missing, is_one=is_one)


def _traces(
    files: Sequence[Path], options: ReadOptions, pool: Pool | None
) -> Iterable[Trace | TraceError]:
    """Yield the trace in each file, or the error; ``pool`` holds the traces, or this process."""
    if pool is None:
        yield from (_trace_or_error(path, options) for path in files)
        return
    for found in pool.read(open_trace, [(path, options) for path in files]):
        if isinstance(found, Exception) and not isinstance(found, TraceError):
            raise found
        yield found


def _trace_or_error(path: Path, options: ReadOptions) -> Trace | TraceError:
    """Return the trace in ``path``, or the error if it cannot be read."""
    try:
        return open_trace(path, options)
    except TraceError as error:
        return error


def attempts_of_run(
    paths: Sequence[Path | str],
) -> tuple[tuple[Attempt, ...], Sequence[Mapping[str, Any]], int]:
    """Return all attempts of all ranks of a run, the events of agents, and the chosen attempt.

    The first two are empty if no manifest has them.

    Raises:
        TraceError: a manifest is damaged.
    """
    found = _search(paths)
    return (
        attempts_in(found.entries),
        found.agents,
        chosen_attempt(attempts_in(found.entries), None),
    )


def files_of(paths: Sequence[Path | str]) -> list[Path]:
    """Return the trace files in ``paths``: files, directories, patterns, manifests.

    Raises:
        TraceError: a manifest is damaged, a directory is an unfinished recording, or a file
            name is invalid.
    """
    return _search(paths).files


def outline_run(
    paths: Sequence[Path | str],
    attempt: int | None = None,
    *,
    allow_missing: bool = False,
    is_one: bool = False,
) -> tuple[RunFiles, Mapping[str, Outline]]:
    """Return the run in ``paths`` without its events, and the outlines of its files by path.

    Raises:
        TraceError: no trace is found, or one that was named cannot be read.
        SeveralRunsError: the files are of several runs.
        UsageError: there is no such attempt.
    """
    outlines: dict[str, Outline] = {}

    def read(files: Sequence[Path]) -> Iterator[_TraceAndWork | TraceError]:
        for path in files:
            try:
                found = outlines[str(path)] = outline(path)
            except TraceError as error:
                yield error
            else:
                yield trace_of_outline(found), partial(getattr, found, "device_rows")

    cycles: dict[str, list[str]] = {}
    run = _open(paths, read, attempt, allow_missing=allow_missing, is_one=is_one, cycles=cycles)
    joined = {member.trace.info.path: member.trace for member in run.members}
    for first, names in cycles.items():
        outlines[first] = joined_outlines([outlines[name] for name in names], joined[first])
    return run, outlines


def _open(
    paths: Sequence[Path | str],
    read: Callable[[Sequence[Path]], Iterator[_TraceAndWork | TraceError]],
    attempt: int | None,
    *,
    allow_missing: bool,
    is_one: bool,
    cycles: dict[str, list[str]] | None = None,
) -> RunFiles:
    """Return the run in ``paths``; ``read`` yields the content of each file, or the error.

    ``cycles`` gets the files of each process that was recorded several times, by the first file.
    """
    found = _search(paths)
    listed = listed_parts(found.manifests)
    if not is_one:
        check_one_run(listed, paths)
    warnings = [*_choose_attempt(found, attempt), *found.ignored]
    claims = _claims(found, read, warnings, allow_missing=allow_missing)
    if not claims:
        why = next(iter(warnings), "") or name_kind_in(paths)
        why = f" ({why})" if why else ""
        raise TraceError(f"{' '.join(map(str, paths))}: no traces found{why}")
    number_of = ranks.varying_number(found.files)
    if len(claims) > 1:
        claims, files_of, cycle_warnings = ranks.with_cycles(claims)
        warnings += cycle_warnings
        if cycles is not None:
            cycles |= files_of
        if not is_one:
            unlisted = [claim for claim in claims if claim.path not in found.entries]
            check_one_run([*listed, *unlisted_parts(unlisted, files_of)], paths)
    members, rank_warnings = ranks.numbered(claims, number_of)
    return _run(found, members, claims, [*warnings, *rank_warnings])


def _claims(
    found: _RunSearch,
    read: Callable[[Sequence[Path]], Iterator[_TraceAndWork | TraceError]],
    warnings: list[str],
    *,
    allow_missing: bool,
) -> list[ranks.RankClaim]:
    """Return the ranks in the files; a warning about each ignored file is added to ``warnings``."""
    claims: list[ranks.RankClaim] = []
    for path, outcome in zip(found.files, read(found.files), strict=True):
        if isinstance(outcome, TraceError):
            # A manifest may list the file of a rank that died before it wrote the file.
            if not (allow_missing or (found.searched and not _is_file(path))):
                raise TraceError(f"{outcome}; use --allow-missing to ignore this file")
            warnings.append(f"traceprof ignored a file: {outcome}")
            continue
        trace, work = outcome
        claims += ranks.claims_of(trace, path, found.entries.get(path, {}), work)
    return claims


def _choose_attempt(found: _RunSearch, wanted: int | None) -> list[str]:
    """Reduce ``found`` to the files of one attempt; return a warning if there are several."""
    found.attempts = attempts_in(found.entries)
    found.attempt = chosen_attempt(found.attempts, wanted)
    warning = warning_on_attempts(found.attempts, found.attempt, is_wanted=wanted is not None)
    if not warning:
        return []
    chosen = [attempt for attempt in found.attempts if attempt.number == found.attempt]
    kept = {attempt.path for attempt in chosen}
    known = {attempt.path for attempt in found.attempts}
    found.files = [path for path in found.files if str(path) in kept or str(path) not in known]
    found.world_size = max(attempt.world_size for attempt in chosen)
    return [warning]


def _work_in(path: Path, trace: Trace, options: ReadOptions) -> ranks.Work:
    """Return the device work of a whole file, of which ``options`` may have read only a part."""
    return measure_each([trace], _work_of, path, options)[0]


def _work_of(trace: Trace, path: Path, options: ReadOptions) -> ranks.Work:
    """Return the device work of a file, from the outline of the file unless all of it was read."""
    is_whole = all(map(options.reads_whole, DEVICE_TABLES))
    return (outline_of(trace) if is_whole else outline(path)).device_rows


def is_run(paths: Sequence[Path | str]) -> bool:
    """Return whether ``paths`` are a run: anything but a single trace file."""
    if len(paths) != 1:
        return True
    path = _path_of(paths[0])
    if path.is_file():
        return read_manifest(path) is not None
    if path.is_dir():
        return not _is_trace(path)
    return _WILDCARDS.search(str(path)) is not None


def _path_of(given: Path | str) -> Path:
    """Return ``given`` as a path.

    Raises:
        TraceError: no file can have such a name, or a folder in it must not be read.
    """
    path = Path(given)
    try:
        path.lstat()
    except (OSError, ValueError) as error:  # too long, a NUL, no Unicode, or missing
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            shown = str(given)[:_MAX_SHOWN_CHARACTERS]
            raise TraceError(f"{shown!a} is not a valid file name: {error.args[-1]}") from error
        if error.errno == errno.EACCES:
            raise TraceError(f"{given}: {error.strerror}") from error
    return path


def _is_file(path: Path) -> bool:
    """Return whether ``path`` is a file; an invalid file name is none."""
    try:
        return path.is_file()
    except OSError:  # an invalid file name
        return False


def _is_trace(folder: Path) -> bool:
    """Return whether a folder is one trace: a folder of tables."""
    try:
        return recognized(examine(folder)) is not None
    except TraceError:
        return False


def _run(
    found: _RunSearch, members: list[RankTrace], claims: list[ranks.RankClaim], warnings: list[str]
) -> RunFiles:
    """Return the run of ``members``, with warnings about its world size and missing ranks."""
    world_sizes = found.world_size, *(claim.world_size for claim in claims)
    world_size = max(
        (size for size in world_sizes if size <= ranks.LARGEST_RANK + 1), default=ABSENT
    )
    if world_size < max(world_sizes):
        warnings.append(f"traceprof ignored an implausible world size of {max(world_sizes)} ranks")
    run = RunFiles(found.label, tuple(members), world_size, tuple(warnings))
    missing = run.missing_ranks
    if missing:
        names = ", ".join(map(str, missing[:20])) + (" …" if len(missing) > 20 else "")
        n_ranks = len(set(run.ranks) - {ABSENT}) + len(missing)
        warnings.append(f"no trace of {len(missing)} of the {n_ranks} ranks: {names}")
    return replace(run, warnings=tuple(warnings), attempts=found.attempts, attempt=found.attempt)


def _search(paths: Sequence[Path | str]) -> _RunSearch:
    """Return the files in ``paths``, in natural order.

    Raises:
        TraceError: a manifest is damaged, a folder is an unfinished recording, or a file name is
            invalid.
    """
    found = _RunSearch()
    for given in paths:
        path = _path_of(given)
        if path.is_dir() and _is_trace(path):
            found.files.append(path)
        elif path.is_dir():
            found.searched = True
            _add_directory(found, path)
        elif not path.exists() and _WILDCARDS.search(str(given)):
            found.searched = True
            root = Path(path.anchor)
            matches = root.glob(str(path.relative_to(root)))
            found.files += _select_traces(
                [match for match in matches if match.is_file() or _is_trace(match)]
            )
        elif not _add_manifest(found, path):
            found.files.append(path)
        found.label = found.label or (path.name if path.is_dir() else path.parent.name)
    found.files = sorted(dict.fromkeys(found.files), key=_natural_order)
    return found


def _add_directory(found: _RunSearch, folder: Path) -> None:
    """Add the traces in a folder and its subfolders, except in hidden files and folders.

    Raises:
        TraceError: the folder is an unfinished recording.
    """
    if is_work_folder(folder):
        raise TraceError(
            f"{folder}: contains an unfinished or interrupted recording; run "
            f"`traceprof recover {folder}` to write its trace"
        )
    is_hidden = re.compile(r"/\.").search
    paths = [path for path in folder.rglob("*") if not is_hidden(f"/{path.relative_to(folder)}")]
    files = [path for path in paths if _is_file(path)]
    locked = [path for path in paths if path.is_dir() and not os.access(path, os.R_OK | os.X_OK)]
    found.ignored += [f"traceprof ignored {path}: Permission denied" for path in locked]
    stored = {path.parent for path in files if path.suffix in TABLE_FILES}
    traces = {parent for parent in stored if _is_trace(parent)}
    files = [*sorted(traces), *(path for path in files if path.parent not in traces)]
    manifests = [path for path in files if path.suffix == ".json" and _add_manifest(found, path)]
    # Other files in the folders of a manifest are no ranks; another run has its own folder.
    manifest_folders = {path.parent for path in (*manifests, *found.entries)}
    found.files += _select_traces([path for path in files if path.parent not in manifest_folders])
    beside = [path for path in files if path.parent in manifest_folders]
    others = {path for manifest in found.manifests.values() for path in manifest.others}
    is_trace = {*_select_traces(beside)} - {*manifests, *found.entries, *others}
    found.ignored += warning_on_unlisted(sorted(is_trace, key=_natural_order))


def _select_traces(files: Sequence[Path]) -> list[Path]:
    """Return the trace files in ``files``.

    A report whose export is in the same folder is omitted, because it is the same recording. So is
    a file that repeats files of another format in its folder.
    """
    needs_export: dict[Path, bool] = {}
    formats, repeats = set[tuple[Path, str]](), dict[Path, str]()
    for path in files:
        try:
            candidate = examine(path)
        except TraceError:
            if path.suffix in _TRACE_SUFFIXES:
                needs_export[path] = False  # an unreadable trace: its error is reported later
            continue
        known = recognized(candidate)
        if known is not None:
            needs_export[path] = known.export is not None
            formats.add((path.parent, known.name))
            repeats[path] = known.repeats
        elif is_packed_database(candidate):
            needs_export[path] = False
    plain = [path for path, is_report in needs_export.items() if not is_report]
    exported = {path.with_suffix("") for path in plain if path.suffix != ".json"}  # not of nsys
    return [
        path
        for path, is_report in needs_export.items()
        if (not is_report or path.with_suffix("") not in exported)
        and (path.parent, repeats.get(path, "")) not in formats
    ]


def _add_manifest(found: _RunSearch, path: Path) -> bool:
    """Add the files in the manifest ``path``; return False if it is no manifest."""
    manifest = read_manifest(path)
    if manifest is None:
        return False
    found.searched = True  # the file of a rank that died may be missing
    found.files += manifest.files
    found.entries |= manifest.files
    found.label = found.label or manifest.label
    found.manifests[path] = manifest
    found.agents += manifest.agents
    found.world_size = max(found.world_size, manifest.world_size)
    return True


def _natural_order(path: Path) -> tuple[Any, ...]:
    """Return a key that sorts rank2 before rank10."""
    parts = re.split(r"(\d+)", str(path))
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
