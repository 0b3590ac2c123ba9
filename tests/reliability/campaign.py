"""The campaign: every class of input in turn, in a worker that is started anew where it dies."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from typing import Final

from tests.reliability.inputs import CHEAP, CLASSES
from tests.reliability.worker import CPU_S, DEFECT
from tests.requirements import ROOT

_OFTEN: Final = 4
_PATIENCE_S: Final = 30 * CPU_S
"""A worker that says nothing for so long hangs; the machine may be busy."""


@dataclass(slots=True)
class Tried:
    """What became of the inputs of one class."""

    name: str
    verdicts: Counter[str] = field(default_factory=Counter)
    ways: set[str] = field(default_factory=set)
    defects: list[str] = field(default_factory=list)


class Worker:
    """A worker's process."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder.parent / f"{folder.name}.log").open("w"),
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OPENBLAS_NUM_THREADS": "1",
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                "NO_COLOR": "1",
                "TRACEPROF_CACHE": "0",
            },
        )

    def ask(self, seed: int, kind: str, number: int) -> tuple[str, str, str] | None:
        """Return the answer; None where the worker died or hangs."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps([seed, kind, number]) + "\n")
            stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([stdout], [], [], _PATIENCE_S)
        line = stdout.readline() if ready else ""
        return tuple(json.loads(line)) if line else None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def run_campaign(
    folder: Path,
    seed: int,
    count: int,
    *,
    first: int = 0,
    classes: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    seconds: float | None = None,
) -> list[Tried]:
    """Try ``count`` inputs, all classes in turn; stop after ``seconds`` if those are given."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [one.__name__ for one in CLASSES if not classes or one.__name__ in classes]
    tried = {name: Tried(name) for name in names}
    # What costs little is tried more often, once every class was.
    cheap = [name for name in names if name in CHEAP]
    turns = chain(names, cycle([*cheap * (_OFTEN - 1), *names]))
    worker = Worker(folder / "work")
    until = None if seconds is None else time.monotonic() + seconds
    try:
        for _ in range(count):
            if until is not None and time.monotonic() > until:
                break
            kind = next(turns)
            turn = first + tried[kind].verdicts.total()
            told = worker.ask(seed, kind, turn)
            if told is None:
                worker.close()
                worker = Worker(folder / "work")
                told = (DEFECT, "?", "the process died")
            verdict, how, text = told
            tried[kind].verdicts[verdict] += 1
            tried[kind].ways.add(how)
            if verdict == DEFECT:
                line = f"seed {seed} {kind} {turn} ({how}): {text}"
                tried[kind].defects.append(line)
                say(line)
    finally:
        worker.close()
    return list(tried.values())
