"""Factors of bandwidths."""

from __future__ import annotations

import pytest

from traceprof.measures.collectives.rates import busbw_factor


@pytest.mark.parametrize(("n", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_the_factor_of_all_reduce_as_nvidia_prints_it(n: int, factor: float) -> None:
    assert busbw_factor("all_reduce", n) == factor
