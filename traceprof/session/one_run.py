"""Whether files that somebody named one by one can be the ranks of one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import SeveralRunsError
from traceprof.formats.runs.manifest import read_manifest
from traceprof.model.ranks import RankTrace, RunFiles

__all__ = ["check_one_run"]

_GUESSED: Final = ("order of files", "order of devices")
"""Where ranks are from that nothing in the files or their names tells."""
_RUN_VARIABLES: Final = ("TRACEPROF_RUN", "SLURM_JOB_ID")
_HINT: Final = (
    "{names} look like {several}, not like ranks of one ({why}): `traceprof view {paths}` shows "
    "them side by side, `traceprof compare` what differs; a manifest makes them one run"
)


def check_one_run(paths: Sequence[Path | str], run: RunFiles) -> None:
    """Check that ``paths``, where all are files named one by one, are ranks of one run.

    Directories, patterns and manifests say themselves that their files belong together.

    Raises:
        SeveralRunsError: they look like several runs; the message says why and what to do.
    """
    files = list(dict.fromkeys(map(Path, paths)))
    if len(files) < 2 or not all(map(_is_trace, files)):
        return
    why = _why_not(files, run)
    if not why:
        return
    names = [path.name for path in files]
    if len(set(names)) < len(names):
        names = list(map(str, files))
    raise SeveralRunsError(
        _HINT.format(
            names=", ".join(names[:-1]) + f" and {names[-1]}",
            several="two runs" if len(files) == 2 else "several runs",
            why=why,
            paths=shlex.join(map(str, files)),
        )
    )


def _is_trace(path: Path) -> bool:
    return path.is_file() and read_manifest(path) is None


def _why_not(files: Sequence[Path], run: RunFiles) -> str:
    """Return why ``files`` are no single run; "" where they may be one."""
    labels = {label for path in files for label in _labels(path)} | _told_in(run)
    if len(labels) > 1:
        return f"they belong to {', '.join(sorted(labels))}"
    missing = [path for path in files if str(path) not in {m.trace.info.path for m in run}]
    if missing:
        return f"{missing[0].name} has the same rank as another file"
    if not labels and all(member.known_from in _GUESSED for member in run):
        return "no file says its rank"
    return "" if _may_overlap(run) else "they were not recorded at the same time"


def _labels(path: Path) -> set[str]:
    """Return what the manifests beside a file call the run that they say it belongs to."""
    manifests = (read_manifest(other) for other in sorted(path.parent.glob("*.json")))
    return {found.label for found in manifests if found and found.label and path in found.files}


def _told_in(run: RunFiles) -> set[str]:
    environments = [_environment(member) for member in run]
    for name in _RUN_VARIABLES:
        told = {one.get(name) or one.get(f"env.{name}", "") for one in environments}
        if "" not in told:
            return told
    return set()


def _environment(member: RankTrace) -> Mapping[str, str]:
    frame = member.trace.environment
    return dict(zip(frame["name"], frame["value"], strict=True))


def _may_overlap(run: RunFiles) -> bool:
    """Return whether all ranks ran at some common time, as far as wall clocks tell."""
    latest_start, first_end = None, None
    for member in run:
        epoch_ns, span = member.trace.info.utc_epoch_ns, member.trace.span
        if epoch_ns is None:
            return True
        start, end = epoch_ns + span.start_ns, epoch_ns + span.end_ns
        latest_start = start if latest_start is None else max(start, latest_start)
        first_end = end if first_end is None else min(end, first_end)
    return latest_start is None or first_end is None or latest_start <= first_end
