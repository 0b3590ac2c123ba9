"""On real traces all adds up, and nothing of it is left unexplained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparison.explaining.test_explain import adds_up
from tests.requirements import TRACES, require
from traceprof.comparison.explaining import explain
from traceprof.model.results import Result
from traceprof.session.run import open_run

pytestmark = pytest.mark.traces


def explained(name: str, text: str) -> Result:
    require("traces")
    return explain(open_run([Path(TRACES) / name]), text).results["explain"]


@pytest.mark.parametrize(
    "name",
    [
        "nsys/2022.2-pytorch-a100-sampling-osrt.sqlite.gz",
        "nsys/2026.2-2gpu-nccl-before.sqlite",
        "kineto/2025-mi300x-rccl.json.gz",
        "kineto/torchrec-4ranks-straggler-v100",
    ],
)
def test_the_slowest_step_is_explained_whole(name: str) -> None:
    result = explained(name, "slowest")
    assert adds_up(result)
    assert not (result.table.to_frame()["kind"] == "rest").any()
    assert result.scalars["difference_ns"] > 0


def test_a_step_that_waits_for_its_data() -> None:
    table = explained("kineto/2021-resnet50.json.gz", "step:4").table.to_frame()
    # Of 52 ms more, the device is idle for 52 ms, nearly all while the host fetches data.
    assert (table["part"].head(3) == "idle").all()
    assert (table["kind"].head(3) == "data").all()


def test_turns_of_a_pattern_are_no_steps() -> None:
    result = explained("nsys/2026.2-2gpu-nccl-before.sqlite", "pattern:7")
    assert result.scalars["explained"] == "iteration 7 of the pattern"
    assert str(result.scalars["reference"]).startswith("iteration ")
    assert result.to_frame("phases").empty
