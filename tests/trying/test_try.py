"""`traceprof try` with real programs, each with one fault that one change mends, or breaks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recording.conftest import environment_of_test
from tests.requirements import require

PROGRAMS = Path(__file__).parents[2] / "fixtures" / "programs"
ONE_ROUND = ("--runs", "1")
pytestmark = pytest.mark.torch


class Tried:
    """What a command said, and what the program told of itself."""

    def __init__(self, done, log):
        self.done = done
        self.truth = [json.loads(line) for line in log.read_text().splitlines()]
        self.found = json.loads(done.stdout) if done.returncode == 0 else {}

    def rows(self, table="changes"):
        return {
            row["change" if table == "changes" else "run"]: row
            for row in self.found["results"]["tried"]["tables"][table]["rows"]
        }


@pytest.fixture
def tried(tmp_path):
    require("torch")

    def run(fault, *options, program=None, check=True, patience_s="120"):
        log = tmp_path / "log"
        log.touch()
        command = program or (sys.executable, PROGRAMS / "tried.py", fault)
        environment = environment_of_test(TRIED_LOG=str(log), TRACEPROF_TRY_PATIENCE_S=patience_s)
        done = subprocess.run(
            [sys.executable, "-m", "traceprof", "try", "--json", *options, "--", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return Tried(done, log)

    return run


def pairs_of(found):
    """Return each run but the first, short one, with the ends of its steps by its own clock."""
    return list(zip(found.rows("runs").values(), found.truth[1:], strict=True))


def own_mean_ns(row, ends_s, warmup=5):
    """Return the mean of the steps that were measured, by the program's own clock."""
    n_steps = row["steps_count"]
    return 1e9 * (ends_s[warmup + n_steps - 1] - ends_s[warmup - 1]) / n_steps


def assert_clocks_agree(found):
    """What was measured of each run is what the program's own clock says of the same steps.

    The system may take the processor away between the two readings of a step's end, for some
    milliseconds: of the steps that are compared, that must be a small part.
    """
    for row, ends_s in pairs_of(found):
        if not row["failure"]:
            assert row["step_ns"] == pytest.approx(own_mean_ns(row, ends_s), rel=0.03)


def test_a_slow_loader_is_mended_by_workers(tried):
    found = tried("workers", "--change", "workers=6", "--steps", "120", "--runs", "3")
    row = found.rows()["workers=6"]
    assert row["verdict"] in ("faster", "not decided")  # not decided: the machine is busy
    assert row["saving_ratio"] > 0.2  # of 30 ms a batch, in six processes, 5 are left
    assert row["losses"]["text"] == "the same"
    assert "num_workers=6" in row["lines"]
    assert_clocks_agree(found)


def test_one_run_of_each_has_no_verdict_whatever_it_measures(tried):
    changes = "set_to_none,foreach_optimizer,env=NOBODY_READS=1"
    found = tried("nothing", "--change", changes, "--steps", "30", *ONE_ROUND)
    for row in found.rows().values():
        assert row["verdict"] == "not decided"
        assert row["low_ratio"] is None
        assert "at least 3 are necessary" in row["reason"]["text"]
        assert row["before_cpu_ns"] > 0
    assert all(row["load"] >= 0 for row in found.rows("runs").values())
    assert_clocks_agree(found)


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("channels_last", "channels_last,bf16"),
        ("optimizer", "foreach_optimizer,fused_optimizer"),
        ("threads", "threads=2"),
    ],
)
def test_what_a_cpu_may_gain_is_measured_whatever_it_gives(tried, monkeypatch, fault, changes):
    """It may save or cost, by the machine: the program's own clock says which."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = tried(fault, "--change", changes, "--steps", "60", *ONE_ROUND)
    runs = found.rows("runs")
    for name, row in found.rows().items():
        own = [one["step_ns"] for one in runs.values() if one["change"] == name]
        base = [one["step_ns"] for one in runs.values() if not one["change"]]
        saved = 1 - (sum(own) / len(own)) / (sum(base) / len(base))
        assert row["saving_ratio"] == pytest.approx(saved, abs=0.02)
    if "bf16" in found.rows():
        assert "differ from step" in found.rows()["bf16"]["losses"]["text"]
    assert_clocks_agree(found)


@pytest.mark.parametrize(
    ("fault", "verdict", "reason"),
    [
        ("crashes", "fails", "the workers hold a lock"),
        ("hangs", "hangs", "traceprof killed the program"),
        ("memory", "out of memory", "allocate"),
        ("diverges", "diverges", "not finite from step 8"),
    ],
)
def test_a_change_that_breaks_the_program_is_a_row_with_its_reason(tried, fault, verdict, reason):
    patience_s = "15" if fault == "hangs" else "120"
    found = tried(fault, "--change", "workers=1", "--steps", "10", patience_s=patience_s)
    row = found.rows()["workers=1"]
    assert row["verdict"] == verdict
    assert reason in row["reason"]
    assert next(iter(found.rows("runs").values()))["failure"] == ""


def test_without_being_asked_what_applies_is_tried(tried):
    found = tried("workers", "--steps", "8", *ONE_ROUND)
    assert next(iter(found.rows())).startswith("workers=")


def test_ranks_are_changed_alike_and_measured_together(tried):
    program = (
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"),
        *(PROGRAMS / "train_ddp.py", "--steps", "60"),
    )
    found = tried(
        "",
        "--change",
        "gradient_as_bucket_view",
        "--steps",
        "10",
        *ONE_ROUND,
        program=program,
    )
    row = found.rows()["gradient_as_bucket_view"]
    assert row["verdict"] == "not decided"
    assert row["after_ns"] > 0
    assert all(one["steps_count"] == 10 for one in found.rows("runs").values())


@pytest.mark.parametrize("shape", ["trainer", "lightning", "accelerate"])
def test_frameworks_are_ended_in_order(tried, shape):
    if shape != "trainer":
        require(shape)
    else:
        require("transformers")
    program = (sys.executable, PROGRAMS / f"shape_{shape}.py")
    found = tried(
        "",
        "--change",
        "set_to_none",
        "--steps",
        "4",
        *ONE_ROUND,
        program=program,
    )
    assert found.rows()["set_to_none"]["verdict"] == "not decided"
    assert all(one["steps_count"] for one in found.rows("runs").values())


def test_ctrl_c_leaves_what_was_measured(tmp_path):
    require("torch")
    command = [sys.executable, PROGRAMS / "tried.py", "nothing"]
    asked = ("--steps", "10", "--change", "set_to_none,foreach_optimizer")
    process = subprocess.Popen(
        [sys.executable, "-m", "traceprof", "try", "--json", *asked, "--", *command],
        cwd=tmp_path,
        env=environment_of_test(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("traceprof: run 2,"):
            process.send_signal(signal.SIGINT)
            break
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found = json.loads(said)
    assert any("interrupted" in note["text"] for note in found["notes"])
    rows = found["results"]["tried"]["tables"]["changes"]["rows"]
    assert [row["change"] for row in rows] == ["set_to_none"]


def test_a_notebook_is_refused_with_the_reason(tried):
    done = tried("", program=("jupyter", "execute", "a.ipynb"), check=False).done
    assert done.returncode == 2
    assert "convert it to a script" in done.stderr


def test_a_program_without_torch_is_told_why(tried):
    done = tried("", program=(sys.executable, "-c", "print(1)"), check=False).done
    assert done.returncode == 5
    assert "did not import torch" in done.stderr


def test_what_the_program_writes_is_listed_or_goes_with_the_copy(tried, tmp_path):
    program = (
        sys.executable,
        "-c",
        "import sys, torch; sys.argv = ['x', 'nothing']; torch.save(1, 'model.pt');"
        f"sys.path.insert(0, {str(PROGRAMS)!r});"
        f"exec(open({str(PROGRAMS / 'tried.py')!r}).read())",
    )
    asked = ("--change", "set_to_none", "--steps", "3", *ONE_ROUND)
    found = tried("", "--scratch", *asked, program=program)
    assert not (tmp_path / "model.pt").exists()
    found = tried("", *asked, program=program)
    notes = " ".join(note["text"] for note in found.found["notes"])
    assert "the runs wrote 2 files in this folder: log, model.pt" in notes


def test_the_runs_are_kept_and_can_be_compared(tried, tmp_path):
    db = str(tmp_path / "runs.sqlite")
    tried(
        *("nothing", "--change", "set_to_none", "--steps", "8", *ONE_ROUND),
        *("--save", "--name", "mine", "--db", db),
    )
    compared = subprocess.run(
        [
            *(sys.executable, "-m", "traceprof", "compare", "--db", db),
            *("mine-none", "mine-set_to_none"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert "mine-set_to_none" in compared.stdout
