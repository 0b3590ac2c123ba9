"""Read lines of launchers (torchrun, Horovod), and the logs of Horovod's benchmarks."""

from __future__ import annotations

import math
import re
from typing import Final

from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader

_MAYBE_RELEVANT: Final = re.compile(
    r"endezvous|orker group|orkers for|Detected|_count=|_world_size|global_|exitcode|WORLD_SIZE"
    r"|TORCHELASTIC|death signal|has joined|has left"
)
_KINDS: Final = {
    "_failed": "failure",
    "_shutdown": "end",
    "_why": "end",
    "_reset": "rescaling",
    "_blacklisted": "membership",
    "_started": "membership",
    "_slots": "rendezvous",
}
_WORKER: Final = re.compile(r"\]\s*\[(\d+)\]: ")
_MAX_MEAN_DEVIATION_RATIO: Final = 0.05


class TorchrunReader(LogReader):
    """Read torchrun lines. The printed number of remaining attempts includes the current one.

    New nodes do not use up an attempt.
    """

    size: int | None = None
    began = When()
    failed = When()
    has_failed = False
    in_result = False

    def read(self, line: LogLine) -> None:
        """Store the values of ``line``.

        Lines without a known word are skipped, since most are not torchrun's.
        """
        if _MAYBE_RELEVANT.search(line.text) is not None:
            super().read(line)

    def of_group(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a line of an agent about its worker group."""
        run, when, what, node = self.run, self.book.when(line), match["_what"], line.node
        text = match[0].partition("] ")[2]
        self.in_result = what.startswith("Rendezvous complete")
        if what.startswith("Rendezvous'ing"):
            self.began = when
        elif self.in_result:
            seconds = when.seconds - self.began.seconds
            when, duration_s = (self.began, seconds) if math.isfinite(seconds) else (when, None)
            run.event("rendezvous", when, duration_s, node=node, text="Rendezvous complete")
        elif match["_state"] or match["_nodes"]:
            kind = "failure" if match["_state"] else "membership"
            value = int(match["_nodes"]) if match["_nodes"] else None
            run.event(kind, when, node=node, value=value, text=text)
            self.failed, self.has_failed = when, True
        elif what.startswith("Starting worker group"):
            self._started(when, node)
        elif "successfully finished" in what:
            run.event("end", when, node=node, text="worker group successfully finished")
        elif what.lower().startswith("starting workers"):
            run.environment.setdefault("launcher", "torchrun")

    def _started(self, when: When, node: str) -> None:
        if not self.has_failed:
            text = "Starting worker group"
            self.run.event("start", when, node=node, value=self.size, text=text)
            return
        seconds = when.seconds - self.failed.seconds
        duration_s = seconds if math.isfinite(seconds) else None
        text = "time until the workers were restarted"
        self.run.event("restart", self.failed, duration_s, node=node, value=self.size, text=text)
        self.has_failed = False
        self.book.restarting()

    def result(self, match: re.Match[str], *_: object) -> None:
        """Store a line of the result of a rendezvous."""
        numbers = re.findall(r"\d+", match["_of"])
        if not self.in_result or not numbers:
            return
        run, count = self.run, int(numbers[0])
        if match["_key"] == "group_world_size":
            run.facts.nodes = count
        elif match["_key"] == "global_world_sizes":
            if self.size is not None and self.size != count:
                text = f"{self.size} → {count} ranks"
                run.event("rescaling", self.began, value=count, text=text)
            self.size = run.facts.world_size = count

    def old(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a rendezvous of the first torchelastic version."""
        nodes = len(re.findall(r"\d+", match["_ranks"] or "")) if match["_ranks"] else None
        self.run.facts.nodes = nodes or self.run.facts.nodes
        text = f"Rendezvous version {match['_version']} is complete"
        self.run.event("rendezvous", self.book.when(line), value=nodes, text=text)

    def world(self, match: re.Match[str], *_: object) -> None:
        """Store the number of ranks that the first torchelastic version starts."""
        if match["_world"]:
            self.size = self.run.facts.world_size = int(match["_world"])

    def failure(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a worker that ended or was killed."""
        rank, code = (int(match[name]) if match[name] else None for name in ("_rank", "_code"))
        when = self.book.when(line)
        self.run.event("failure", when, rank=rank, value=code, node=line.node, text=match[0])

    def joined(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a node that joined or left."""
        self.run.event("membership", self.book.when(line), node=match["_node"], text=match[0])


class HorovodElasticReader(LogReader):
    """Read elastic Horovod lines.

    The loss of a worker is a failure; new or lost hosts reset workers.
    """

    size: int | None = None

    def happened(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Store a line of the driver or of a worker."""
        run, when, text = self.run, self.book.when(line), match[0]
        if match["_size"]:
            size = run.facts.world_size = int(match["_size"])
            if self.size != size:
                run.event("membership", when, value=size, text=text)
                self.size = size
            return
        if match["_reset"]:
            self.book.restarting()
        kind = _KINDS.get(match.lastgroup or "")
        if match["_who"]:
            kind = "failure" if match["_state"] == "FAILURE" else None
        if kind is not None:
            worker = _WORKER.search(line.text)
            rank = line.rank if worker is None else int(worker[1])
            node = match["_blacklisted"] or match["_started"] or match["_who"] or ""
            count = match["_reset"] or match["_slots"]
            value = int(count) if count else None
            run.event(kind, when, rank=rank, node=node, value=value, text=text)


class HorovodReader(LogReader):
    """Read Horovod benchmarks.

    Rank 0 measures; the printed total is its mean times the number of ranks.
    """

    each: float | None = None
    total_per_s: float | None = None
    size: int | None = None

    def summary(self, match: re.Match[str], *_: object) -> None:
        """Store the mean of one device or of all devices."""
        mean = float(match["_mean"])
        if match["_size"] is None:
            self.each = mean
        else:
            self.total_per_s, self.size = mean, int(match["_size"])

    def head(self, match: re.Match[str], *_: object) -> None:
        """Store a line of the heading; a heading after a total starts another run."""
        run, key, value = self.run, match["_key"], match["_of"]
        if key == "Model" and self.total_per_s is not None:
            run = self.book.begin_run()
        if key == "Model":
            run.workload = value
        elif value.isdigit() and key == "Batch size":
            run.facts.batch_per_device = float(value)
        elif value.isdigit():
            run.facts.world_size = run.facts.devices = int(value)

    def end(self) -> None:
        """Decide from the summary whether iteration rates refer to one device or to all devices."""
        run, each, total, size = self.run, self.each, self.total_per_s, self.size
        self.each = self.total_per_s = self.size = None
        run.facts.has_warmup = False
        if size:
            run.facts.world_size = run.facts.devices = size
        scope = "device"
        for key in [key for key in run.series if key.metric == "iter_samples_per_s"]:
            series = run.series.pop(key)
            values = series.steady(has_warmup=False)
            mean = float(values.mean()) if len(values) else 0.0
            if total and (size or 2) > 1 and abs(mean / total - 1) < _MAX_MEAN_DEVIATION_RATIO:
                scope = "run"
            run.series[key._replace(metric="samples_per_s", scope=scope)] = series
        if scope == "run" and each is not None:
            text = (
                "iteration lines report the total of {n:count} GPU(s), not one GPU as in "
                "Horovod, because their mean equals the reported total of {total:1/s}"
            )
            run.say(text, n=size or 0, total=total)
        run.measure("samples_per_s_per_device", each, scope="device")
        run.measure("samples_per_s", total)
