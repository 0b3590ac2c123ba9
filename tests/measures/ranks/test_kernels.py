"""How the extra work of a rank is put into words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceprof.measures.ranks.kernels import KernelExcess

LARGER = KernelExcess(
    slower_ns=0,
    factor=1.0,
    more_ns=100,
    kernel="flash_fwd_kernel",
    count_ratio=1.0,
    blocks_ratio=3.0,
    has_grids=True,
)


def test_more_thread_blocks_are_larger_kernels() -> None:
    note = LARGER.describe_work()
    assert LARGER.more_text == "larger kernels (more thread blocks)"
    assert note is not None
    assert "thread blocks" in note.text
    assert note.values == {"kernel": "flash_fwd_kernel", "ratio": 3.0}


def test_more_launches_are_more_kernels() -> None:
    more = replace(LARGER, count_ratio=2.0)
    note = more.describe_work()
    assert more.more_text == "more kernels"
    assert note is not None
    assert "launches" in note.text
    assert note.values["ratio"] == 2.0


@pytest.mark.parametrize("change", [{"kernel": ""}, {"blocks_ratio": 1.01}])
def test_without_a_kernel_or_more_work_there_is_no_note(change: dict[str, object]) -> None:
    assert replace(LARGER, **change).describe_work() is None  # type: ignore[arg-type]
