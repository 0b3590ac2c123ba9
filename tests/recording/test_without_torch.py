import pytest

from traceprof.recording.finishing import note_without_torch


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "no process imported torch under the recorder"),
        ({"python.1": ""}, "the program imported no torch (only Python): no ranges; it names"),
        ({"python.1": "", "python.2": "jax\nnumba\n"}, "(it used jax, numba): no ranges"),
    ],
)
def test_what_a_program_used_instead_is_said(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    note = note_without_torch(tmp_path)
    assert expected in note
    assert "traceprof.step()" in note
