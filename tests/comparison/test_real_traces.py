"""Real recordings against one another, and against copies that were changed by a known amount."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.comparison.changed import changed_copy
from tests.comparison.test_compare import adds_up, row
from tests.requirements import TRACES, require
from traceprof.comparison import Comparison
from traceprof.comparison.comparing import compare_named
from traceprof.render.formatting import sentences

pytestmark = pytest.mark.traces

KERNEL = "volta_sgemm_32x128_tn"
STEP_US = 20_000


@pytest.fixture(scope="module", autouse=True)
def _traces() -> None:
    require("traces")


def compared(base: str | Path, new: str | Path, *limits: str) -> Comparison:
    return compare_named([TRACES / base], [TRACES / new], limits=limits)


@pytest.fixture(scope="module")
def torchrec() -> Path:
    return TRACES / "kineto" / "torchrec-4ranks-v100"


def test_a_kernel_that_takes_longer_on_all_ranks_is_found_to_the_ns(
    torchrec: Path, tmp_path: Path
) -> None:
    assert changed_copy(torchrec, tmp_path / "copy", KERNEL, longer_us=STEP_US) == 12
    found = compared(torchrec, tmp_path / "copy", "step_period_ns=1%")
    adds_up(found)
    cause = found.results["difference"].table.to_frame().iloc[0]
    assert (cause["kind"], cause["name"], cause["state"]) == ("kernel", KERNEL, "changed")
    # The clocks of the ranks are aligned anew, and their drift corrected; parts are scaled to the
    # mean step of all ranks: some 100 ns in 20 ms.
    assert cause["difference_ns"] == pytest.approx(STEP_US * 1000, rel=2e-5)
    assert cause["from_duration_ns"] == cause["difference_ns"]
    parts = found.results["difference"].to_frame("parts").set_index("part")["difference_ns"]
    assert abs(parts["compute"] - STEP_US * 1000) <= 0.01 * STEP_US * 1000
    kernel = row(found, "kernels", "name", KERNEL)
    assert kernel["new_mean_ns"] - kernel["base_mean_ns"] == pytest.approx(STEP_US * 1000, abs=100)
    said = sentences(found.verdict)
    # Three steps, of which the last period is cut: numbers are told, nothing is judged.
    assert "are not enough to test the difference" in said[0]
    assert f"kernel {KERNEL} (each longer) +20.0 ms" in said[-1]
    assert found.results["limits"].table.to_frame()["is_undecided"].tolist() == [True]


def test_a_kernel_that_was_renamed_is_matched_by_class_and_place(
    torchrec: Path, tmp_path: Path
) -> None:
    changed_copy(torchrec, tmp_path / "copy", KERNEL, renamed="gemm_f32_sm70_tile32x128_v2")
    found = compared(torchrec, tmp_path / "copy")
    adds_up(found)
    kernel = row(found, "kernels", "name", "gemm_f32_sm70_tile32x128_v2")
    assert (kernel["base_name"], kernel["state"]) == (KERNEL, "renamed")
    assert kernel["difference_ns"] == 0
    states = set(found.results["kernels"].table.to_frame()["state"])
    assert states == {"same", "renamed"}
    assert found.results["difference"].scalars["difference_ns"] == 0


def test_before_and_after_of_two_gpus_is_explained_as_a_sum() -> None:
    before, after = (f"nsys/2026.2-2gpu-nccl-{which}.sqlite" for which in ("before", "after"))
    found = compared(before, after, "5%")
    adds_up(found)
    scalars = found.results["difference"].scalars
    # The mean of 16 and 14 iterations of the pattern: their windows last 17,529,949 ns and
    # 19,955,410 ns of each, since iterations of two devices do not end together.
    assert (scalars["base_ns"], scalars["new_ns"]) == (17_529_714, 19_954_436)
    # By SQL: unions of the kernels and copies of each device in the window, over 32 and 28.
    compute, idle = (row(found, "difference", "part", p, "parts") for p in ("compute", "idle"))
    lengths = [part[f"{side}_ns"] for part in (compute, idle) for side in ("base", "new")]
    by_sql = [15_080_624, 15_136_229, 1_488_728, 3_521_518]
    assert lengths == pytest.approx(by_sql, rel=1e-4)
    kernel = row(
        found,
        "kernels",
        "name",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    )
    assert kernel["base_ns"] * 32 == pytest.approx(25_179_513)
    assert set(found.results["kernels"].table.to_frame()["state"]) <= {"same", "changed"}
    # 16 and 14 turns that differ among themselves by more than that.
    assert found.results["judged"].table.to_frame()["verdict"].tolist() == ["no difference shown"]
    assert found.results["limits"].table.to_frame()["is_exceeded"].tolist() == [False]


@pytest.mark.parametrize(
    ("base", "new"),
    [
        ("nsys/2024.6-llm-2.7b-nvtx-a100.sqlite", "kineto/2024-a100-plain.json"),
        ("nvprof/v16-nccl-4gpu.nvvp", "kineto/resnet18-2ranks-v100"),
        ("nvprof/v11or12-pytorch-lm-markers.sql", "nsys/2022.4-nvtx-only.sqlite"),
        ("nsys/2022.4-copies-only-8gpu-host.sqlite", "kineto/2025-h100-bert-small.json.gz"),
    ],
)
def test_across_formats_it_works_and_says_that_profilers_differ(base: str, new: str) -> None:
    found = compared(base, new)
    settings: dict[str, Any] = row(found, "settings", "setting", "profiler")
    assert settings["spoils"]
    assert any("profiler differs" in text for text in sentences(found.warnings))
    if "difference" not in found.missing:
        adds_up(found)
    elif "2022.4-nvtx-only" in found.missing["difference"]:
        assert "no GPU activity recorded in 2022.4-nvtx-only" in found.missing["difference"]
    else:
        assert any("The units differ" in text for text in sentences(found.warnings))
        assert not {"kernels", "copies", "phases"} & {*found.results}
