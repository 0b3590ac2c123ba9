"""The thread that takes samples at regular intervals."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.processes import start_thread
from traceprof.recording.clock import now_ns
from traceprof.recording.sampling.gpus import open_gpus
from traceprof.recording.sampling.host import Reading, open_psutil, open_sockets

_FILE: Final = "samples.jsonl"
_WRITE_PERIOD_S: Final = 1.0

_MAX_SAMPLES: Final = 500_000  # about 60 MB, several hours at the default rate
Read = Callable[[], Reading]


class Sample(NamedTuple):
    """One value. ``time_ns`` is in ns since 1970; the name of ``metric`` contains the unit."""

    time_ns: int
    source: str
    metric: str
    value: float


@dataclass(slots=True)
class Sampler:
    """Call each of ``reads`` (period in seconds, function) periodically until stopped.

    A read that fails once is not called again; ``notes`` lists the failures. At ``max_samples``
    every second sample of each series is dropped, and the series continue at half the rate.
    ``file`` gets the samples every second and at the end, in case this process dies.
    """

    reads: Sequence[tuple[float, Read]]
    clock: Callable[[], int] = now_ns
    max_samples: int = _MAX_SAMPLES
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    file: Path | None = None
    _n_written: int = 0
    _write_at: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _stride: int = 1
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self) -> None:
        """Take samples until `stop` is called."""
        due = [(0.0, period_s, read) for period_s, read in self.reads]
        started = time.monotonic()
        while due and not self._stop.is_set():
            now = time.monotonic() - started
            due = [self._take(now, *item) for item in due]
            due = [item for item in due if item[0] >= 0]
            if now >= self._write_at:
                self._write_at = now + _WRITE_PERIOD_S
                self._write()
            next_due = min((item[0] for item in due), default=now)
            self._stop.wait(max(0.0, next_due - (time.monotonic() - started)))
        self._write()

    def _write(self) -> None:
        """Append the new samples to the file. Stop using a file that is not writable."""
        if self.file is None:
            return
        new = self.samples[self._n_written :]
        lines = "".join(f"{json.dumps(sample)}\n" for sample in new)
        try:
            if self._n_written:
                with self.file.open("a") as file:
                    file.write(lines)
            else:
                temporary = self.file.with_suffix(".part")
                temporary.write_text(lines)
                temporary.replace(self.file)
        except OSError:
            self.file = None
        self._n_written += len(new)

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    def _take(
        self, now_s: float, due_s: float, period_s: float, read: Read
    ) -> tuple[float, float, Read]:
        """Call a read if it is due; return (next due time in s, period, read).

        The due time is negative for a read that failed and is not called again.
        """
        if now_s < due_s:
            return due_s, period_s, read
        try:
            time_ns = self.clock()
            for values in read():
                self._keep(Sample(time_ns, *values))
        except (OSError, ValueError, RuntimeError) as error:
            self.notes.append(f"sampling of {getattr(read, 'name', 'counters')} stopped: {error}")
            return -1.0, period_s, read
        return max(due_s + period_s, now_s), period_s, read

    def _keep(self, sample: Sample) -> None:
        """Add a sample, unless thinning drops it."""
        series = (sample.source, sample.metric)
        if self._counts[series] % self._stride == 0 or _is_gap(sample):
            self.samples.append(sample)
        self._counts[series] += 1
        if len(self.samples) >= self.max_samples:
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop every second sample of each series; keep gaps."""
        self._stride *= 2
        counts: Counter[tuple[str, str]] = Counter()
        kept = []
        for sample in self.samples:
            series = (sample.source, sample.metric)
            if counts[series] % 2 == 0 or _is_gap(sample):
                kept.append(sample)
            counts[series] += 1
        self.samples[:] = kept
        self._n_written = 0  # rewrite the whole file


def _is_gap(sample: Sample) -> bool:
    """Return whether the value is unknown (NaN). Thinning keeps gaps."""
    return math.isnan(sample.value)


@contextmanager
def sampling(folder: Path) -> Iterator[Sampler]:
    """Sample the machine while the block runs. ``folder`` contains the records of processes."""
    reads = [*open_psutil(folder), *open_sockets(folder), *open_gpus()]
    sampler = Sampler(reads, file=folder / _FILE)
    thread = start_thread(sampler.run)
    if thread is None:
        sampler.notes.append("no machine samples, because traceprof cannot start another thread")
    try:
        yield sampler
    finally:
        sampler.stop()
        if thread is not None:
            thread.join(5)


def read_samples(folder: Path) -> list[Sample]:
    """Return the samples that an interrupted recorder left in its work folder."""
    samples = []
    path = folder / _FILE
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        try:
            time_ns, source, metric, value = json.loads(line)
            samples.append(Sample(int(time_ns), str(source), str(metric), float(value)))
        except (ValueError, TypeError):
            continue  # an incomplete line
    return samples
