"""What each change makes of torch, in a program of its own: all that is independent at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import require
from traceprof.recording.program import INJECT_FOLDER
from traceprof.trying.changes import CHANGES

PROGRAM = Path(__file__).parents[2] / "fixtures" / "programs" / "changed.py"
RUNTIME = INJECT_FOLDER / "_traceprof_runtime" / "changes.py"

pytestmark = pytest.mark.torch


def run(tmp_path, *changes):
    require("torch")
    environment = {
        **os.environ,
        "PYTHONPATH": str(INJECT_FOLDER),
        "TRACEPROF_DIR": str(tmp_path),
        "TRACEPROF_CHANGES": "\n".join(changes),
        "TRACEPROF_EMITTER": "spool",
    }
    return subprocess.run(
        [sys.executable, PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def told(tmp_path, *changes):
    done = run(tmp_path, *changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return told(tmp_path_factory.mktemp("unchanged"))


def test_nothing_is_changed_where_nothing_is_asked(unchanged):
    assert unchanged["workers"] == 0
    assert unchanged["batch"] == 8
    assert not unchanged["dropped"]
    assert not unchanged["images"]
    assert unchanged["computes"] == "torch.float32"
    assert not unchanged["is_compiled"]


def test_loaders_and_switches_and_optimizers(tmp_path):
    found = told(
        tmp_path,
        *("workers=3", "prefetch_factor=5", "persistent_workers=", "batch_size=x2"),
        *("fused_optimizer=", "set_to_none=", "tf32=", "cudnn_benchmark=", "sdpa=math"),
        *("threads=1", "gc_freeze=", "channels_last=", "channels_last_3d="),
    )
    assert (found["workers"], found["prefetch"], found["persistent"]) == (3, 5, True)
    assert found["stream_workers"] == 0  # each would give all of the stream
    assert found["batch"] == 16
    assert (found["fused"], found["foreach"]) == (True, False)
    assert found["dropped"]
    assert found["tf32"]
    assert found["benchmark"]
    assert (found["math"], found["flash"]) == (True, False)
    assert found["threads"] == 1
    assert found["images"]
    assert found["weights"]
    assert found["volumes"]
    assert found["computes"] == "torch.float32"


def test_types_and_layouts(tmp_path, unchanged):
    found = told(
        tmp_path,
        *("bf16=", "foreach_optimizer=", "matmul_precision=medium", "pin_memory=", "batch_size=4"),
    )
    assert found["computes"] == "torch.bfloat16"
    assert found["out"] == "torch.float32"  # what a loss is given
    assert found["foreach"] is True
    assert found["precision"] == "medium"
    assert found["is_pinned"]
    assert found["batch"] == 4
    assert found["gradient"] == pytest.approx(unchanged["gradient"], rel=0.05)


def test_fp16_gives_the_optimizer_gradients_of_their_own_size(tmp_path, unchanged):
    found = told(tmp_path, "fp16=")
    assert found["computes"] == "torch.float16"
    assert found["gradient"] == pytest.approx(unchanged["gradient"], rel=0.05)


def test_a_change_that_cannot_be_made_ends_the_program(tmp_path):
    done = run(tmp_path, "sdpa=none")
    assert done.returncode == 97
    assert "cannot apply change sdpa: sdpa must be one of" in done.stderr


def test_every_change_is_known_on_both_sides():
    text = RUNTIME.read_text() + RUNTIME.with_name("more_changes.py").read_text()
    for one in CHANGES:
        assert f'    "{one.name}": _' in text
    assert text.count('": _') == len(CHANGES)
