"""Reading logs that tests write, and those beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tests.requirements import require
from traceprof.logs import read_log
from traceprof.model.summary import Summary


def shared(name: str) -> Path:
    """Return a log beside the checkout; the test skips where these are not there."""
    return Path(require("logs")) / name


def one_run(folder: Path, text: str | bytes, name: str = "a.log") -> Summary:
    """Return the one run of a log of that text."""
    runs = all_runs(folder, text, name)
    assert len(runs) == 1
    return runs[0]


def all_runs(folder: Path, text: str | bytes, name: str = "a.log") -> list[Summary]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path)


def rows(run: Summary, metric: str, over: str = "") -> pd.DataFrame:
    """Return the values of a metric."""
    table = run.table("metrics").to_frame()
    table = table[table["metric"] == metric]
    return table[table["over"] == over] if over else table


def kinds(run: Summary) -> list[str]:
    return run.table("events").to_frame()["kind"].tolist()


def said(run: Summary) -> str:
    return "\n".join(note.text for note in run.notes)


def scope_of(run: Summary, measure: str) -> str:
    table = run.table("measures").to_frame()
    return str(table.loc[table["measure"] == measure, "scope"].iloc[0])
