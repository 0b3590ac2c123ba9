"""What starts ranks: torchrun and Horovod, and Horovod's own benchmarks."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, LogSource
from traceprof.model.results import Unit

_TORCHRUN_EVENT: Final = re.compile(
    r"\[(?P<role>\w*)\] (?P<event>[Ss]tarting workers for entrypoint|Rendezvous'ing worker group"
    r"|Rendezvous complete for workers|Starting worker group|Stopping worker group"
    r"|[Ww]orker group successfully finished|Worker group (?P<state>FAILED|UNHEALTHY)\.?"
    r"(?: (?P<left>\d+)/(?P<max>\d+) attempts left)?"
    r"|Detected (?P<nodes>\d+) new nodes from group_rank=(?P<group>\d+))"
)
_RESULT: Final = re.compile(
    r"(?:^|\s)(?P<key>restart_count|group_rank|group_world_size|global_world_sizes|global_ranks)="
    r"(?P<value>\[[^\]]*\]|\S+)"
)
_FAILED: Final = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")
_SIGNAL: Final = re.compile(r"Received (?:Signals\.)?(?P<what>\S+)(?:: \d+)? death signal")
_JOINED: Final = re.compile(
    r"The node '(?P<node>[^']+)' has (?P<how>joined round \d+ of the rendezvous|left the rendezvous"
    r"|joined the waiting room|no heartbeat|been removed)"
)
_OLD: Final = re.compile(
    r"Rendezvous version (?P<version>\d+) is complete\. Final state: (?P<state>\{.*\})"
)
_OLD_RANKS: Final = re.compile(r"'participants': \[(?P<ranks>[\d, ]*)\]")
_OLD_WORLD: Final = re.compile(
    r"TORCHELASTIC_(?P<key>MAX_RESTARTS|RESTART_COUNT)[^\d]+(?P<value>\d+)|WORLD_SIZE[^\d]+(?P<world>\d+)"
)
_QUICK: Final = re.compile(
    r"endezvous|orker group|orkers for|Detected|_count=|_world_size|global_|exitcode|WORLD_SIZE"
    r"|TORCHELASTIC|death signal|has joined|has left"
)


class TorchrunReader(LogReader):
    """Attempts that are left are those before this one is used up; new nodes cost none."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.size: int | None = None
        self.began: When = When()
        self.failed: When = When()
        self.restarts: int | None = None
        self.has_failed = False
        self.in_result = False

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if _QUICK.search(text) is None:
            return
        if (event := _TORCHRUN_EVENT.search(text)) is not None:
            self._event(event, line)
        elif self.in_result and (result := _RESULT.search(text)) is not None:
            self._result(result["key"], result["value"])
        elif (old := _OLD.search(text)) is not None:
            self._old(old, line)
        elif (world := _OLD_WORLD.search(text)) is not None:
            self._old_world(world)
        else:
            self._of_workers(text, line)

    def _of_workers(self, text: str, line: LogLine) -> None:
        run, when = self.book.run, self.book.when(line)
        if (failed := _FAILED.search(text)) is not None:
            rank, code = int(failed["rank"]), int(failed["code"])
            run.event("failure", when, rank=rank, value=code, node=line.node, text=failed[0])
        elif (joined := _JOINED.search(text)) is not None:
            run.event("membership", when, node=joined["node"], text=joined[0])
        elif (signal := _SIGNAL.search(text)) is not None:
            run.event("failure", when, node=line.node, text=signal[0])

    def _event(self, match: re.Match[str], line: LogLine) -> None:
        run, when, what = self.book.run, self.book.when(line), match["event"]
        node = line.node
        self.in_result = what.startswith("Rendezvous complete")
        if what.startswith("Rendezvous'ing"):
            self.began = when
        elif self.in_result:
            seconds = when.seconds - self.began.seconds
            run.event(
                "rendezvous",
                self.began if math.isfinite(seconds) else when,
                seconds if math.isfinite(seconds) else None,
                node=node,
                text="Rendezvous complete",
            )
        elif match["state"]:
            run.event("failure", when, node=node, text=match[0].split("] ", 1)[1])
            self._stopped(when)
        elif match["nodes"]:
            run.event(
                "membership",
                when,
                node=node,
                value=int(match["nodes"]),
                text=match[0].split("] ", 1)[1],
            )
            self._stopped(when)
        elif what.startswith("Starting worker group"):
            self._started(when, node)
        elif "successfully finished" in what:
            run.event("end", when, node=node, text="worker group successfully finished")
        elif what.lower().startswith("starting workers"):
            run.environment.setdefault("launcher", "torchrun")

    def _stopped(self, when: When) -> None:
        self.failed = when
        self.has_failed = True

    def _started(self, when: When, node: str) -> None:
        run = self.book.run
        if not self.has_failed:
            run.event("start", when, node=node, value=self.size, text="Starting worker group")
            return
        seconds = when.seconds - self.failed.seconds
        run.event(
            "restart",
            self.failed,
            seconds if math.isfinite(seconds) else None,
            node=node,
            value=self.size,
            text="until the workers were started again",
        )
        self.has_failed = False
        self.book.restarting()

    def _result(self, key: str, value: str) -> None:
        run = self.book.run
        numbers = [int(text) for text in re.findall(r"\d+", value)]
        if not numbers:
            return
        if key == "restart_count":
            self.restarts = numbers[0]
        elif key == "group_world_size":
            run.facts.nodes = numbers[0]
        elif key == "global_world_sizes":
            if self.size is not None and self.size != numbers[0]:
                run.event(
                    "rescaling",
                    self.began,
                    value=numbers[0],
                    text=f"{self.size} → {numbers[0]} ranks",
                )
            self.size = run.facts.world_size = numbers[0]

    def _old(self, match: re.Match[str], line: LogLine) -> None:
        run = self.book.run
        ranks = _OLD_RANKS.search(match["state"])
        nodes = len(re.findall(r"\d+", ranks["ranks"])) if ranks is not None else None
        run.facts.nodes = nodes or run.facts.nodes
        run.event(
            "rendezvous",
            self.book.when(line),
            value=nodes,
            text=f"Rendezvous version {match['version']} is complete",
        )

    def _old_world(self, match: re.Match[str]) -> None:
        if match["world"]:
            self.size = self.book.run.facts.world_size = int(match["world"])
        elif match["key"] == "RESTART_COUNT":
            self.restarts = int(match["value"])


TORCHRUN: Final = LogSource(
    "torchrun",
    "torchrun (torch elastic)",
    (_TORCHRUN_EVENT, _OLD),
    TorchrunReader,
    is_launcher=True,
)


_ELASTIC_EVENT: Final = re.compile(
    r"(?P<failed>ExecuteOperation Failed)|(?P<shutdown>Shutting down background thread)"
    r"|blacklist failing host: (?P<blacklisted>\S+)|wait for available slots: (?P<slots>\d+)"
    r"|start worker process: (?P<started>\S+)|rank and size: (?P<rank>\d+) (?P<size>\d+)"
    r"|reset workers: (?P<reset>\d+)|record state: (?P<who>\S+) = (?P<state>\w+)"
    r"|all (?P<recorded>\d+) workers recorded"
    r"|(?P<why>(?:success|failure|blacklisted slots) count == \d+ -> stop running"
    r"|reset count \d+ has exceeded limit \d+ -> stop running)"
)
_KINDS: Final = {
    "failed": "failure",
    "shutdown": "end",
    "why": "end",
    "reset": "rescaling",
    "blacklisted": "membership",
    "started": "membership",
    "slots": "rendezvous",
}
_WORKER: Final = re.compile(r"\]\s*\[(?P<rank>\d+)\]: ")


class HorovodElasticReader(LogReader):
    """Losing a worker is a failure; hosts that come or go reset the workers without one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.size: int | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        match = _ELASTIC_EVENT.search(line.text)
        if match is None:
            return
        when, run = self.book.when(line), self.book.run
        text, rank = match[0], line.rank
        worker = _WORKER.search(line.text)
        if worker is not None:
            rank = int(worker["rank"])
        if match["size"]:
            self._resized(int(match["size"]), when, text)
            return
        if match["reset"]:
            self.book.restarting()
        group = match.lastgroup or ""
        if match["who"]:
            group = "failed" if match["state"] == "FAILURE" else ""
        kind = _KINDS.get(group)
        if kind is not None:
            node = match["blacklisted"] or match["started"] or match["who"] or ""
            count = match["reset"] or match["slots"]
            value = int(count) if count else None
            run.event(kind, when, rank=rank, node=node, value=value, text=text)

    def _resized(self, size: int, when: Any, text: str) -> None:
        run = self.book.run
        if self.size != size:
            run.event("membership", when, value=size, text=text)
            self.size = size
        run.facts.world_size = size


HOROVOD_ELASTIC: Final = LogSource(
    "horovod-elastic",
    "Horovod's elastic driver",
    (_ELASTIC_EVENT,),
    HorovodElasticReader,
    is_launcher=True,
)


_ITER: Final = re.compile(
    r"Iter #(?P<iter>\d+): (?P<rate>[\d.]+) (?:img|images?|samples?)/sec"
    r"(?: (?:per )?(?:GPU|CPU|device))?"
)
_SUMMARY: Final = re.compile(
    r"(?:(?P<each>Img/sec per (?:GPU|CPU))|Total img/sec on (?P<size>\d+) (?:GPU|CPU)\(s\)): "
    r"(?P<mean>[\d.]+) \+-(?P<spread>[\d.]+)"
)
_HEAD: Final = re.compile(
    r"^(?P<key>Model|Batch size|Number of GPUs|Number of CPUs):\s*(?P<value>\S+)"
)
_SAME: Final = 0.05


class HorovodReader(LogReader):
    """Rank 0 measures, and its mean times the number of ranks is what the total says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.each: float | None = None
        self.total: float | None = None
        self.size: int | None = None

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (found := _ITER.search(text)) is not None:
            step = int(found["iter"])
            self.book.position(step)
            point = LogPoint(step, at_s=self.book.when(line).seconds)
            self.book.run.metric("iter_samples_per_s", float(found["rate"]), point)
        elif (found := _SUMMARY.search(text)) is not None:
            if found["each"]:
                self.each = float(found["mean"])
            else:
                self.total, self.size = float(found["mean"]), int(found["size"])
        elif (head := _HEAD.search(text)) is not None:
            self._head(head["key"], head["value"])

    def _head(self, key: str, value: str) -> None:
        run = self.book.run
        if key == "Model" and self.total is not None:
            run = self.book.begin_run()
        if key == "Model":
            run.workload = value
        elif value.isdigit() and key == "Batch size":
            run.facts.batch_per_device = float(value)
        elif value.isdigit():
            run.facts.world_size = run.facts.devices = int(value)

    def end(self) -> None:
        """Note whose the rates of the iterations are, once the summary tells."""
        run = self.book.run
        run.facts.has_warmup = False
        if self.size:
            run.facts.world_size = run.facts.devices = self.size
        scope = "device"
        for key in [key for key in run.series if key.metric == "iter_samples_per_s"]:
            series = run.series.pop(key)
            values = series.steady(has_warmup=False)
            mean = float(values.mean()) if len(values) else 0.0
            if self.total and (self.size or 2) > 1 and abs(mean / self.total - 1) < _SAME:
                scope = "run"
            run.series[key._replace(metric="samples_per_s", scope=scope)] = series
        if scope == "run" and self.each is not None:
            run.say(
                "lines of iterations are the total of {n:count} device(s), not of one as in "
                "Horovod: their mean is the total that is printed, {total:1/s}",
                n=self.size or 0,
                total=self.total,
            )
        run.measure(
            "samples_per_s_per_device", self.each, Unit.PER_S, scope="device", better="higher"
        )
        run.measure("samples_per_s", self.total, Unit.PER_S, better="higher")
        self.each = self.total = self.size = None


HOROVOD: Final = LogSource(
    "horovod", "Horovod's synthetic benchmarks", (_ITER, _SUMMARY), HorovodReader
)
