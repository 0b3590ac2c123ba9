"""The cache of answers about one run, and the key of its inputs: files, options, and code.

The key needs a few reads of each file and imports no reader, so a repeated question is answered at
once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.cache.entries import Cache
from traceprof.cache.identity import digest, identify_code, identify_file, is_settled
from traceprof.errors import TraceprofError
from traceprof.files import special_file_kind
from traceprof.session.options import Opening, tried_savings_path

_WILDCARDS: Final = re.compile(r"[*?\[]")
_MAX_FILES: Final = 20_000
_HEAD_BYTES: Final = 4096
_IGNORED_OPTIONS: Final = ("is_cached", "jobs", "scheduler")
"""Options that change no answer."""
_MANIFEST: Final = b'"traceprof'


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files that answers depend on, and a key for everything that answers depend on."""

    key: str
    files: tuple[Path, ...]


def inputs_of(paths: Sequence[Path | str], opening: Opening) -> Inputs | None:
    """Return the inputs of answers about ``paths``, or None if they cannot be determined."""
    try:
        options = list(_option_texts(opening))
        files = list(dict.fromkeys(_files(paths)))
        if len(files) > _MAX_FILES:
            return None
        content = (part for path in files for part in (str(path), identify_file(path)))
        named = (part for path in paths for part in (str(path), str(Path(path).absolute())))
        key = digest(identify_code(), *options, "", *named, "", *content)
    except (OSError, TraceprofError, ValueError):
        return None  # the reader of the file reports the error
    return Inputs(key, tuple(files))


def _option_texts(opening: Opening) -> Iterator[str]:
    """Yield the user's options as texts, and the digests of the files that they name."""
    for option in fields(opening):
        value = getattr(opening, option.name)
        if option.name in _IGNORED_OPTIONS:
            continue
        yield f"{option.name}={value!r}"
        if isinstance(value, Path):
            if kind := special_file_kind(value):  # a pipe could be read only once
                raise OSError(f"{value}: {kind}")
            yield digest(value.read_bytes())


def _files(paths: Sequence[Path | str]) -> Iterator[Path]:
    """Yield every file that may be read, including the files in manifests."""
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(
                file_path for file_path in path.rglob("*") if _is_candidate(file_path, path)
            )
        elif not path.exists() and _WILDCARDS.search(str(given)):
            root = Path(path.anchor)
            matches = sorted(root.glob(str(path.relative_to(root))))
            found = [file for file_path in matches for file in _files_at(file_path)]
        else:
            found = [path, *filter(Path.is_file, [tried_savings_path(path)])]
            if len(paths) > 1:  # manifests next to named files identify their run
                found += sorted(path.parent.glob("*.json"))
        yield from found
        for file_path in found:
            yield from _files_of_manifest(file_path)


def _is_candidate(path: Path, folder: Path) -> bool:
    """Return whether ``path`` is a file that is not hidden, relative to ``folder``."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.is_file() and not hidden


def _files_of_manifest(path: Path) -> Iterator[Path]:
    """Yield the files that ``path`` names if it is the manifest of a run."""
    if kind := special_file_kind(path):
        raise OSError(f"{path}: {kind}")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.lstrip().startswith(b"{") and _MANIFEST in head:
        manifest = import_module("traceprof.formats.runs.manifest").read_manifest(path)
        if manifest is not None:
            yield from (file for member in manifest.files for file in _files_at(member))


def _files_at(path: Path) -> list[Path]:
    """Return the file ``path``, or the files in the folder ``path`` (a folder of tables)."""
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.is_file())
    return [path] if path.is_file() else []


@dataclass(frozen=True, slots=True)
class RunCache:
    """The cached answers about files in their state at creation; without ``inputs``, it is empty.

    An answer is stored only if the files did not change while it was computed. The modification
    times must also be old enough to detect another change.
    """

    paths: Sequence[Path | str]
    opening: Opening
    cache: Cache | None = None
    inputs: Inputs | None = None
    is_settled: bool = False

    @classmethod
    def of(cls, paths: Sequence[Path | str], opening: Opening) -> RunCache:
        """Return the cached answers about the run in ``paths`` with the options ``opening``."""
        cache = Cache.of_user() if opening.is_cached else None
        inputs = None if cache is None else inputs_of(paths, opening)
        try:
            settled = inputs is not None and is_settled(inputs.files)
        except OSError:
            inputs, settled = None, False
        return cls(paths, opening, cache, inputs, settled)

    @property
    def keeps(self) -> bool:
        """Whether answers can be stored."""
        return self.cache is not None and self.inputs is not None and self.is_settled

    def get(self, *what: object) -> bytes | None:
        """Return the stored bytes with the key ``what``, or None."""
        if self.cache is None or self.inputs is None:
            return None
        return self.cache.get(self._key(what))

    def put(self, contents: Mapping[tuple[object, ...], bytes]) -> None:
        """Store ``contents`` by their keys, unless a file has changed since creation."""
        if not contents or not self.keeps:
            return
        if inputs_of(self.paths, self.opening) == self.inputs:
            assert self.cache is not None
            self.cache.put({self._key(what): data for what, data in contents.items()})

    @contextmanager
    def file(self, what: tuple[object, ...]) -> Iterator[Path | None]:
        """Yield the stored file with the key ``what``, or None."""
        if self.cache is None or self.inputs is None:
            yield None
            return
        with self.cache.file(self._key(what)) as found:
            yield found

    def put_file(self, what: tuple[object, ...], write: Callable[[Path], None]) -> None:
        """Store the file that ``write`` writes under ``what``, unless a file has changed."""
        if self.keeps and inputs_of(self.paths, self.opening) == self.inputs:
            assert self.cache is not None
            self.cache.make_file(self._key(what), write)

    def texts(self, what: tuple[object, ...], make: Callable[[], Sequence[str]]) -> Sequence[str]:
        """Return the stored texts with the key ``what``, or make and store them."""
        kept = self.get("texts", *what)
        if kept is not None:
            texts: list[str] = json.loads(kept.decode("utf-8", "surrogatepass"))
            return texts
        found = list(make())
        data = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        self.put({("texts", *what): data})
        return found

    def _key(self, what: tuple[object, ...]) -> str:
        assert self.inputs is not None
        return digest(self.inputs.key, *map(repr, what))
