"""Expressions that are compiled late do as those that are compiled at once."""

from __future__ import annotations

import re

import pytest

from traceprof.names.classes import (
    DECIDING_SCOPES,
    IDENTIFIERS,
    SCOPES,
    WRAPPERS,
    KernelRule,
    Wrapper,
)
from traceprof.names.parsing import pattern


def test_it_is_compiled_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    at_once = re.compile

    def hear(expression: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(expression)
        return at_once(expression, flags)

    monkeypatch.setattr(re, "compile", hear)
    found = pattern("GEMM|conv", re.IGNORECASE)
    assert compiled == []
    assert [bool(found.search(name)) for name in ("a gemm", "Conv2d", "add")] == [True, True, False]
    assert compiled == ["GEMM|conv"]
    assert found.sub("x", "gemm") == "x"
    assert found.flags == re.compile("x", re.IGNORECASE).flags


def test_a_wrong_one_says_so_when_it_is_asked() -> None:
    with pytest.raises(re.error):
        pattern("(").search("a")


@pytest.mark.parametrize("rule", (*DECIDING_SCOPES, *IDENTIFIERS, *SCOPES, *WRAPPERS))
def test_those_of_the_kernels_are_right(rule: KernelRule | Wrapper) -> None:
    assert rule.pattern.search("no kernel \0") is None
