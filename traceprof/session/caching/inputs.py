"""What an answer depends on: the files of a run as they are now, what was said of them, the code.

It costs a few reads of each file and imports no reader: who asks again gets the answer at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.cache.identity import digest, identify_code, identify_file
from traceprof.errors import TraceprofError
from traceprof.files import kind_of_no_file
from traceprof.session.options import Opening
from traceprof.values import dataclass

__all__ = ["Inputs", "inputs_of"]

_WILDCARDS: Final = re.compile(r"[*?\[]")
_MOST_FILES: Final = 20_000
_HEAD_BYTES: Final = 4096
_SAY_NOTHING: Final = ("is_cached", "jobs", "scheduler")
"""What changes no answer."""
_MANIFEST: Final = b'"traceprof'


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files that were looked at, and a name for all that an answer about them depends on."""

    key: str
    files: tuple[Path, ...]


def inputs_of(paths: Sequence[Path | str], opening: Opening) -> Inputs | None:
    """Return what answers about ``paths`` depend on; None where that cannot be told."""
    try:
        said = list(_said(opening))
        files = list(dict.fromkeys(_files(paths)))
        if len(files) > _MOST_FILES:
            return None
        content = (part for path in files for part in (str(path), identify_file(path)))
        named = (part for path in paths for part in (str(path), str(Path(path).absolute())))
        key = digest(identify_code(), *said, "", *named, "", *content)
    except (OSError, TraceprofError, ValueError):
        return None  # whoever reads it says what is wrong
    return Inputs(key, tuple(files))


def _said(opening: Opening) -> Iterator[str]:
    """Yield what the user said; of files that he named what is in them."""
    for one in fields(opening):
        value = getattr(opening, one.name)
        if one.name in _SAY_NOTHING:
            continue
        yield f"{one.name}={value!r}"
        if isinstance(value, Path):
            yield digest(value.read_bytes())


def _files(paths: Sequence[Path | str]) -> Iterator[Path]:
    """Yield every file that may be looked at, those that manifests name, too."""
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(one for one in path.rglob("*") if _is_candidate(one, path))
        elif not path.exists() and _WILDCARDS.search(str(given)):
            root = Path(path.anchor)
            matches = sorted(root.glob(str(path.relative_to(root))))
            found = [file for one in matches for file in _files_at(one)]
        else:
            found = [path]
            if len(paths) > 1:  # manifests beside files that are named tell of which run they are
                found += sorted(path.parent.glob("*.json"))
        yield from found
        for one in found:
            yield from _listed(one)


def _is_candidate(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.is_file() and not hidden


def _listed(path: Path) -> Iterator[Path]:
    """Yield the files that ``path`` names, if it is the manifest of a run.

    Raises:
        OSError: it is something whose reading may never end.
    """
    if kind := kind_of_no_file(path):
        raise OSError(f"{path}: {kind}")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.lstrip().startswith(b"{") and _MANIFEST in head:
        manifest = import_module("traceprof.formats.runs.manifest").read_manifest(path)
        if manifest is not None:
            yield from (file for one in manifest.files for file in _files_at(one))


def _files_at(path: Path) -> list[Path]:
    """Return the file ``path``, or those in it: a folder of tables is a trace, too."""
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.is_file())
    return [path] if path.is_file() else []
