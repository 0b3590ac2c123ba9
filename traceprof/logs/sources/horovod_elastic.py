"""The driver of Horovod's elastic jobs, and what its workers say when they end."""

from __future__ import annotations

import re
from typing import Any, Final

from traceprof.logs.base import Reader, Source
from traceprof.logs.cleaning import Line

__all__ = ["SOURCE"]

_EVENT: Final = re.compile(
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


class HorovodElasticReader(Reader):
    """Losing a worker is a failure; hosts that come or go reset the workers without one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.size: int | None = None

    def read(self, line: Line) -> None:
        """Note what one line says."""
        match = _EVENT.search(line.text)
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


SOURCE: Final = Source(
    "horovod-elastic", "Horovod's elastic driver", (_EVENT,), HorovodElasticReader, is_launcher=True
)
