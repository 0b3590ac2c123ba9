"""Regular expressions of the user's own, in time that grows as the text does."""

from __future__ import annotations

import pytest

from traceprof.errors import UsageError
from traceprof.names.user_patterns import user_pattern


def test_a_pattern_that_python_would_never_end() -> None:
    own = user_pattern("(a+)+$", "--name")
    assert own.found_in(["a" * 40 + "b", "b" + "a" * 40]).tolist() == [False, True]


def test_groups_with_and_without_names() -> None:
    own = user_pattern(r"step[([](\d+)[])]( of (?P<all>\d+))?", "step pattern")
    assert own.groups == ("all", "_1", "_2")
    assert own.matched(["a step(7) of 9", "step[8]", "step"]) == [
        {"_all": "step(7) of 9", "_1": "7", "_2": " of 9", "all": "9"},
        {"_all": "step[8]", "_1": "8", "_2": "", "all": ""},
        None,
    ]
    assert own.matched(["a step(7)"], whole=True) == [None]
    assert user_pattern("a|ab", "x").matched(["ab"], whole=True) == [{"_all": "ab"}]


def test_what_is_escaped_or_in_a_class_is_no_group() -> None:
    own = user_pattern(r"\(x\)[(]y[^](]z", "--name")
    assert own.groups == ()
    assert own.found_in(["(x)(y.z", "(x)(y(z"]).tolist() == [True, False]


def test_letters_large_and_small_and_texts_that_are_no_unicode() -> None:
    own = user_pattern("GEMM|^é", "--name", ignore_case=True)
    assert own.found_in(["a gemm", "É", "\ud800", "gem"]).tolist() == [True, True, False, False]
    assert user_pattern("gemm", "--name").found_in(["GEMM"]).tolist() == [False]
    assert own.found_in([]).tolist() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", r"--name '\(' is not a valid regular expression: missing \)"),
        ("a(?=b)", "invalid perl operator.*RE2.*not support look-around"),
        (r"(a)\1", "backreferences"),
        ("a++", "possessive quantifiers"),
        ("x{9999999999999}", "is not a valid regular expression"),
        ("x{2000}", "invalid repetition size"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as told:
        user_pattern(text, "--name")
    assert "\n" not in str(told.value)
