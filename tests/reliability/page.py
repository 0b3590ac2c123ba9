"""docs/reliability.md, made of what the campaigns counted (docs/reliability.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tests.reliability import inputs
from tests.reliability.campaign import Tried
from tests.reliability.tally import Faults
from tests.reliability.worker import ACCEPTED, CPU_S, DEFECT, MEMORY_BYTES, REFUSED, RIGHT
from tests.requirements import ROOT

_COUNTS: Final = ROOT / "docs" / "reliability.json"
_PAGE: Final = ROOT / "docs" / "reliability.md"
_VERDICTS: Final = (RIGHT, ACCEPTED, REFUSED, DEFECT)

_HEAD: Final = f"""# Damaged files and failing machines

Made by `scripts/fuzz --write` and `scripts/faults --write`; short runs of both are tests
(`tests/reliability`), which CI runs. Both are reproducible: `scripts/fuzz --seed S --class C
--one N` makes an input again and says what became of it.

## Damaged files

Each input is an example of its class, damaged as random numbers from the seed say: truncated at
any percent, bits flipped, bytes put in, pages moved, zeroed or doubled, headers and tails changed;
values replaced by NULL, texts, infinities and numbers at the borders of int64; columns and tables
taken away, doubled, renamed, made views; names of up to 100 000 characters, with controls and marks
of direction; nesting up to 100 000 deep; gzip with bad sums, members and bombs of 100 MB. One
command is run on it, within {CPU_S:g} s of CPU and {MEMORY_BYTES >> 30} GiB.

*right*: kernels are those that plain `sqlite3` or `json` finds in the damaged file, each with its
length, and what is left out is warned of. *accepted*: an answer without impossible numbers or
controls in it, that nothing independent was held against. *documented error*: one line, exit code
2 to 5. *defect*: anything else, also an input that was changed.
"""
_MIDDLE: Final = """
## Faults of the machine

Injected into every command that writes (`tests/reliability/workplace.py` lists them), by a process
that has imported everything and forks: what is hit is the work. *survived*: inputs are as they
were, an output is the old one or a whole new one, the runs that were kept are there row by row,
nothing is left behind (but for the hidden `.part` of a process that was killed −9), and what could
not be done is said in one line. A step of writing is each opening, renaming, linking, removing and
making of a file, and each connection to a database. *failed*: how many of the commands could not do
what was asked, or were ended.
"""
_TAIL: Final = """
## What is not covered

- nsys's own report files (`.nsys-rep`): they are read by nsys, whose exports are damaged instead.
- The numbers of damaged files beyond kernels and their lengths; those of whole files are held
  against others by the tests of truth.
- Files of gigabytes, network file systems, other systems than Linux, power that fails: that data
  is on the disk before it gets its name is written, not tested by pulling a plug.
- Memory of less than 230 MB: where threads cannot start, Arrow's allocator may end the program
  while it is loaded, before any line of ours.
- Two faults at once, and a second Ctrl-C while the first one tidies up.
- `recover`, and `record` under nsys and nvprof: see `tests/recording`; here it is the embedded
  recorder.
"""


def rows_of_inputs(tried: Iterable[Tried]) -> list[str]:
    """Return the table of inputs."""
    rows = [
        {"class": one.name, **{name: one.verdicts[name] for name in _VERDICTS}} for one in tried
    ]
    return _table_of_inputs(rows)


def row_of_faults(one: Faults) -> str:
    """Return one row of the table of faults."""
    return f"| {one.name} | {one.injected} | {one.failed} | {one.survived} | {one.n_lost} |"


def keep_inputs(tried: Sequence[Tried], seed: int) -> None:
    """Keep what the campaign counted, and write the page."""
    rows = [
        {"class": one.name, **{name: one.verdicts[name] for name in _VERDICTS}} for one in tried
    ]
    _keep("inputs", seed, rows)


def keep_faults(tallies: Sequence[Faults], seed: int) -> None:
    """Keep what the campaign counted, and write the page."""
    rows = [
        {"fault": one.name, "injected": one.injected, "failed": one.failed, "lost": one.n_lost}
        for one in tallies
    ]
    known = json.loads(_COUNTS.read_text())["faults"]["rows"] if _COUNTS.exists() else []
    new = {row["fault"] for row in rows}
    if len(rows) < len(known):  # some of them were tried again
        added = {row["fault"]: row for row in rows}
        rows = [added.get(row["fault"], row) for row in known]
        assert new <= {row["fault"] for row in rows}
    _keep("faults", seed, rows)


def page_of(counts: dict[str, Any]) -> str:
    """Return the page."""
    made = counts["inputs"]
    lines = [_HEAD, *_table_of_inputs(made["rows"]), "", f"Seed {made['seed']}, {made['day']}."]
    made = counts["faults"]
    lines += [_MIDDLE, "| fault | injected | failed | survived | lost |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {row['fault']} | {row['injected']} | {row['failed']} | "
        f"{row['injected'] - row['lost']} | {row['lost']} |"
        for row in made["rows"]
    ]
    lines += [
        f"| **all** | {_sum(made, 'injected')} | {_sum(made, 'failed')} | "
        f"{_sum(made, 'injected') - _sum(made, 'lost')} | {_sum(made, 'lost')} |"
    ]
    lines += ["", f"Seed {made['seed']}, {made['day']}.", _TAIL.rstrip(), ""]
    return "\n".join(lines)


def _keep(name: str, seed: int, rows: list[dict[str, Any]]) -> None:
    counts = json.loads(_COUNTS.read_text()) if _COUNTS.exists() else {}
    counts[name] = {"seed": seed, "day": f"{datetime.now(UTC):%Y-%m-%d}", "rows": rows}
    _COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    if {"inputs", "faults"} <= set(counts):
        _PAGE.write_text(page_of(counts))


def _sum(made: dict[str, Any], name: str) -> int:
    return sum(row[name] for row in made["rows"])


def _table_of_inputs(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| class of input | tried | right | accepted | documented error | defect |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    total = dict.fromkeys(_VERDICTS, 0)
    for row in rows:
        for name in _VERDICTS:
            total[name] += row[name]
        about = (getattr(inputs, row["class"]).__doc__ or "").strip().rstrip(".")
        lines.append(_row(f"`{row['class']}`: {about}", row))
    lines.append(_row("**all**", total))
    return lines


def _row(name: str, counts: dict[str, Any]) -> str:
    cells = [counts[verdict] for verdict in _VERDICTS]
    return f"| {name} | {sum(cells)} | {' | '.join(map(str, cells))} |"
