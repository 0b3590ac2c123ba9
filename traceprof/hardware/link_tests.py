"""Read the output of nccl-tests and rccl-tests: bus bandwidth by operation and message size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from traceprof.errors import UsageError
from traceprof.hardware.catalogue import Peak

_OPERATIONS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
}
_NAME: Final = re.compile(r"\b(?P<name>[a-z_]{3,24})_perf\b")
_START: Final = re.compile(r"#\s*+(?:nThread|Collective test starting)\b")
_RANK: Final = re.compile(r"#\s++Rank\s++(?P<rank>\d{1,6}+)\s")
_ROW: Final = re.compile(
    r"^\s*+(?P<size>\d{1,15}+)\s++\d{1,15}+\s++[a-z]\w{1,20}+\s++(?:\w{1,20}+\s++)?-?\d{1,6}+\s++"
    r"(?P<cells>[\d.]{1,20}+\s++[\d.]{1,20}+\s++[\d.]{1,20}+.{0,200})"
)
_NUMBER: Final = re.compile(r"\d{1,15}+(?:\.\d{0,15}+)?+")
_GB: Final = 1e9
_SOURCE: Final = "from --link-from"


@dataclass(frozen=True, slots=True)
class LinkTest:
    """The bus bandwidth of one operation on ``n_ranks`` ranks, by message size.

    ``rates`` are pairs of the message size in bytes and the bus bandwidth in bytes per second, in
    ascending order of the size.
    """

    op: str
    n_ranks: int
    rates: tuple[tuple[float, float], ...]

    def rate_at(self, n_bytes: float) -> float:
        """Return the bandwidth at a size, linear in its logarithm; at the ends that of the end."""
        if n_bytes <= self.rates[0][0]:
            return self.rates[0][1]
        for (size, rate), (next_size, next_rate) in zip(self.rates, self.rates[1:], strict=False):
            if n_bytes <= next_size:
                share = math.log(n_bytes / size) / math.log(next_size / size)
                return rate + share * (next_rate - rate)
        return self.rates[-1][1]


@dataclass(slots=True)
class _Block:
    """The lines of one test that were read so far."""

    op: str = ""
    ranks: set[int] = field(default_factory=set)
    rates: dict[float, float] = field(default_factory=dict)

    def tests(self) -> Iterator[LinkTest]:
        """Yield the test, if the block contains its operation, its ranks, and rates."""
        if self.op and self.ranks and self.rates:
            yield LinkTest(self.op, len(self.ranks), tuple(sorted(self.rates.items())))


def parse_link_tests(text: str) -> tuple[LinkTest, ...]:
    """Return the tests in the output of nccl-tests or rccl-tests.

    The name of an operation comes from the command line or the output of the program
    (``all_reduce_perf``). The faster of the out-of-place and in-place tests counts.

    Raises:
        UsageError: the text contains no test whose operation and ranks are known.
    """
    found: list[LinkTest] = []
    block, has_rows = _Block(), False
    for line in text.splitlines():
        name = _NAME.search(line)
        is_end = "concluded" in line
        if has_rows and not is_end and (name is not None or _START.search(line)):
            found += block.tests()
            block, has_rows = _Block(), False
        if name is not None and name["name"] in _OPERATIONS:
            block.op = block.op or _OPERATIONS[name["name"]]
        if (rank := _RANK.search(line)) is not None:
            block.ranks.add(int(rank["rank"]))
        row = _ROW.match(line)
        if row is not None:
            has_rows = True
            _add_row(block, float(row["size"]), row["cells"].split())
    found += block.tests()
    if not found:
        raise UsageError(
            "--link-from: expected the output of nccl-tests or rccl-tests with its ranks and the "
            "name of the test, such as all_reduce_perf; add the command line as the first line"
        )
    return tuple(found)


def _add_row(block: _Block, size: float, cells: Sequence[str]) -> None:
    """Store the bus bandwidth of a row: the third cell, and the third after the errors."""
    rates = [float(cell) for cell in (*cells[2:3], *cells[6:7]) if _NUMBER.fullmatch(cell)]
    if size > 0 and max(rates, default=0.0) > 0:
        block.rates[size] = max(rates) * _GB


def measured_peak(tests: Sequence[LinkTest], op: str, n_ranks: int, n_bytes: float) -> Peak | None:
    """Return the measured bandwidth of an operation at a size; None if it was not tested."""
    for test in tests:
        if (test.op, test.n_ranks) == (op, n_ranks) and n_bytes > 0:
            return Peak(test.rate_at(n_bytes), "measured by nccl-tests at this size", _SOURCE)
    return None
