"""Names of Python functions: of the program, of libraries, and of waits."""

import pytest

from traceprof.names.functions import (
    is_function,
    is_of_program,
    is_script,
    plain_function,
    sleeps,
    waits,
)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("train.py(88): evaluate", "train.py(88): evaluate"),
        ("/opt/lib/python3.11/site-packages/lib/a.py(3): f", "lib/a.py(3): f"),
        ("/usr/lib/python3.11/threading.py(16): wait", "threading.py(16): wait"),
        ("<built-in method item of Tensor object at 0x7f3A>", "<built-in method item of Tensor>"),
        ("<built-in function len>", "<built-in function len>"),
        ("/home/me/a(b)/train.py(8): <lambda>", "/home/me/a(b)/train.py(8): <lambda>"),
        ("", ""),
    ],
)
def test_a_plain_name_has_no_address_and_no_folder_of_packages(name: str, plain: str) -> None:
    assert plain_function(name) == plain


@pytest.mark.parametrize(
    "name",
    [
        "train.py(88): evaluate",
        "/home/me/train.py(88): evaluate",
        "profile.py(1): main",
        "transformers/trainer.py(9): training_step",
        "/tmp/ipykernel_7/5.py(3): <cell line: 1>",
        "torch_geometric/data.py(2): collate",
    ],
)
def test_functions_of_the_program(name: str) -> None:
    assert is_function(name)
    assert is_of_program(name)
    assert not waits(name)
    assert not sleeps(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch/optim/adam.py(4): step",
        "threading.py(4): run",
        "json/encoder.py(183): encode",
        "<string>(1): <module>",
        "<built-in method run_backward of torch._C._EngineBase>",
        "ProfilerStep#3",
        "aten::mm",
        "execute(12)_context",
        "",
    ],
)
def test_other_names(name: str) -> None:
    assert not is_of_program(name)
    assert not waits(name)


def test_waits_and_sleeps() -> None:
    assert waits("<built-in method acquire of _thread.lock>")
    assert waits("<method 'poll' of 'select.epoll' objects>")
    assert waits("threading.py(355): wait")
    assert waits("<built-in method get of _queue.SimpleQueue>")
    assert not waits("<built-in method get of dict>")
    assert not waits("<built-in method join of str>")
    assert not waits("train.py(3): wait")
    assert not waits("<built-in method waiting_list of X>")
    assert sleeps("<built-in function sleep>")
    assert not sleeps("train.py(3): sleep")


def test_the_code_of_a_file_is_a_script() -> None:
    assert is_script("train.py(1): <module>")
    assert not is_script("train.py(1): main")
