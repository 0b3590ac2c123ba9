"""docs/reliability.md, made of what the campaigns counted (docs/reliability.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tests.reliability import inputs
from tests.reliability.bounds import (
    BYTES_PER_BYTE,
    CPU_S_PER_MB,
    FLOOR_BYTES,
    FLOOR_CPU_S,
    GROWN,
    HEADROOM,
)
from tests.reliability.campaign import Tried
from tests.reliability.growth import ALLOWED, LARGER, SIZES
from tests.reliability.tally import Costs, Faults, Growth, Pairs, Patterns
from tests.reliability.worker import ACCEPTED, CPU_S, DEFECT, MEMORY_BYTES, REFUSED, RIGHT
from tests.requirements import ROOT

_COUNTS: Final = ROOT / "docs" / "reliability.json"
_PAGE: Final = ROOT / "docs" / "reliability.md"
COMMIT: Final = "TRACEPROF_RELIABILITY_COMMIT"
"""The variable that says which code is tried."""
_VERDICTS: Final = (RIGHT, ACCEPTED, REFUSED, DEFECT)

_HEAD: Final = f"""# Damaged files and failing machines

`scripts/fuzz --write`, `scripts/faults --write`, and `scripts/bounds --write` make this page. Short
runs of the same campaigns are tests (`tests/reliability`), and CI runs them. Every input is
reproducible: `scripts/fuzz --seed S --class C --one N` makes it again and prints the outcome.

## Damaged files

Each input is an example of its class with random damage:

- bytes: truncated files, flipped bits, inserted bytes, pages that are moved, zeroed, or doubled;
- values: NULL, text, infinities, and numbers at the limits of int64;
- columns and tables: removed, doubled, renamed, or replaced by views;
- names: up to 100,000 characters, with control characters and text direction marks;
- nesting: up to 100,000 levels;
- gzip: wrong checksums, several members, and files that unpack to 100 MB.

One command reads each input, with limits of {CPU_S:g} s of CPU time and {MEMORY_BYTES >> 30} GiB.
For `every_form`, all output formats must have the same numbers and warnings. For `same_execution`,
all answers must equal those about the original file.

| outcome | meaning |
|---|---|
| right | `sqlite3` or `json` finds the same kernels and durations; warnings report omissions. |
| accepted | An answer without impossible numbers or control characters, without another check. |
| documented error | One line, and an exit code from 2 to 5. |
| defect | Anything else, including a changed input file. |
"""
_MIDDLE: Final = """
## Faults of the machine

The campaign injects faults into every command that writes files (`tests/reliability/workplace.py`
lists them). The process has imported all modules before the fault, so the fault hits the work. A
file operation opens, renames, links, removes, or creates a file, or connects to a database. A
library that is loaded before the program (`tests/reliability/machine.c`) injects failing processes,
threads, and reads.

A command *survived* the fault if all of these are true:

- Input files are unchanged.
- An output file is the old one or a complete new one, and the database of runs is complete.
- No temporary file is left, except the hidden `.part` file of a killed process.
- One line reports what failed. A command that only prints gives the same answer or one line.

*failed* is the number of commands that could not do their work or were killed.
"""
_BOUNDS: Final = f"""
## Limits of memory and CPU time

`scripts/bounds --write` measures these numbers. For a file of n bytes (after decompression), each
command below uses at most {FLOOR_BYTES >> 20} MiB + {BYTES_PER_BYTE} n of memory, including
Python and all modules. It uses at most {FLOOR_CPU_S} s + {CPU_S_PER_MB} s per MB of CPU time on a
slow machine. Each command ran on each file of `tests/corpus` and on real traces, in a new process
and without a cache. *share* is the largest share of the memory limit that a command used.
"""
_GROWTH: Final = f"""
CPU time must not grow faster than the file. Each of these shapes was written twice, the second
time {GROWN} times as large, and all commands read both files. *grew* is the largest growth of the
CPU time of a command. The limit is {HEADROOM:g} × {GROWN}, which allows n log n and a busy
machine; quadratic growth would be {GROWN * GROWN}. Tables with a row for each pair of rows, such
as the CPU work in the gaps of 10,000 devices of one process, are refused above 32 pairs per row.
"""
_PATTERNS: Final = f"""
The time of a regular expression must not grow faster than its text. For each compiled expression,
the campaign makes texts that repeat a part of the expression, after a matching beginning and
before an end that does not match. A matcher that backtracks like Python's counts its steps on
{SIZES[0]} and {SIZES[1]} characters ({LARGER[0]} and {LARGER[1]} if a repetition has an upper
limit). *grew* is the largest growth of the steps divided by the growth of the text: 1 is linear,
{SIZES[1] // SIZES[0]} would be quadratic, and the limit is {ALLOWED:g}. RE2 matches the patterns
of the user.
"""
_PAIRS: Final = """
## Two unrelated traces as one run

The files of a run come from one program. Two unrelated traces have no common clock, collectives,
steps, devices, or tables. For this test, manifests combine pairs of real traces (parts with at most
600 kernels, and each trace with itself) into runs of two ranks. Every analysis reads these runs,
and so does one of `analyze`, `report`, `timeline`, `elastic`, and `nodes`.
"""
_TAIL: Final = """
## Not covered

- nsys report files (`.nsys-rep`): nsys reads them. The campaigns damage its exports instead.
- Numbers of damaged files other than kernels and their durations. Other tests (`tests/truth`) check
  the numbers of valid files.
- Files of several gigabytes, real network file systems, operating systems other than Linux, and
  power failures. `tests/test_files.py` checks the order of system calls that makes data durable.
- Two faults at the same time, and a second Ctrl-C during cleanup.
- `record` with nsys, nvprof, and CUPTI: see `tests/recording`. Here, `record` uses the embedded
  recorder. `tests/reliability/test_recover.py` and `test_machine.py` kill it and `recover` before
  each file operation, and change the system time during a recording.
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
    _keep_some("inputs", seed, rows, "class")


def keep_faults(tallies: Sequence[Faults], seed: int) -> None:
    """Keep what the campaign counted, and write the page."""
    rows = [
        {"fault": one.name, "injected": one.injected, "failed": one.failed, "lost": one.n_lost}
        for one in tallies
    ]
    _keep_some("faults", seed, rows, "fault")


def rows_of_costs(costs: Sequence[Costs]) -> list[str]:
    """Return the table of what commands take."""
    return _rows_of_costs([_of_costs(one) for one in costs])


def row_of_growth(one: Growth) -> str:
    """Return one row of the table of shapes."""
    return _row_of_growth(_of_growth(one))


def told_of_pairs(tally: Pairs) -> str:
    """Return what became of pairs of traces, in a sentence."""
    return _told_of_pairs({"pairs": tally.n_pairs, **{v: tally.verdicts[v] for v in _VERDICTS}})


def keep_costs(costs: Sequence[Costs]) -> None:
    """Keep what commands took of files, and write the page."""
    _keep("costs", {**_when(0), "rows": [_of_costs(one) for one in costs]})


def keep_growths(growths: Sequence[Growth]) -> None:
    """Keep how costs grew with the files, and write the page."""
    _keep_some("growth", 0, [_of_growth(one) for one in growths], "shape")


def rows_of_patterns(tallies: Sequence[Patterns]) -> list[str]:
    """Return the table of regular expressions."""
    return _rows_of_patterns([_of_patterns(one) for one in tallies])


def keep_patterns(tallies: Sequence[Patterns]) -> None:
    """Keep how regular expressions grew, and write the page."""
    _keep_some("patterns", 0, [_of_patterns(one) for one in tallies], "room")


def _of_patterns(one: Patterns) -> dict[str, Any]:
    return {
        "room": one.name,
        "patterns": one.n_patterns,
        "pumps": one.n_pumps,
        "grew": round(one.ratio, 2),
        "beyond": len(one.beyond),
    }


def _rows_of_patterns(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| package | patterns | texts | grew | above the limit |", "|---|--:|--:|--:|--:|"]
    names = ("patterns", "pumps", "grew", "beyond")
    lines += [f"| `{row['room']}` | {' | '.join(str(row[n]) for n in names)} |" for row in rows]
    totals = [(max if name == "grew" else sum)(row[name] for row in rows) for name in names]
    return [*lines, f"| **all** | {' | '.join(map(str, totals))} |"]


def keep_pairs(tally: Pairs, seed: int) -> None:
    """Keep what became of pairs of traces, and write the page."""
    counts = {verdict: tally.verdicts[verdict] for verdict in _VERDICTS}
    _keep("pairs", {**_when(seed), "rows": [{"pairs": tally.n_pairs, **counts}]})


def _of_costs(one: Costs) -> dict[str, Any]:
    return {
        "command": one.name,
        "files": one.n_files,
        "cpu_s": round(one.most_cpu_s, 1),
        "mib": one.most_bytes >> 20,
        "share": round(one.share, 2),
        "beyond": len(one.beyond),
    }


def _rows_of_costs(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| command | files | max. CPU s | max. MiB | share | above the limit |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for row in rows:
        cells = (row["files"], row["cpu_s"], row["mib"], f"{row['share']:.0%}", row["beyond"])
        lines.append(f"| `{row['command']}` | {' | '.join(map(str, cells))} |")
    return lines


def _of_growth(one: Growth) -> dict[str, Any]:
    return {
        "shape": one.about,
        "n": one.n,
        "grew": round(one.ratio, 1),
        "command": one.command,
        "cpu_s": round(one.most_cpu_s, 1),
        "mib": one.most_bytes >> 20,
        "beyond": len(one.beyond),
    }


def _row_of_growth(row: dict[str, Any]) -> str:
    cells = (row["grew"], f"`{row['command']}`", row["cpu_s"], row["mib"], row["beyond"])
    return f"| {row['shape']} | {row['n']} | {' | '.join(map(str, cells))} |"


def _told_of_pairs(row: dict[str, Any]) -> str:
    n_asked = sum(row[verdict] for verdict in _VERDICTS)
    return (
        f"{row['pairs']:,} pairs, {n_asked:,} commands: {row[ACCEPTED]:,} answers, "
        f"{row[REFUSED]:,} documented errors (not recorded, no common steps), "
        f"{row[DEFECT]} defects."
    )


def _bounds_of(counts: dict[str, Any]) -> list[str]:
    lines = []
    if "costs" in counts:
        made = counts["costs"]
        lines += [_BOUNDS, *_rows_of_costs(made["rows"]), "", _told_when(made, "command")]
    if "growth" in counts:
        lines += [
            _GROWTH,
            "| shape | N | grew | command | max. CPU s | max. MiB | above the limit |",
        ]
        lines.append("|---|--:|--:|---|--:|--:|--:|")
        lines += [_row_of_growth(row) for row in counts["growth"]["rows"]]
        lines += ["", _told_when(counts["growth"], "shape")]
    if "patterns" in counts:
        made = counts["patterns"]
        lines += [_PATTERNS, *_rows_of_patterns(made["rows"]), "", _told_when(made, "room")]
    if "pairs" in counts:
        made = counts["pairs"]
        told = _told_of_pairs(made["rows"][0])
        lines += [_PAIRS, told, "", _told_when(made, "pairs")]
    return lines


def merge_counts(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Keep what a campaign on a copy of the checkout counted, and write the page."""
    for name, made in after.items():
        if made != before.get(name):
            _keep(name, made)


def page_of(counts: dict[str, Any]) -> str:
    """Return the page."""
    made = counts["inputs"]
    lines = [_HEAD, *_table_of_inputs(made["rows"]), "", _told_when(made, "class")]
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
    lines += ["", _told_when(made, "fault"), *_bounds_of(counts), _TAIL.rstrip(), ""]
    return "\n".join(lines)


def _told_when(made: dict[str, Any], key: str) -> str:
    """Return when, with which seeds and of which code rows were made: not all need be at once."""
    times: dict[str, list[str]] = {}
    for row in made["rows"]:
        times.setdefault(_moment({**made, **row}), []).append(row[key])
    first, *others = times.items()
    told = first[0] + "".join(f"; {when}: {', '.join(names)}" for when, names in others)
    return f"{told[0].upper()}{told[1:]}."


def _moment(made: dict[str, Any]) -> str:
    words = [f"seed {made['seed']}"] if made["seed"] else []
    words += [made["day"], *([f"code of {made['commit']}"] if made.get("commit") else [])]
    return ", ".join(words)


def _when(seed: int) -> dict[str, Any]:
    commit = os.environ.get(COMMIT, "")
    return {"seed": seed, "day": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit}


def _keep_some(name: str, seed: int, rows: list[dict[str, Any]], key: str) -> None:
    """Keep rows; where only some were tried again, among those that are known."""
    counts = json.loads(_COUNTS.read_text()) if _COUNTS.exists() else {}
    when, made = _when(seed), counts.get(name, {"rows": []})
    before = {"commit": "", **{one: made[one] for one in when if one in made}}
    new = {row[key]: {**row, **when} for row in rows}
    known = [new.pop(row[key], {**before, **row}) for row in made["rows"]]
    _keep(name, {**when, "rows": [*known, *new.values()]})


def _keep(name: str, made: dict[str, Any]) -> None:
    counts = json.loads(_COUNTS.read_text()) if _COUNTS.exists() else {}
    counts[name] = made
    _COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
    if {"inputs", "faults"} <= set(counts):
        _PAGE.write_text(page_of(counts))


def _sum(made: dict[str, Any], name: str) -> int:
    return sum(row[name] for row in made["rows"])


def _table_of_inputs(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| class of input | inputs | right | accepted | documented error | defect |"]
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
