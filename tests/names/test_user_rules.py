"""The user's own classes, from a TOML file."""

from __future__ import annotations

import pytest

from traceprof.errors import UsageError
from traceprof.model.activity import Activity
from traceprof.names.classes import parse_rules


def test_rules_keep_their_order() -> None:
    text = '[[rule]]\nactivity = "moe"\npattern = "a"\n[[rule]]\nactivity = "gemm"\npattern = "b"'
    assert [rule.activity for rule in parse_rules(text)] == [Activity.MOE, Activity.GEMM]


def test_former_names_of_classes_still_hold() -> None:
    rules = parse_rules('[[rule]]\nactivity = "sorting"\npattern = "x"')
    assert rules[0].activity is Activity.SORT_INDEX


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule", "invalid TOML"),
        ('[[rule]]\npattern = "x"', "requires activity and pattern"),
        ('[[rule]]\nactivity = "fun"\npattern = "x"', "unknown activity 'fun'"),
        ('[[rule]]\nactivity = "gemm"\npattern = "("', "pattern"),
        ('[[rule]]\nactivity = "gemm"\npattern = "x{9999999999999}"', "pattern"),
        ('[[rule]]\nactivity = ["gemm"]\npattern = "x"', "requires activity and pattern"),
        ("rule = 5", "expected"),
    ],
)
def test_rules_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_rules(text)
