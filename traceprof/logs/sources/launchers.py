"""What starts ranks: torchrun and Horovod, and Horovod's own benchmarks."""

from __future__ import annotations

import math
import re
from re import compile as rx
from typing import Final

from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader

_QUICK: Final = rx(
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
_WORKER: Final = rx(r"\]\s*\[(\d+)\]: ")
_SAME: Final = 0.05


class TorchrunReader(LogReader):
    """Attempts that are left are those before this one is used up; new nodes cost none."""

    size: int | None = None
    began = When()
    failed = When()
    has_failed = False
    in_result = False

    def read(self, line: LogLine) -> None:
        """Note what ``line`` says; it is read beside any program, and most lines are of that."""
        if _QUICK.search(line.text) is not None:
            super().read(line)

    def of_group(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what an agent says of its group of workers."""
        run, when, what, node = self.run, self.book.when(line), match["_what"], line.node
        said = match[0].partition("] ")[2]
        self.in_result = what.startswith("Rendezvous complete")
        if what.startswith("Rendezvous'ing"):
            self.began = when
        elif self.in_result:
            seconds = when.seconds - self.began.seconds
            is_known = math.isfinite(seconds)
            when, known = (self.began, seconds) if is_known else (when, None)
            run.event("rendezvous", when, known, node=node, text="Rendezvous complete")
        elif match["_state"] or match["_nodes"]:
            kind = "failure" if match["_state"] else "membership"
            value = int(match["_nodes"]) if match["_nodes"] else None
            run.event(kind, when, node=node, value=value, text=said)
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
        known = seconds if math.isfinite(seconds) else None
        text = "time until the workers were restarted"
        self.run.event("restart", self.failed, known, node=node, value=self.size, text=text)
        self.has_failed = False
        self.book.restarting()

    def result(self, match: re.Match[str], *_: object) -> None:
        """Note a line of what a rendezvous came to."""
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
        """Note a rendezvous of the first torchelastic."""
        nodes = len(re.findall(r"\d+", match["_ranks"] or "")) if match["_ranks"] else None
        self.run.facts.nodes = nodes or self.run.facts.nodes
        text = f"Rendezvous version {match['_version']} is complete"
        self.run.event("rendezvous", self.book.when(line), value=nodes, text=text)

    def world(self, match: re.Match[str], *_: object) -> None:
        """Note how many ranks the first torchelastic starts."""
        if match["_world"]:
            self.size = self.run.facts.world_size = int(match["_world"])

    def failure(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note a worker that ended, or was ended."""
        rank, code = (int(match[name]) if match[name] else None for name in ("_rank", "_code"))
        when = self.book.when(line)
        self.run.event("failure", when, rank=rank, value=code, node=line.node, text=match[0])

    def joined(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note a node that came, or left."""
        self.run.event("membership", self.book.when(line), node=match["_node"], text=match[0])


class HorovodElasticReader(LogReader):
    """Losing a worker is a failure; hosts that come or go reset the workers without one."""

    size: int | None = None

    def happened(self, match: re.Match[str], _point: LogPoint, line: LogLine) -> None:
        """Note what the driver or a worker says."""
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
    """Rank 0 measures, and its mean times the number of ranks is what the total says."""

    each: float | None = None
    total_per_s: float | None = None
    size: int | None = None

    def summary(self, match: re.Match[str], *_: object) -> None:
        """Note the mean of one device, or of all."""
        mean = float(match["_mean"])
        if match["_size"] is None:
            self.each = mean
        else:
            self.total_per_s, self.size = mean, int(match["_size"])

    def head(self, match: re.Match[str], *_: object) -> None:
        """Note a line of the head; a head after a total begins another run."""
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
        """Note whose the rates of the iterations are, once the summary tells."""
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
            if total and (size or 2) > 1 and abs(mean / total - 1) < _SAME:
                scope = "run"
            run.series[key._replace(metric="samples_per_s", scope=scope)] = series
        if scope == "run" and each is not None:
            text = "iteration lines report the total of {n:count} GPU(s), not one GPU as in "
            text += "Horovod, because their mean equals the reported total of {total:1/s}"
            run.say(text, n=size or 0, total=total)
        run.measure("samples_per_s_per_device", each, scope="device")
        run.measure("samples_per_s", total)
