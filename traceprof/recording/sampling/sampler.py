"""The thread that takes samples at a steady pace."""

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

_MAX_SAMPLES: Final = 500_000  # some 60 MB, and hours at the usual pace
Read = Callable[[], Reading]


class Sample(NamedTuple):
    """One value; ``time_ns`` counts from 1970, ``metric`` names the unit."""

    time_ns: int
    source: str
    metric: str
    value: float


@dataclass(slots=True)
class Sampler:
    """Calls each of ``reads`` every so many seconds until it is stopped.

    A read that fails once is not called again; ``notes`` says which and why. At
    ``max_samples`` every second sample of each series is dropped, and from then on. ``file`` gets
    the samples every second and at the end, for the case that this process does not live to give
    them.
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
        """Append what is new to the file; one that cannot be written is given up."""
        if self.file is None:
            return
        new = self.samples[self._n_written :]
        lines = "".join(f"{json.dumps(sample)}\n" for sample in new)
        try:
            if self._n_written:
                with self.file.open("a") as file:
                    file.write(lines)
            else:
                beside = self.file.with_suffix(".part")
                beside.write_text(lines)
                beside.replace(self.file)
        except OSError:
            self.file = None
        self._n_written += len(new)

    def stop(self) -> None:
        """Have `run` return soon."""
        self._stop.set()

    def _take(
        self, now_s: float, due_s: float, period_s: float, read: Read
    ) -> tuple[float, float, Read]:
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
        series = (sample.source, sample.metric)
        if self._counts[series] % self._stride == 0 or _is_gap(sample):
            self.samples.append(sample)
        self._counts[series] += 1
        if len(self.samples) >= self.max_samples:
            self._thin_out()

    def _thin_out(self) -> None:
        self._stride *= 2
        places: Counter[tuple[str, str]] = Counter()
        kept = []
        for sample in self.samples:
            series = (sample.source, sample.metric)
            if places[series] % 2 == 0 or _is_gap(sample):
                kept.append(sample)
            places[series] += 1
        self.samples[:] = kept
        self._n_written = 0  # the file is written anew


def _is_gap(sample: Sample) -> bool:
    """Return whether the value is not known at that time, which the others must not hide."""
    return math.isnan(sample.value)


@contextmanager
def sampling(folder: Path) -> Iterator[Sampler]:
    """Sample what this machine has while the block runs; ``folder`` has the processes' records."""
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
    """Return the samples that a recorder which was broken off left in its work folder."""
    samples = []
    path = folder / _FILE
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        try:
            time_ns, source, metric, value = json.loads(line)
            samples.append(Sample(int(time_ns), str(source), str(metric), float(value)))
        except (ValueError, TypeError):
            continue  # a line that was not finished
    return samples
