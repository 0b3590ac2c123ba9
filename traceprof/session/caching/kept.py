"""Answers about one window of a run, each kept by itself: what one command found, others show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceprof.errors import NotRecordedError
from traceprof.model.results import Result
from traceprof.session.caching.codec import CodecError, decode, encode
from traceprof.session.caching.run_cache import RunCache
from traceprof.session.run import Answers

__all__ = ["KeptAnswers"]

_RESULT = "result"


class KeptAnswers:
    """What is kept about the window ``window`` of a run, and what is to be kept of it."""

    def __init__(self, cache: RunCache, window: str | None) -> None:
        self._cache = cache
        self._window = window
        self._new: dict[tuple[object, ...], Any] = {}

    def value(self, what: tuple[object, ...]) -> Any:
        """Return what was kept under the name ``what``; None where nothing is."""
        data = self._cache.get(*self._name(what))
        try:
            return None if data is None else decode(data)
        except CodecError:
            return None

    def add(self, what: tuple[object, ...], value: Any) -> None:
        """Let ``value`` be kept under the name ``what``."""
        self._new[what] = value

    def keep(self) -> None:
        """Keep what was added; what cannot be kept exactly is left out."""
        contents = {}
        for what, value in self._new.items() if self._cache.keeps else ():
            try:
                contents[self._name(what)] = encode(value)
            except CodecError:
                continue
        self._cache.put(contents)
        self._new.clear()

    def results(self, names: Sequence[str]) -> Mapping[str, Result | str]:
        """Return what is known of the analyses ``names``: the result, or why there is none."""
        found = {name: self.value((_RESULT, name)) for name in names}
        return {name: one for name, one in found.items() if one is not None}

    def joined(
        self,
        names: Sequence[str],
        known: Mapping[str, Result | str],
        more: Answers,
        *,
        strict: bool,
    ) -> Answers:
        """Return ``known`` and ``more`` in the order of ``names``; what is new is to be kept.

        Raises:
            NotRecordedError: ``strict``, and the trace lacks the data of one of them.
        """
        every = {**known, **more.results, **more.missing}
        for name in (*more.results, *more.missing):
            self.add((_RESULT, name), every[name])
        ordered = {name: every[name] for name in names}
        missing = {name: one for name, one in ordered.items() if isinstance(one, str)}
        if strict and missing:
            raise NotRecordedError(next(iter(missing.values())))
        results = {name: one for name, one in ordered.items() if not isinstance(one, str)}
        return Answers(results, missing)

    def _name(self, what: tuple[object, ...]) -> tuple[object, ...]:
        return ("window", self._window, *what)
