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
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations_with_replacement
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

import traceprof
from tests.reliability.tally import Pairs
from tests.reliability.worker import ACCEPTED, DEFECT, REFUSED
from traceprof.cli import app
from traceprof.errors import TraceprofError
from traceprof.formats import open_trace
from traceprof.measures import analysis_names
from traceprof.render.registry import render
from traceprof.session.answer import answer
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run

_MOST_KERNELS: Final = 600
_PAGES: Final = (("analyze",), ("report", "-o"), ("timeline", "-o"), ("elastic",), ("nodes",))


def small_traces(files: Sequence[Path], folder: Path) -> list[Path]:
    """Cut a piece of some hundred kernels from the middle of each trace; return the pieces."""
    folder.mkdir(parents=True)
    return [_piece(file, folder / f"{place}-{file.name}") for place, file in enumerate(files)]


def _piece(file: Path, piece: Path) -> Path:
    trace = open_trace(file)
    starts = sorted(
        (trace.kernels.to_frame() if len(trace.kernels.to_frame()) else trace.copies.to_frame())[
            "start_ns"
        ].tolist()
    )
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


def try_pairs(pairs: Sequence[tuple[Path, Path]], folder: Path, n_processes: int = 1) -> Pairs:
    """Ask each pair everything that can be asked of a run; the pairs share the processes."""
    numbered = list(enumerate(pairs))
    shares = [numbered[place::n_processes] for place in range(n_processes)]
    folders = [folder / str(place) for place in range(n_processes)]
    if n_processes == 1:
        return _tried(shares[0], folders[0])
    tally = Pairs()
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as processes:
        for own in processes.map(_tried, shares, folders):
            tally.n_pairs += own.n_pairs
            tally.verdicts.update(own.verdicts)
            tally.defects += own.defects
    return tally


def _tried(pairs: Sequence[tuple[int, tuple[Path, Path]]], folder: Path) -> Pairs:
    tally = Pairs()
    folder.mkdir(parents=True)
    manifest = folder / "manifest.json"
    for number, pair in pairs:
        tally.n_pairs += 1
        for one in pair:
            if not (folder / one.name).exists():
                shutil.copyfile(one, folder / one.name)
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
