"""The use of this host: CPU, memory, and GPUs now and by minute, and metrics for Prometheus."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceprofError
from traceprof.files import write_file
from traceprof.recording.live.status import LiveRun, Process
from traceprof.recording.sampling.gpus import open_gpus

_NODE_S: Final = 2.0
_METRICS_S: Final = 15.0
_N_STEPS: Final = 20
_MAX_HISTORY_BYTES: Final = 16 << 20
_KEPT: Final = (
    *("sm_clock_mhz", "power_watts", "temperature_celsius", "utilization_percent"),
    *("throttled_by_heat", "throttled_by_power"),
)
"""The metrics of GPUs whose means by minute are kept."""
_FAMILIES: Final = {
    "step_seconds": "Median of the last 20 steps.",
    "steps_total": "Steps since the process began.",
    "samples_total": "Samples since the process began.",
    "memory_bytes": "Resident memory of the process.",
    "device_memory_bytes": "GPU memory in use by the allocator of PyTorch.",
    "running": "1 if the process runs, 0 if it ended, was killed, or is lost.",
    "seconds_since_step": "Time since the last step ended.",
}


class NodeStatus:
    """Writes the use of CPU, memory, and GPUs of this host to a file every 2 s."""

    def __init__(self, live: Path) -> None:
        self._path = live / f"node.{socket.gethostname()}.json"
        self._reads = open_gpus()
        self._next_s = 0.0
        self._cpu = _cpu_times()
        self._minutes = live / f"history.{socket.gethostname()}.jsonl"
        self._minute = 0
        self._values: dict[str, list[float]] = {}

    def write(self) -> None:
        """Write the file if it is due; an error does not disturb the run."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _NODE_S
        gpus: dict[str, dict[str, float]] = {}
        for _, read in self._reads:
            with suppress(OSError, ValueError, RuntimeError):
                for source, metric, value in read():
                    gpus.setdefault(source, {})[metric] = value
        before, self._cpu = self._cpu, _cpu_times()
        total = self._cpu[1] - before[1]
        document = {
            "host": socket.gethostname(),
            "time_s": time.time(),
            "cpu_ratio": (self._cpu[0] - before[0]) / total if total else None,
            "n_cpus": os.cpu_count(),
            **_memory(),
            "gpus": {name: values for name, values in gpus.items() if name.startswith("gpu:")},
        }
        with suppress(OSError, TraceprofError):
            write_file(self._path, json.dumps(document), force=True)
        with suppress(OSError):
            self._add_to_minute(document)

    def _add_to_minute(self, document: Mapping[str, Any]) -> None:
        """Add values to their minute; append the last minute to the file when it is over.

        Raises:
            OSError: the file cannot be written. The minute is lost.
        """
        minute = int(document["time_s"] // 60)
        values, before = self._values, self._minute
        if minute != before:
            self._minute, self._values = minute, {}
            if values:
                means = {name: sum(known) / len(known) for name, known in values.items()}
                line = {"minute": before, "host": document["host"], "values": means}
                _append(self._minutes, json.dumps(line) + "\n")
        found = {"cpu_ratio": document["cpu_ratio"]}
        for gpu, metrics in document["gpus"].items():
            found |= {f"{gpu} {name}": metrics[name] for name in _KEPT if name in metrics}
        for name, value in found.items():
            if value is not None:
                self._values.setdefault(name, []).append(value)


class MetricsFile:
    """Writes the metrics of the ranks of this host for Prometheus, every 15 s.

    The file ``traceprof.HOST.prom`` is for the textfile collector of node_exporter.
    """

    def __init__(self, live: Path) -> None:
        self._path = live / f"traceprof.{socket.gethostname()}.prom"
        self._next_s = 0.0

    def write(self, run: LiveRun) -> None:
        """Write the file if it is due; an error does not disturb the run."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _METRICS_S
        with suppress(OSError, TraceprofError):
            processes = [one for one in run.refresh() if one.header.host == socket.gethostname()]
            write_file(self._path, metrics_text(processes), force=True)


def metrics_text(processes: Sequence[Process]) -> str:
    """Return the metrics of ranks in the text format of Prometheus; unknown values are absent."""
    families: dict[str, list[str]] = {name: [] for name in _FAMILIES}
    for process in {process.header.rank: process for process in processes}.values():
        header = process.header
        rank = "" if header.rank is None else header.rank
        labels = f'{{rank="{rank}",pid="{header.pid}"}}'
        durations = process.column("duration_ns")[-_N_STEPS:]
        values = {
            "step_seconds": float(np.median(durations)) / 1e9 if len(durations) else None,
            "steps_total": header.n_steps,
            "samples_total": header.n_samples,
            "memory_bytes": header.memory_bytes,
            "device_memory_bytes": header.device_bytes[0] if header.device_bytes else None,
            "running": int(process.state == "running"),
            "seconds_since_step": process.since_step_ns / 1e9,
        }
        for name, value in values.items():
            if value is not None:
                families[name].append(f"traceprof_{name}{labels} {value:.9g}")
    lines = []
    for name, samples in families.items():
        if samples:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP traceprof_{name} {_FAMILIES[name]}"]
            lines += [f"# TYPE traceprof_{name} {kind}", *samples]
    return "\n".join([*lines, ""])


def _append(path: Path, line: str) -> None:
    """Append a line; a file that is too large becomes the file ``.old``, and the old one is lost.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and path.stat().st_size > _MAX_HISTORY_BYTES:
        path.replace(path.with_name(path.name + ".old"))
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


def _cpu_times() -> tuple[int, int]:
    """Return (busy, total) CPU time of this host in clock ticks; (0, 0) where it is unknown."""
    try:
        values = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(values) - values[3] - values[4], sum(values)


def _memory() -> dict[str, int]:
    """Return the memory of this host and its used part, in bytes; {} where it is unknown."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (1024 * int(lines[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return {}
    return {"memory_bytes": total, "memory_used_bytes": total - free}
