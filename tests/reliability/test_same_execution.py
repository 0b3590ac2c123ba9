"""One execution in all formats, rewritten in ways that keep it valid, has the same answers."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.reliability.same_execution import ASKED, FORMS, execution, written, wrong_answers
from traceprof.cli import app


def printed(path: Path) -> str:
    command = ["show", ",".join(ASKED), str(path), "--window", "all", "--json", "--no-cache"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    return done.stdout


@given(st.integers(0, 10**9), st.sampled_from([*FORMS]), st.integers(0, 4))
@settings(max_examples=16, deadline=None, derandomize=True)
def test_answers_are_the_same_in_every_form(seed: int, form: str, n_changes: int) -> None:
    rng = random.Random(seed)
    trace = execution(rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        changes = written(trace, form, path, rng, n_changes)
        assert wrong_answers(trace, printed(path)) == [], changes


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET [end] = [end] + 1 WHERE rowid = 1",
        "UPDATE NVTX_EVENTS SET [end] = [end] - 1 WHERE rowid = 1",
    ],
)
def test_what_is_not_the_same_is_seen(harm: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    trace, path = execution(rng), tmp_path / "trace"
    written(trace, "nsys", path, rng, 0)
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(harm).rowcount == 1
    assert wrong_answers(trace, printed(path))
