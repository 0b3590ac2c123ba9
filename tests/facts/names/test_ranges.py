import pandas as pd
import pytest

from traceprof.facts.names.ranges import (
    common_categories,
    plain_categories,
    plain_name,
    plain_names,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::copy_, op_id = 990724", "aten::copy_"),
        ("aten::mul, seq = 45328, op_id = 990726", "aten::mul"),
        ("AddmmBackward0, seq = 12, op_id = 7", "AddmmBackward0"),
        ("aten::mm, op_id = 3, sizes = [[2, 3], [3, 4]]", "aten::mm"),
        ("aten::mm, seq = 3, op_id = 4, sizes = [[2, 3], [3]]", "aten::mm"),
        ("step 3, seq", "step 3, seq"),
        ("Forward", "Forward"),
    ],
)
def test_what_emit_nvtx_adds_to_a_name_is_dropped(name: str, expected: str) -> None:
    assert plain_name(name) == expected


def test_names_of_a_column_are_read_once_each() -> None:
    names = pd.Series(pd.Categorical(["b, seq = 1", "a", "b, seq = 2"]))
    plain = plain_names(names)
    assert (list(plain), plain.categories.tolist()) == (["b", "a", "b"], ["a", "b"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::mm, seq = 12, op_id = 33", "aten::mm"),
        ("ProfilerStep#12", "ProfilerStep"),
        ("step 12", "step"),
        ("train_step_5", "train_step"),
        ("Epoch [3/100]", "Epoch"),
        ("epoch 3 of 100 batch=7", "epoch batch"),
        ("batch: 12", "batch"),
        ("free 0x7f00deadbeef", "free"),
        ("forward #3", "forward"),
        ("#3", "#"),
        ("layer 3", "layer 3"),
        ("block_12", "block_12"),
        ("step2vec", "step2vec"),
        ("Lösung step 3", "Lösung step"),
        ("", ""),
    ],
)
def test_what_tells_one_time_from_the_next_is_dropped(name: str, expected: str) -> None:
    names, place = common_categories(pd.Index([name, "other"], dtype=object))
    assert (names[place[0]], len(names)) == (expected, 2)


def test_what_pyprof_writes_is_told_as_the_function() -> None:
    name = (
        "{'mod': 'torch.nn.functional', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor'}]}"
    )
    assert plain_name(name) == "torch.nn.functional.linear"
    assert plain_categories(pd.Index([name, "x"], dtype=object))[0].tolist() == [
        "torch.nn.functional.linear",
        "x",
    ]
    assert plain_name("{'mod': 1}") == "{'mod': 1}"
