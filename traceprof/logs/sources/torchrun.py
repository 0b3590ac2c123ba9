"""torchrun's agents (torch elastic), in their generations, and forks such as ft_launcher."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source
from traceprof.logs.cleaning import Line
from traceprof.logs.gathered import When

__all__ = ["SOURCE"]

_EVENT: Final = re.compile(
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


class TorchrunReader(Reader):
    """Attempts that are left are those before this one is used up; new nodes cost none."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.size: int | None = None
        self.began: When = When()
        self.failed: When = When()
        self.restarts: int | None = None
        self.has_failed = False
        self.in_result = False

    def read(self, line: Line) -> None:
        """Note what one line says."""
        text = line.text
        if _QUICK.search(text) is None:
            return
        if (event := _EVENT.search(text)) is not None:
            self._event(event, line)
        elif self.in_result and (result := _RESULT.search(text)) is not None:
            self._result(result["key"], result["value"])
        elif (old := _OLD.search(text)) is not None:
            self._old(old, line)
        elif (world := _OLD_WORLD.search(text)) is not None:
            self._old_world(world)
        else:
            self._of_workers(text, line)

    def _of_workers(self, text: str, line: Line) -> None:
        run, when = self.book.run, self.book.when(line)
        if (failed := _FAILED.search(text)) is not None:
            rank, code = int(failed["rank"]), int(failed["code"])
            run.event("failure", when, rank=rank, value=code, node=line.node, text=failed[0])
        elif (joined := _JOINED.search(text)) is not None:
            run.event("membership", when, node=joined["node"], text=joined[0])
        elif (signal := _SIGNAL.search(text)) is not None:
            run.event("failure", when, node=line.node, text=signal[0])

    def _event(self, match: re.Match[str], line: Line) -> None:
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

    def _old(self, match: re.Match[str], line: Line) -> None:
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


SOURCE: Final = Source(
    "torchrun", "torchrun (torch elastic)", (_EVENT, _OLD), TorchrunReader, is_launcher=True
)
