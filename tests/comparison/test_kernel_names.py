"""Which kernel is which: across profilers, versions of libraries, and places in the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from traceprof.comparison.difference import canonical_name, match_kernels
from traceprof.model.table import Table

NSYS = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "at::detail::Array<char *, (int)1>>(int, T2, T3)"
)
KINETO = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "at::detail::Array<char*, 1> >(int, at::native::FillFunctor<float>, "
    "at::detail::Array<char*, 1>)"
)
MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
    "NS_6detail5ArrayIPcLi1EEEEEviT0_T1_"
)


def kernels(*rows: tuple[str, str, float, float], ms: Sequence[float] = ()) -> Table:
    names = ("name", "class", "place_ratio", "count")
    table = Table.of_rows([dict(zip(names, row, strict=True)) for row in rows], names)
    return table.assign(ns=1e6 * np.array(ms or [1.0] * len(rows)))


@pytest.mark.parametrize("name", [KINETO, MANGLED])
def test_profilers_write_the_same_name_in_several_ways(name: str) -> None:
    assert canonical_name(name) == canonical_name(NSYS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x128_tn"),
        ("void reduce<float>(int)", "void reduce<double>(int)"),
        ("void scale<4>(int)", "void scale<8>(int)"),
    ],
)
def test_what_differs_stays_different(one: str, other: str) -> None:
    assert canonical_name(one) != canonical_name(other)


def test_the_same_name_is_no_new_one() -> None:
    found = match_kernels(
        kernels((KINETO, "elementwise", 0.5, 3.0)), kernels((NSYS, "elementwise", 0.9, 30.0))
    )
    assert found.base[KINETO] == found.new[NSYS] == NSYS
    assert found.renamed == {}


def test_a_changed_argument_of_the_template_is_told_as_another_name() -> None:
    old, new = "void norm<float, 4>(float*)", "void norm<float, 8>(float*)"
    found = match_kernels(
        kernels((old, "normalization", 0.1, 1.0)), kernels((new, "normalization", 0.7, 1.0))
    )
    assert found.base[old] == new
    assert found.renamed == {new: old}


def test_what_is_left_is_matched_by_class_and_place() -> None:
    base = kernels(
        ("a1", "gemm", 0.2, 4.0), ("a2", "gemm", 0.7, 4.0), ("a3", "reduction", 0.2, 4.0)
    )
    new = kernels(("b1", "gemm", 0.69, 4.0), ("b2", "gemm", 0.22, 4.0), ("b3", "optimizer", 0.2, 4))
    found = match_kernels(base, new)
    assert found.renamed == {"b2": "a1", "b1": "a2"}
    assert (found.base["a3"], found.new["b3"]) == ("a3", "b3")


@pytest.mark.parametrize(
    "other",
    [("b", "gemm", 0.4, 4.0), ("b", "gemm", 0.2, 9.0), ("b", "gemm", float("nan"), 4.0)],
)
def test_what_is_far_away_or_runs_more_often_is_something_else(
    other: tuple[str, str, float, float],
) -> None:
    found = match_kernels(kernels(("a", "gemm", 0.2, 4.0)), kernels(other))
    assert found.renamed == {}
    assert (found.base["a"], found.new["b"]) == ("a", "b")


def test_nothing_is_matched_with_nothing() -> None:
    found = match_kernels(kernels(), kernels(("b", "gemm", 0.2, 4.0)))
    assert (found.base, found.new) == ({}, {"b": "b"})


def test_a_short_helper_at_the_same_place_is_not_the_successor_of_a_long_kernel() -> None:
    """What replaces an attention kernel of 20 ms takes 12 ms, and begins after its helper."""
    base = kernels(("fmha_cutlassB", "attention", 0.5, 24.0), ms=[20])
    new = kernels(
        ("dot_do_o", "attention", 0.5, 24.0), ("flash_bwd", "attention", 0.53, 24.0), ms=[1, 12]
    )
    for new_order in ([0, 1], [1, 0]):
        found = match_kernels(base, new.take(np.array(new_order)))
        assert found.renamed == {"flash_bwd": "fmha_cutlassB"}
        assert found.new["dot_do_o"] == "dot_do_o"
    # Without a successor the kernel is gone and the helper is new.
    found = match_kernels(base, new.take(np.array([0])))
    assert found.renamed == {}


def test_the_kernels_that_take_most_are_matched_first() -> None:
    """The helper of the base is nearer to the new long kernel than the long one of the base."""
    base = kernels(
        ("old_helper", "attention", 0.53, 24.0), ("fmha_cutlassB", "attention", 0.5, 24), ms=[4, 20]
    )
    new = kernels(("flash_bwd", "attention", 0.53, 24.0), ms=[12])
    found = match_kernels(base, new)
    assert found.renamed == {"flash_bwd": "fmha_cutlassB"}
    assert found.base["old_helper"] == "old_helper"


def test_of_kernels_that_take_as_long_the_place_decides() -> None:
    base = kernels(("a1", "gemm", 0.2, 4.0), ("a2", "gemm", 0.25, 4.0), ms=[20, 19])
    new = kernels(("b2", "gemm", 0.25, 4.0), ("b1", "gemm", 0.2, 4.0), ms=[19.5, 15])
    assert match_kernels(base, new).renamed == {"b1": "a1", "b2": "a2"}
