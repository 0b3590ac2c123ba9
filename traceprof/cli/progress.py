"""How far a command is that takes its time, and its end when somebody is tired of it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Progress", "ended_by_signals"]

_SILENT_S = 1.0


class Progress:
    """Says how far it is, how fast, and how long it takes yet."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = self.said = time.monotonic()
        self.before = 0

    def __call__(self, done: int, total: int, unit: str) -> None:
        """Say it, on a terminal once a second, elsewhere less often; ``total`` 0: not known."""
        from traceprof.cli.output import message
        from traceprof.units import NS_PER_S, format_bytes, format_count, format_duration

        now = time.monotonic()
        if done < self.before:
            self.started = now
        self.before = done
        if now - self.said < (_SILENT_S if sys.stderr.isatty() else 10 * _SILENT_S) or not done:
            return
        self.said = now
        rate = done / max(now - self.started, 1e-9)
        speed = format_bytes(rate) if unit == "bytes" else f"{format_count(round(rate))} {unit}"
        if not total:
            message(f"{self.what}: {format_count(done)} {unit}, {speed}/s")
            return
        left = format_duration(max(0, total - done) / rate * NS_PER_S)
        message(f"{self.what}: {100 * done // total} %, {speed}/s, {left} left")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end what is being done as Ctrl-C does: so that nothing half stays behind."""

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
