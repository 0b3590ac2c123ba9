"""Recording from inside a program: what is recorded, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import traceprof as tp
from tests.recording.conftest import TORCHRUN, record
from tests.requirements import ROOT, require
from traceprof.errors import RecordingError, UsageError
from traceprof.recording import session

PROGRAM = """
import json, os, sys, torch
import traceprof as tp

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
loader = torch.utils.data.DataLoader([torch.ones(4)] * 80, batch_size=8)

def patched():
    return [
        torch.nn.Module.__call__, torch.autograd.backward, torch.save, torch.Tensor.to,
        torch.optim.AdamW.step, optimizer.step, torch.utils.data.DataLoader.__iter__,
        torch.autograd.profiler.profile.__init__,
    ]

def train(count):
    for _, batch in zip(range(count), loader):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()

def told(name):
    run = tp.open(name).within("all")
    frame = run.steps().table.to_frame()
    return {
        "steps": frame["step"].tolist(), "samples": frame["samples_count"].tolist(),
        "operators": len(run.operators().table),
    }

train(2)
before, environment = patched(), dict(os.environ)
with tp.record("first.sqlite"):
    train(6)
train(1)
with tp.record("second.sqlite", steps="2..3"):
    train(5)
with torch.profiler.profile() as profile:
    train(1)
drawn_ahead = iter(torch.utils.data.DataLoader([torch.ones(4)] * 20, batch_size=8, num_workers=1))
next(drawn_ahead)
with tp.record("third.sqlite"):
    for batch in drawn_ahead:
        model(batch).sum().backward()
        optimizer.step()
print(json.dumps({
    "restored": patched() == before, "environment": dict(os.environ) == environment,
    "left": [one for one in sys.modules if one.startswith("_traceprof_runtime")],
    "first": told("first.sqlite"), "second": told("second.sqlite"),
    "profiled": len(profile.events()), "third": told("third.sqlite"),
}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def ran(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.torch
def test_a_training_that_was_set_up_before_is_recorded_and_left_as_it_was(folder: Path) -> None:
    require("torch")
    found = json.loads(ran(folder, PROGRAM).stdout)
    assert found["restored"]
    assert found["environment"]
    assert found["left"] == []
    assert found["first"]["steps"] == [0, 1, 2, 3, 4, 5]
    assert found["first"]["samples"] == [8.0] * 6
    assert found["first"]["operators"] > 0
    assert found["second"]["steps"] == [2, 3]
    assert found["profiled"] > 0
    assert found["third"]["samples"] == [8.0, 4.0]


@pytest.mark.torch
def test_ranks_that_train_together_record_again_and_again(folder: Path) -> None:
    require("torch")
    program = """
import os, torch, torch.distributed as dist, traceprof as tp

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def train(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()

train(2)  # in the first two DDP arranges its buckets
for name in ("RANK", "WORLD_SIZE"):  # not all launchers say it
    del os.environ[name]
for name in ("first/", "second/"):
    with tp.record(name):
        train(4)
        dist.all_reduce(torch.ones(10), async_op=True).wait()
    dist.barrier()
del model
dist.destroy_process_group()
"""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [*TORCHRUN, "program.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("first", "second"):
        run = tp.open(folder / name).within("all")
        assert run.ranks().table.to_frame()["rank"].tolist() == [0, 1]
        assert sorted(path.name for path in (folder / name).glob("rank*")) == [
            "rank0.sqlite",
            "rank1.sqlite",
        ]
        assert run.collectives().table.to_frame()["count"].sum() == 2 * (4 + 1)
        assert len(run.steps().table) == 2 * 4


def test_names_of_a_program_without_torch_are_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not tp.is_recording()
    with tp.record("run.sqlite") as recorded:
        assert tp.is_recording()
        for number in range(3):
            with tp.step(number, samples=16), tp.range("work"):
                tp.metric("loss", 1.0)
    assert not tp.is_recording()
    assert tp.range("work")(len) is len
    assert recorded.output == Path("run.sqlite")
    assert recorded.run.within("all").steps().table.to_frame()["samples_count"].tolist() == [16] * 3
    said = capsys.readouterr().err
    assert said.startswith("traceprof: recorded ")
    assert said.endswith(" of 1 process with torch: run.sqlite\n")
    assert not any(one.startswith("TRACEPROF_DIR") for one in os.environ)


def test_what_was_recorded_is_there_if_the_block_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), tp.record("run.sqlite") as recorded, tp.step():
        _ = 1 / 0
    assert len(recorded.run.within("all").steps().table) == 1
    assert not tp.is_recording()


def test_requests_that_mean_nothing_are_errors_before_anything_is_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "there.sqlite").touch()
    for output, why in (("there.sqlite", "exists"), ("nowhere/run.sqlite", "no such folder")):
        with pytest.raises(UsageError, match=why), tp.record(output):
            pass
    with pytest.raises(UsageError, match="expected the first and last step"):
        tp.record("run.sqlite", steps="first")
    with tp.record("run.sqlite"):
        with pytest.raises(UsageError, match=r"already recording to run\.sqlite"):
            tp.record("other.sqlite").__enter__()
        assert tp.is_recording()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(UsageError, match=r"2 ranks need one file each; give a folder \(run/\)"),
        tp.record("run.sqlite", force=True),
    ):
        pass
    assert not tp.is_recording()


def test_there_is_no_run_where_nothing_was_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.recording.captured._MIN_SAMPLED_NS", 1 << 62)
    with (
        tp.record("run.sqlite") as recorded,
        pytest.raises(UsageError, match="block has not ended"),
    ):
        _ = recorded.run
    assert not (folder / "run.sqlite").exists()
    assert recorded.output is None


def test_a_trace_that_cannot_be_written_does_not_stop_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: Any) -> None:
        raise RecordingError("the disk is full")

    monkeypatch.setattr(session, "finish", fail)
    with tp.record("run.sqlite") as recorded, tp.step():
        pass
    assert recorded.output is None
    said = capsys.readouterr().err
    assert said.startswith("traceprof: the disk is full; run traceprof recover /")


def test_ctrl_c_while_the_trace_is_written_reaches_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "finish", interrupted)
    with pytest.raises(KeyboardInterrupt), tp.record("run.sqlite"), tp.step():
        pass
    said = capsys.readouterr().err
    assert "traceprof: interrupted before writing the trace; run traceprof recover /" in said
    assert not tp.is_recording()


def test_who_records_loads_nothing_that_reads(folder: Path) -> None:
    program = """
import sys, traceprof as tp
with tp.record("run.sqlite"), tp.step():
    print([one for one in ("pandas", "plotly", "sqlite_utils", "rich") if one in sys.modules])
"""
    assert ran(folder, program).stdout == "[]\n"


def test_a_child_that_leaves_the_block_writes_nothing(folder: Path) -> None:
    program = """
import os, traceprof as tp
with tp.record("run.sqlite"):
    with tp.step():
        child = os.fork()
    if child:
        os.waitpid(child, 0)
if not child:
    print("child", os.path.exists("run.sqlite"), flush=True)
    os._exit(0)
print("parent", os.path.exists("run.sqlite"))
"""
    assert ran(folder, program).stdout == "child False\nparent True\n"


def test_each_rank_leaves_a_file_in_a_folder(folder: Path) -> None:
    program = """
import traceprof as tp
with tp.record("run/") as recorded:
    with tp.step():
        pass
print(recorded.run.paths[0].name)
"""
    for rank in ("0", "1"):
        of_rank = {"RANK": rank, "WORLD_SIZE": "2", "TRACEPROF_RUN": "job"}
        assert ran(folder, program, **of_rank).stdout == f"rank{rank}.sqlite\n"
    ranks = tp.open(folder / "run").within("all").steps().table.to_frame()
    assert len(ranks) == 2


def test_it_is_left_to_the_recorder_that_started_the_program(folder: Path) -> None:
    (folder / "program.py").write_text(
        "import traceprof as tp\n"
        "with tp.record('inner.sqlite') as recorded, tp.step():\n"
        "    pass\n"
        "print(recorded.output)\n"
    )
    recorded = record(folder / "outer.sqlite", [sys.executable, str(folder / "program.py")])
    assert recorded.done.returncode == 0
    assert recorded.done.stdout == "None\n"
    assert "already records this program; this second recording is skipped" in recorded.done.stderr
    assert len(tp.open(folder / "outer.sqlite").within("all").steps().table) == 1
    assert not (folder / "inner.sqlite").exists()


def test_an_error_at_the_end_of_the_hooks_does_not_stop_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tp.record("first.sqlite") as recorded:
        install = sys.modules["_traceprof_runtime.install"]
        end_inside = install.end_inside

        def fail(failed: bool) -> None:
            end_inside(failed)
            raise ZeroDivisionError

        monkeypatch.setattr(install, "end_inside", fail)
        with tp.step():
            pass
    assert recorded.output is None
    assert "ZeroDivisionError: ; run traceprof recover /" in capsys.readouterr().err
    assert not tp.is_recording()
    with tp.record("second.sqlite") as again, tp.step():
        pass
    assert again.output == Path("second.sqlite")
