"""Names in columns that are too narrow for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.render.documents import measured
from traceprof.render.registry import Options, render
from traceprof.render.text.tables import shorten_all

NAMES = st.lists(st.text("ab:<>", min_size=0, max_size=60), unique=True, max_size=12)


@given(NAMES, st.integers(12, 70))
def test_different_names_stay_different_and_fit(names: list[str], width: int) -> None:
    short = shorten_all(names, width)
    assert all(len(text) <= width for text in short)
    assert len(set(short)) == len(names)
    assert [text for text, name in zip(short, names, strict=True) if len(name) <= width] == [
        name for name in names if len(name) <= width
    ]


def test_begin_and_end_are_kept_and_twins_show_where_they_differ() -> None:
    assert shorten_all(["gemm_128x128_tn_align8_bias", "relu"], 13) == ["gemm_1…8_bias", "relu"]
    twins = [f"at::native::vectorized_elementwise_kernel<{op}, array>" for op in ("Add", "Mul")]
    short = shorten_all([*twins, twins[0]], 24)
    assert [op in text for op, text in zip(("Add", "Mul", "Add"), short, strict=True)] == [True] * 3
    assert short[0] == short[2]


def test_a_wide_terminal_has_whole_names_and_a_narrow_one_distinct_ones() -> None:
    builder = TraceBuilder()
    names = [f"at::native::reduce_kernel<512, {op}<float, float>, 4>" for op in ("Sum", "Max")]
    for i, name in enumerate(names):
        builder.kernel(name, i * 100, i * 100 + 50)
    document = measured(builder.build(), ["kernels"], "all")
    wide = render("text", document, Options(width=220))
    assert all(name in wide for name in names)
    narrow = render("text", document, Options(width=80))
    assert max(map(len, narrow.splitlines())) <= 80
    rows = [line for line in narrow.splitlines() if "reduction" in line]
    assert len({row[:28] for row in rows}) == len(rows) == 2
