"""Any two traces as a run of two ranks: every analysis answers, or says in one line why not.

Files of a run come from one program; those of two have no common clock, collectives, steps or
devices, and often not the same tables. What compares ranks must bear that.
"""

from __future__ import annotations

import json
import random
import shutil
import traceback
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

import traceprof
from tests.reliability.tally import Pairs
from tests.reliability.worker import ACCEPTED, DEFECT, REFUSED
from traceprof.analysis import analysis_names
from traceprof.cli import app
from traceprof.errors import TraceprofError
from traceprof.formats import open_trace
from traceprof.render.registry import render
from traceprof.session.answer import answer
from traceprof.session.opening import Opening
from traceprof.session.run import Run, open_run

_MOST_KERNELS: Final = 600
_PAGES: Final = (("analyze",), ("report", "-o"), ("timeline", "-o"), ("elastic",), ("nodes",))


def small_traces(files: Sequence[Path], folder: Path) -> list[Path]:
    """Cut a piece of some hundred kernels from the middle of each trace; return the pieces."""
    folder.mkdir(parents=True)
    return [_piece(file, folder / f"{place}-{file.name}") for place, file in enumerate(files)]


def _piece(file: Path, piece: Path) -> Path:
    trace = open_trace(file)
    starts = sorted((trace.kernels if len(trace.kernels) else trace.copies)["start_ns"].tolist())
    if len(starts) <= _MOST_KERNELS:
        shutil.copyfile(file, piece)
        return piece
    first = (len(starts) - _MOST_KERNELS) // 2
    zero = trace.span.start_ns
    begin, end = (starts[i] - zero for i in (first, first + _MOST_KERNELS))
    traceprof.open(file).within(f"{begin / 1e3:.3f}us..{end / 1e3:.3f}us").cut(piece)
    return piece


def pairs_of(traces: Sequence[Path], rng: random.Random, count: int) -> list[tuple[Path, Path]]:
    """Return ``count`` pairs, drawn by chance; all of them where that is more than there are."""
    every = list(combinations_with_replacement(traces, 2))
    return every if count >= len(every) else rng.sample(every, count)


def try_pairs(pairs: Sequence[tuple[Path, Path]], folder: Path) -> Pairs:
    """Ask each pair everything that can be asked of a run."""
    tally = Pairs()
    folder.mkdir(parents=True, exist_ok=True)
    for number, pair in enumerate(pairs):
        tally.n_pairs += 1
        manifest = pair[0].with_name("manifest.json")
        ranks = [{"rank": i, "host": "ab"[i], "file": one.name} for i, one in enumerate(pair)]
        manifest.write_text(json.dumps({"traceprof_run": 1, "ranks": ranks}))
        for verdict, text in _asked(manifest, folder / "out.html", number):
            tally.verdicts[verdict] += 1
            if verdict == DEFECT:
                tally.defects.append(f"{pair[0].name}, {pair[1].name}: {text}")
    return tally


def _asked(manifest: Path, output: Path, number: int) -> Iterator[tuple[str, str]]:
    run = open_run([manifest], Opening(is_cached=False))
    for name in analysis_names():
        yield _answered(run, name)
    page = _PAGES[number % len(_PAGES)]
    output.unlink(missing_ok=True)
    yield _of_command([page[0], str(manifest), *page[1:], *([str(output)] if page[1:] else [])])


def _answered(run: Run, name: str) -> tuple[str, str]:
    try:
        document = answer(run, [name])
        for form in ("text", "json"):
            render(form, document)
    except TraceprofError as error:
        is_line = "\n" not in str(error)
        return (REFUSED, "") if is_line else (DEFECT, f"{name}: {error}")
    except Exception:
        return DEFECT, f"{name}: {traceback.format_exc()[-700:]}"
    return (REFUSED, "") if document.missing else (ACCEPTED, "")


def _of_command(command: list[str]) -> tuple[str, str]:
    done = CliRunner().invoke(app, command)
    if done.exit_code == 0:
        return ACCEPTED, ""
    lines = done.stderr.splitlines()
    is_told = bool(lines) and all(line.startswith("traceprof: ") for line in lines)
    if isinstance(done.exception, SystemExit) and is_told:
        return REFUSED, ""
    where = traceback.format_exception(done.exception) if done.exception else [done.stderr]
    return DEFECT, f"{command[0]}: {''.join(where)[-700:]}"
