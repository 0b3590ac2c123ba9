"""``traceprof elastic``: a log alone, beside another, as a page; and the logs that others wrote."""

import json

import pytest
from typer.testing import CliRunner

from tests.requirements import LOGS, require
from traceprof.cli import app

FIXED = """Script setup took 5.0
Epoch 0 took 20.0 loss: 3.0 accuracy: 0.1
Epoch 1 took 10.0 loss: 2.0 accuracy: 0.2
Epoch 2 took 10.0 loss: 1.0 accuracy: 0.3
Total train time is 46.0
"""
ELASTIC = """Script setup took 5.0
Epoch 0 took 20.0 loss: 3.0 accuracy: 0.1
initialize_workers took 3.0
Script setup took 2.0
Epoch time lost 9.0
Epoch 1 took 40.0 loss: 2.0 accuracy: 0.2
Epoch 2 took 12.0 loss: 1.0 accuracy: 0.3
Total train time is 80.0
"""


def run(*arguments):
    done = CliRunner().invoke(app, ["elastic", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def logs(tmp_path):
    paths = tmp_path / "fixed.log", tmp_path / "elastic.log"
    for path, text in zip(paths, (FIXED, ELASTIC), strict=True):
        path.write_text(text)
    return paths


def test_two_logs_side_by_side(logs):
    shown = " ".join(run(*logs).split())
    assert "elastic took 80.0 s, 34.0 s more than fixed (46.0 s)." in shown
    assert "1 restart lost 9.00 s" in shown
    assert "5.00 s with known cause, 4.00 s with unknown cause" in shown
    # 40 s, of which 9 were lost and 12 are what the next epoch takes.
    assert "12.0 s typical epoch time (epochs 2), " in shown
    assert "19.0 s with unknown cause" in shown


def test_what_programs_read(logs):
    told = json.loads(run(logs[1], "--json"))
    (row,) = told["results"]["restarts"]["tables"]["restarts"]["rows"]
    assert row["lost_ns"] == 9_000_000_000
    assert row["unexplained_ns"] == 4_000_000_000


def test_the_page_stands_alone(logs, tmp_path):
    page = tmp_path / "job.html"
    run(*logs, "-o", page)
    text = page.read_text()
    assert text.count('class="job"') == 2
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_a_trace_without_lives_or_epochs_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes.log").write_text("nothing of interest\n")
    done = CliRunner().invoke(app, ["elastic", str(tmp_path / "notes.log")])
    assert done.exit_code != 0


def test_the_elastic_job_of_the_notes_against_the_fixed_one():
    """Truths from ../shared/logs/CATALOGUE.md."""
    require("logs")
    paths = LOGS / "elastic-fixed-8.log", LOGS / "elastic-cycle-20min-4+4.log"
    told = json.loads(run(*paths, "--json"))

    def rows(name, table=None):
        return told["results"][name]["tables"][table or name]["rows"]

    def seconds(row, *names):
        return [round(row[f"{name}_ns"] / 1e9, 1) for name in names]

    first, second = rows("restarts")
    parts = ("lost", "initialization", "setup", "unexplained")
    assert (first["epoch"], *seconds(first, *parts)) == (12, 115.3, 33.6, 27.1, 54.6)
    assert (second["epoch"], *seconds(second, *parts)) == (19, 84.8, 3.0, 28.1, 53.7)
    epochs = rows("epochs")
    assert len(epochs) == 20
    assert seconds(epochs[12], "duration", "base", "difference") == [675.7, 50.2, 625.4]
    assert seconds(epochs[19], "duration", "base", "difference") == [448.0, 50.2, 397.8]
    assert seconds(epochs[12], "beyond") == [484.3]
    assert seconds(epochs[19], "beyond") == [287.1]
    total = rows("parts")[-1]
    assert seconds(total, "base", "duration", "difference") == [1648.1, 2772.4, 1124.3]
    left = next(row for row in rows("parts") if row["part"] == "unaccounted time")
    assert seconds(left, "base", "duration") == [250.4, 218.2]
