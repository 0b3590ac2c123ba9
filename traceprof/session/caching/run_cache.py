"""What is kept of the answers about one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from traceprof.cache.entries import Cache
from traceprof.cache.identity import digest, is_settled
from traceprof.session.caching.inputs import Inputs, inputs_of
from traceprof.session.options import Opening
from traceprof.values import dataclass

__all__ = ["RunCache"]


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
        found = None if kept is None else _divided(kept)
        if found is None:
            found = make()
            self.put({("texts", *what): _joined(found)})
        return found

    def _key(self, what: tuple[object, ...]) -> str:
        assert self.inputs is not None
        return digest(self.inputs.key, *map(repr, what))


_LENGTH_BYTES: Final = 8


def _joined(texts: Sequence[str]) -> bytes:
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "little") + part for part in parts)


def _divided(data: bytes) -> Sequence[str] | None:
    """Return the texts that `_joined` joined; None where it did not."""
    found, place = [], 0
    while place < len(data):
        start = place + _LENGTH_BYTES
        place = start + int.from_bytes(data[place:start], "little")
        if place > len(data):
            return None
        try:
            found.append(data[start:place].decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            return None
    return found
