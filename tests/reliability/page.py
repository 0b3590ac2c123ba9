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

Made by `scripts/fuzz --write`, `scripts/faults --write` and `scripts/bounds --write`; short runs
are tests (`tests/reliability`), which CI runs. They are reproducible: `scripts/fuzz --seed S
--class C --one N` makes an input again and says what became of it.

## Damaged files

Each input is an example of its class, damaged as random numbers from the seed say: truncated at
any percent, bits flipped, bytes put in, pages moved, zeroed or doubled, headers and tails changed;
values replaced by NULL, texts, infinities and numbers at the borders of int64; columns and tables
taken away, doubled, renamed, made views; names of up to 100 000 characters, with controls and marks
of direction; nesting up to 100 000 deep; gzip with bad sums, members and bombs of 100 MB. One
command is run on it (of `every_form` all, which must have the same numbers and warnings), within
{CPU_S:g} s of CPU and {MEMORY_BYTES >> 30} GiB.

*right*: kernels are those that plain `sqlite3` or `json` finds in the damaged file, each with its
length, and what is left out is warned of; of `same_execution` all answers are those about the
execution itself. *accepted*: an answer without impossible numbers or
controls in it, that nothing independent was held against. *documented error*: one line, exit code
2 to 5. *defect*: anything else, also an input that was changed.
"""
_MIDDLE: Final = """
## Faults of the machine

Injected into every command that writes (`tests/reliability/workplace.py` lists them), by a process
that has imported everything and forks: what is hit is the work. *survived*: inputs are as they
were, an output is the old one or a whole new one, the runs that were kept are there row by row,
nothing is left behind (but for the hidden `.part` of a process that was killed −9, and what the
system refused to remove), and what could not be done is said in one line. A step of writing is each
opening, renaming, linking, removing and making of a file, and each connection to a database.
*failed*: how many of the commands could not do what was asked, or were ended. Processes and
threads that do not start, and reads as of a network disk, are brought about by a library before the
program (`tests/reliability/machine.c`); some questions are asked there, too, and *survived* is
then: the same answer, or one line instead.
"""
_BOUNDS: Final = f"""
## Bounds

Made by `scripts/bounds --write`. Of a file of n bytes (unpacked, where it is gzipped) every
command below takes at most {FLOOR_BYTES >> 20} MiB + {BYTES_PER_BYTE} n of memory, Python and all
modules included, and {FLOOR_CPU_S} s + {CPU_S_PER_MB} s per MB of CPU time on a slow machine. They
were run on the files of `tests/corpus` and on real traces (how many of them: below), each in a
process of its own and with nothing kept; *share* is the most that one took of the memory it may.
"""
_GROWTH: Final = f"""
Time grows no faster than the file: each of these shapes was written twice, the second time
{GROWN} times as large, and all commands asked about both. *grew* is the most that the CPU time of
one of them did: up to {HEADROOM:g} times {GROWN} is allowed for n log n and a busy machine, what is
quadratic would be {GROWN * GROWN}. What has a row for each pair of rows, such as the host's work in
the gaps of 10 000 devices of one process, is refused in one line above 32 pairs a row.
"""
_PATTERNS: Final = f"""
No regular expression takes more than its text is long. Of each one that is compiled, composed ones
too, texts are made: what it repeats, or a piece of it, many times over, behind what leads up to
that and before what makes the match fail. A matcher that backtracks as Python's does counts its
steps on {SIZES[0]} and on {SIZES[1]} characters ({LARGER[0]} and {LARGER[1]} where a repeat has an
upper bound). *grew* is the most that steps grew, as a share of what the text did: 1 is linear, what
is quadratic would be {SIZES[1] // SIZES[0]}; up to {ALLOWED:g} is allowed. Patterns of the user's
own are matched by RE2.
"""
_PAIRS: Final = """
## Any two traces as a run

A run's files come from one program; those of two have no clock, collectives, steps, devices or
tables in common. Of pairs of real traces (pieces of them, of at most 600 kernels, each also with
itself) a manifest made runs of two ranks, of which every analysis was asked, and one of `analyze`,
`report`, `timeline`, `elastic` and `nodes`.
"""
_TAIL: Final = """
## What is not covered

- nsys's own report files (`.nsys-rep`): they are read by nsys, whose exports are damaged instead.
- The numbers of damaged files beyond kernels and their lengths; those of whole files are held
  against others by the tests of truth.
- Files of gigabytes, real network file systems (what their reads do is done by a library that is
  loaded before the program), other systems than Linux, power that fails: that data
  is on the disk before it gets its name is tested by the order of what is asked of the system
  (`tests/test_files.py`), not by pulling a plug.
- Two faults at once, and a second Ctrl-C while the first one tidies up.
- `record` under nsys, nvprof and with cupti: see `tests/recording`; here it is the embedded
  recorder. It and `recover` are killed before each of their steps, and the time of day is set
  while it records, by `tests/reliability/test_recover.py` and `test_machine.py`.
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
    lines = ["| room | patterns | texts | grew | beyond |", "|---|--:|--:|--:|--:|"]
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
    lines = ["| command | files | most CPU s | most MiB | share | beyond |"]
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
        f"{row['pairs']} pairs, {n_asked} questions: {row[ACCEPTED]} answered, {row[REFUSED]} in "
        f"one line why not (not recorded, no steps in common), {row[DEFECT]} defects."
    )


def _bounds_of(counts: dict[str, Any]) -> list[str]:
    lines = []
    if "costs" in counts:
        made = counts["costs"]
        lines += [_BOUNDS, *_rows_of_costs(made["rows"]), "", _told_when(made, "command")]
    if "growth" in counts:
        lines += [_GROWTH, "| shape | events | grew | of | most CPU s | most MiB | beyond |"]
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
