import pytest

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
