"""The few calls that benchmarks make of traceprof, of the API of 0.1 or of the one since.

Runs with the traceprof that PYTHONPATH names, so that two states are measured by one script:

    either_api.py read TRACE                     read every table
    either_api.py analyses RUN SMALL LIMIT_S     time every analysis; prints JSON
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["analysis_names", "open_run", "read_whole"]


def read_whole(path: str) -> None:
    """Read every table of a trace."""
    from traceprof.formats import open_trace

    open_trace(path)


def analysis_names() -> list[str]:
    """Return the names of all analyses."""
    room = "measures" if find_spec("traceprof.measures") else "analysis"
    return [entry.name for entry in import_module(f"traceprof.{room}").ANALYSES]


def open_run(path: str) -> Callable[[str], object]:
    """Return a function that runs the analysis of a name on what ``path`` holds.

    Everything is read, and cut to the window that a user gets who names none.
    """
    if find_spec("traceprof.session") is not None:
        return _open_session(path)
    # The modules of 0.1, by their names then.
    opening, selection, analysis = (
        import_module(f"traceprof.{name}")
        for name in ("cli.opening", "model.selection", "analysis")
    )
    whole, _ = opening.open_with_notes([path])
    part = whole.within(selection.select(whole, None).window)
    return lambda name: analysis.run_analysis(analysis.load_analysis(name), part)


def _open_session(path: str) -> Callable[[str], object]:
    import traceprof

    if hasattr(traceprof, "open"):
        run = traceprof.open(path)
    else:
        from traceprof.session.run import open_run as open_paths

        run = open_paths([path])
    run.of_ranks()  # else the first analyses would pay for the reading
    answer: Callable[[str], object] = run.result
    return answer


def measure_analyses(path: str, small: str, limit_s: float) -> dict[str, Any]:
    """Return CPU seconds: to open, of each analysis by itself, of all of them in turn.

    Each one runs in a fork of the process that has opened the run, so that it finds nothing that
    another has computed. The run ``small`` is analyzed first, not to measure what is imported.
    """
    _run_all(open_run(small), analysis_names())
    begin = _cpu_s()
    run = open_run(path)
    opened = _cpu_s() - begin
    alone = {name: _forked(partial(run, name), limit_s) for name in analysis_names()}
    begin = _cpu_s()
    _run_all(run, [name for name, cost in alone.items() if isinstance(cost, float)])
    return {"open": opened, "alone": alone, "in turn": _cpu_s() - begin}


def _run_all(run: Callable[[str], object], names: Iterable[str]) -> None:
    for name in names:
        with suppress(Exception):
            run(name)


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _forked(action: Callable[[], object], limit_s: float) -> float | str:
    """Return the CPU seconds of ``action`` in a fork of this process, or why there are none."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, _answer(action))
        os._exit(0)
    os.close(writer)
    is_done = bool(select.select([reader], [], [], limit_s)[0])
    if not is_done:
        os.kill(child, signal.SIGKILL)
    answer = os.read(reader, 4096) if is_done else b""
    os.close(reader)
    os.waitpid(child, 0)
    return json.loads(answer) if answer else f"more than {limit_s:g} s"


def _answer(action: Callable[[], object]) -> bytes:
    begin = time.process_time(), _cpu_s()
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the others are measured all the same
        if os.environ.get("TRACEPROF_DEBUG"):
            traceback.print_exc()
        return json.dumps(f"{type(error).__name__}: {error}"[:1000]).encode()
    # The clock of the process is finer than that of its children, who rarely exist.
    own, whole = time.process_time() - begin[0], _cpu_s() - begin[1]
    return json.dumps(max(own, whole) if whole > own + 0.05 else own).encode()


def main() -> None:
    match sys.argv[1:]:
        case ["read", path]:
            read_whole(path)
        case ["analyses", path, small, limit_s]:
            print(json.dumps(measure_analyses(path, small, float(limit_s))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
