"""A line without what terminals, launchers and schedulers put into and before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from traceprof.values import dataclass

__all__ = ["Line", "clean", "cleaned"]

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x1b"
)
# Text that was pasted often lost its ESC; in the middle of a line it may be something else.
_BARE_COLOUR: Final = re.compile(r"^(?:\[[0-9;]{1,8}m)+")

_MPI: Final = r"\[(?:\d+,)?(?P<{name}>\d+)(?:,\d+)?\]<std(?:out|err|diag)>:"
_PREFIXES: Final = (
    # mpirun --tag-output, horovodrun; --timestamp-output writes the date before it
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]{8} \d{4} *)?" + _MPI.format(name="mpi") + " ?",
    # torchrun --tee, and the tracebacks of torch
    r"\[rank(?P<rank>\d+)\]:\s?",
    r"\[[A-Za-z_]+(?P<local>\d+)\]:\s?",
    # srun --label
    r"\s{0,5}(?P<srun>\d{1,6}): ",
    # pdsh, and the launcher of DeepSpeed
    r"(?P<host>(?:worker|node|host|compute|gpu|instance|dgx|nid|ip|hgx|cn)[\w.-]*\d[\w.-]*"
    r"|\d{1,3}(?:\.\d{1,3}){3}): ",
    # docker compose, kubectl logs --prefix, containerd
    r"(?P<service>[A-Za-z][\w.-]*[_-]\d+) +\| ?",
    r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ",
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ",
    # Ray, SkyPilot
    r"\((?:[\w.:-]+,? )?(?:rank=(?P<ray>\d+), )?pid=\d+(?:, ip=(?P<ip>[\d.]+))?\)\s?",
    # torchx, nemo-run: role and replica
    r"(?P<replica>(?=[\w.-]*[A-Za-z])[\w.-]+/\d+) (?=\S| )",
    # the journal
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} (?P<journal>[\w.-]+) [\w./-]+(?:\[\d+\])?: ",
    r"std(?:out|err): ",
    r"> ",
)
_PREFIX: Final = re.compile("|".join(_PREFIXES))
_AT_THE_END: Final = re.compile(_MPI.format(name="mpi") + r"\s*$")
_RANKS: Final = ("mpi", "rank", "local", "srun", "ray")
_NODES: Final = ("host", "service", "pod", "ip", "replica", "journal")
_MOST_PREFIXES: Final = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One line: ``text`` without what was put before it, ``raw`` with it, but without colours.

    ``rank`` and ``node`` are what the prefixes say (None, "": nothing); of several prefixes the
    last one, which is closest to the program.
    """

    text: str
    raw: str
    rank: int | None = None
    node: str = ""


def cleaned(raw_lines: Iterable[str]) -> Iterator[Line]:
    """Yield ``raw_lines`` clean, without those that are empty.

    mpirun tags what ends with a newline: between redraws its tag stands at the end of a line, and
    tells of the next one.
    """
    tagged: int | None = None
    for raw in raw_lines:
        line = clean(raw)
        rank = line.rank if line.rank is not None else tagged
        tagged, text = None, line.text
        if text.endswith(":") or text[-1:].isspace():
            at_end = _AT_THE_END.search(text)
            if at_end is not None:
                tagged, text = int(at_end["mpi"]), text[: at_end.start()]
        if text.strip():
            yield Line(text, line.raw, rank, line.node)


def clean(raw: str) -> Line:
    """Return one line clean."""
    if "\x1b" in raw:
        raw = _ESCAPES.sub("", raw)
    raw = _BARE_COLOUR.sub("", raw)
    at, rank, node = 0, None, ""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(raw, at)
        if match is None:
            break
        at = match.end()
        name = match.lastgroup
        if name in _RANKS:
            rank = int(match[name][:9])
        elif name in _NODES:
            node = match[name]
    return Line(raw[at:], raw, rank, node)
