import pytest

from traceprof.recording.program import ignores_injection


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["/usr/bin/python3.12", "-uE", "train.py"], "-uE"),
        (["python", "-m", "x", "-S"], None),
        (["python", "train.py", "-I"], None),
        (["torchrun", "-I"], None),
        (["python"], None),
    ],
)
def test_options_of_python_that_ignore_the_path(command, option):
    assert ignores_injection(command) == option
