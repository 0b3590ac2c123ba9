"""What `traceprof try` measured lies beside the trace, and its findings tell it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from traceprof.cli import app
from traceprof.session.options import tried_savings_path
from traceprof.session.tried import TriedAdvice, read_tried_savings, write_tried_savings

TRACE = Path(__file__).parents[2] / "fixtures" / "traces" / "before.sqlite.gz"
LONG_AGO_S = 1_700_000_000


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEPROF_CACHE", str(tmp_path / "cache"))
    path = tmp_path / TRACE.name
    shutil.copyfile(TRACE, path)
    os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return path


def said(*arguments: object) -> str:
    done = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["findings", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_findings_say_what_their_advice_saved(trace: Path) -> None:
    before = said(trace)
    assert "Input-bound" in before
    assert "tried with" not in before
    write_tried_savings(trace, [TriedAdvice("input_bound", "workers=4", 0.4)])
    told = said(trace)  # though answers are kept
    assert "tried with `traceprof try`: workers=4 saved 40.0% of step time" in told
    rows = json.loads(said(trace, "--json"))["results"]["findings"]["tables"]["findings"]["rows"]
    measured = {row["rule"]: row.get("measured_ratio") for row in rows}
    assert measured.pop("input_bound") == 0.4
    assert not any(measured.values())


def test_of_a_rule_the_most_is_kept(trace: Path) -> None:
    write_tried_savings(
        trace,
        [TriedAdvice("precision", "bf16", 0.5), TriedAdvice("precision", "tf32", 0.2)],
    )
    assert read_tried_savings(trace) == {"precision": TriedAdvice("precision", "bf16", 0.5)}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"rules": 3}', '{"rules": {"precision": {}}}', "[" * 100_000),
        *(
            '{"rules": {"a": {"change": 1,',
            '{"rules": {"a": {"change": "b", "saving_ratio": NaN}}}',
        ),
    ],
)
def test_a_file_of_somebody_else_tells_nothing(trace: Path, text: str) -> None:
    tried_savings_path(trace).write_text(text)
    assert read_tried_savings(trace) == {}
    assert "tried with" not in said(trace)
