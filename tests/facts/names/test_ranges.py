import pandas as pd
import pytest

from traceprof.facts.names.ranges import plain_name, plain_names


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
