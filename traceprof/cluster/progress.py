"""How far the work on many ranks is: one line on standard error, where somebody looks at it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO, TypeAlias

from traceprof.model.progress import PROGRESS
from traceprof.units import format_duration

__all__ = ["Progress", "Report", "no_progress"]

Report: TypeAlias = Callable[[int, int], None]
"""Is told how many ranks are done, and of how many."""

_FIRST_AFTER_S: Final = 1.0
_EVERY_S: Final = 0.2
_WIDTH: Final = 79


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


class Progress:
    """A line that says how many ranks are done, how many a second, and how long the rest takes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun_s = self._shown_s = 0.0
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` ranks are done; the first of them may take a while."""
        if not self._stream.isatty():
            return
        now_s = time.monotonic()
        if done == 0:
            PROGRESS.is_told = True
            self._begun_s = self._shown_s = now_s
        if done == total:
            self._clear()
        elif now_s - self._begun_s > _FIRST_AFTER_S and now_s - self._shown_s > _EVERY_S:
            self._shown_s = now_s
            self._show(done, total, now_s - self._begun_s)

    def _show(self, done: int, total: int, taken_s: float) -> None:
        text = f"traceprof: {done} of {total} ranks"
        if done:
            left = format_duration(round((total - done) * taken_s / done * 1e9))
            text += f", {done / taken_s:.3g} a second, {left} left"
        self._stream.write(f"\r{text:{_WIDTH}}")
        self._stream.flush()
        self._is_shown = True

    def _clear(self) -> None:
        if self._is_shown:
            self._stream.write(f"\r{'':{_WIDTH}}\r")
            self._stream.flush()
        self._is_shown = False
