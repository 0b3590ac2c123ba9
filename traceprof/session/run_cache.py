"""What is kept of the answers about one run, and what they depend on: files, words, the code.

It costs a few reads of each file and imports no reader: who asks again gets the answer at once.
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
from traceprof.files import kind_of_no_file
from traceprof.session.options import Opening, tried_beside

_WILDCARDS: Final = re.compile(r"[*?\[]")
_MAX_FILES: Final = 20_000
_HEAD_BYTES: Final = 4096
_IGNORED_OPTIONS: Final = ("is_cached", "jobs", "scheduler")
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
        options = list(_option_texts(opening))
        files = list(dict.fromkeys(_files(paths)))
        if len(files) > _MAX_FILES:
            return None
        content = (part for path in files for part in (str(path), identify_file(path)))
        named = (part for path in paths for part in (str(path), str(Path(path).absolute())))
        key = digest(identify_code(), *options, "", *named, "", *content)
    except (OSError, TraceprofError, ValueError):
        return None  # whoever reads it says what is wrong
    return Inputs(key, tuple(files))


def _option_texts(opening: Opening) -> Iterator[str]:
    """Yield what the user said; of files that he named what is in them."""
    for option in fields(opening):
        value = getattr(opening, option.name)
        if option.name in _IGNORED_OPTIONS:
            continue
        yield f"{option.name}={value!r}"
        if isinstance(value, Path):
            if kind := kind_of_no_file(value):  # what is read of it here is gone
                raise OSError(f"{value}: {kind}")
            yield digest(value.read_bytes())


def _files(paths: Sequence[Path | str]) -> Iterator[Path]:
    """Yield every file that may be looked at, those that manifests name, too."""
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
            found = [path, *filter(Path.is_file, [tried_beside(path)])]
            if len(paths) > 1:  # manifests beside files that are named tell of which run they are
                found += sorted(path.parent.glob("*.json"))
        yield from found
        for file_path in found:
            yield from _files_of_manifest(file_path)


def _is_candidate(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.is_file() and not hidden


def _files_of_manifest(path: Path) -> Iterator[Path]:
    """Yield the files that ``path`` names, if it is the manifest of a run."""
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


@dataclass(frozen=True, slots=True)
class RunCache:
    """The answers about files as they were when it was made; without ``inputs`` there are none.

    Answers are kept only where the files stayed the same from then until the answer was there,
    and their times of change are old enough to tell another change.
    """

    paths: Sequence[Path | str]
    opening: Opening
    cache: Cache | None = None
    inputs: Inputs | None = None
    is_settled: bool = False

    @classmethod
    def of(cls, paths: Sequence[Path | str], opening: Opening) -> RunCache:
        """Return what is kept about the run in ``paths`` as ``opening`` reads it."""
        cache = Cache.of_user() if opening.is_cached else None
        inputs = None if cache is None else inputs_of(paths, opening)
        try:
            settled = inputs is not None and is_settled(inputs.files)
        except OSError:
            inputs, settled = None, False
        return cls(paths, opening, cache, inputs, settled)

    @property
    def keeps(self) -> bool:
        """Whether anything can be kept."""
        return self.cache is not None and self.inputs is not None and self.is_settled

    def get(self, *what: object) -> bytes | None:
        """Return what was kept under the name ``what``; None where nothing is."""
        if self.cache is None or self.inputs is None:
            return None
        return self.cache.get(self._key(what))

    def put(self, contents: Mapping[tuple[object, ...], bytes]) -> None:
        """Keep ``contents`` under their names, unless a file changed meanwhile."""
        if not contents or not self.keeps:
            return
        if inputs_of(self.paths, self.opening) == self.inputs:
            assert self.cache is not None
            self.cache.put({self._key(what): data for what, data in contents.items()})

    @contextmanager
    def file(self, what: tuple[object, ...]) -> Iterator[Path | None]:
        """Give the file that was kept under the name ``what``; None where none is."""
        if self.cache is None or self.inputs is None:
            yield None
            return
        with self.cache.file(self._key(what)) as found:
            yield found

    def put_file(self, what: tuple[object, ...], write: Callable[[Path], None]) -> None:
        """Keep what ``write`` writes under the name ``what``, unless a file changed meanwhile."""
        if self.keeps and inputs_of(self.paths, self.opening) == self.inputs:
            assert self.cache is not None
            self.cache.make_file(self._key(what), write)

    def texts(self, what: tuple[object, ...], make: Callable[[], Sequence[str]]) -> Sequence[str]:
        """Return the texts called ``what``: as they were kept, else as ``make`` makes them."""
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
