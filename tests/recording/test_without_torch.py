import sys

import pytest

from tests.recording.conftest import record
from traceprof.recording.finishing import note_without_torch


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "because no process imported torch under the recorder"),
        ({"python.1": ""}, "no ranges recorded because the program did not import torch; use"),
        (
            {"python.1": "", "python.2": "jax\nnumba\n"},
            "did not import torch (it used jax, numba); use",
        ),
    ],
)
def test_what_a_program_used_instead_is_said(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    note = note_without_torch(tmp_path)
    assert expected in note
    assert "traceprof.step()" in note


@pytest.mark.parametrize(
    ("steps", "note"),
    [
        ("9..20", "--steps starts at 9, but the program ran 6 steps (from 0)"),
        ("3..20", "--steps ends at 20, but the program ran 6 steps (from 0)"),
        ("3..5", ""),
    ],
)
def test_steps_beyond_the_end_are_reported(tmp_path, steps, note):
    (tmp_path / "train.py").write_text(
        "import traceprof\nfor _ in range(6):\n    with traceprof.step():\n        pass\n"
    )
    recorded = record(tmp_path / "run.sqlite", [sys.executable, "train.py"], "--steps", steps)
    assert recorded.done.returncode == 0
    assert note in recorded.done.stderr
    assert ("--steps" in recorded.done.stderr) is bool(note)
    assert (tmp_path / "run.sqlite").exists() is (steps != "9..20")
