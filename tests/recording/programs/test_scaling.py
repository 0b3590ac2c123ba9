"""Real runs of one and two ranks (gloo): how they scale, and their nodes side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recording.conftest import PROGRAMS, TORCHRUN, Recorded, record
from tests.requirements import require
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.nodes import nodes
from traceprof.comparison.scaling.compared import scaling
from traceprof.comparison.summary.summarize import summarize
from traceprof.session.run import open_run

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("nsys")]

N_STEPS, BATCH = 12, 4


def recorded(folder: Path, name: str, n: int, *options: str) -> Recorded:
    require("torch")
    program = [*TORCHRUN[:-1], f"--nproc-per-node={n}", str(PROGRAMS / "train_ddp.py")]
    sizes = ["--steps", str(N_STEPS), "--batch", str(BATCH)]
    found = record(folder / f"{name}.sqlite", [*program, *sizes, *options], "--with", "torch")
    assert found.done.returncode == 0, found.done.stderr
    return found


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("one"), "one", 1)


@pytest.fixture(scope="module")
def forward_only(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("forward")
    return recorded(folder, "forward", 2, "--forward-only", "--independent")


def test_one_and_two_ranks(one_rank: Recorded, ddp_with_torch: Recorded) -> None:
    runs = [summarize(open_run([one.path])) for one in (one_rank, ddp_with_torch)]
    result = scaling(runs).results["scaling"]
    first, second = result.table.to_frame().to_dict("records")
    assert (first["devices_count"], second["devices_count"]) == (1, 2)
    assert (first["global_batch_count"], second["global_batch_count"]) == (BATCH, 2 * BATCH)
    assert (second["scaling"], second["ranks"]) == ("weak", "synchronized")
    rates = [run.measure("samples_per_s") or 0 for run in runs]
    assert second["efficiency_ratio"] == pytest.approx(rates[1] / 2 / rates[0])
    losses = result.to_frame("losses")
    assert losses["lost_ratio"].sum() == pytest.approx(1 - second["efficiency_ratio"], abs=1e-5)
    assert {"host: backward", "host: forward"} <= set(losses["loss"])
    assert result.scalars["devices"] == "ranks"


def test_nodes_forward_and_both(forward_only: Recorded, ddp_with_torch: Recorded) -> None:
    paths = {"forward": forward_only.path, "both": ddp_with_torch.path}
    rounds = [one for name in paths for one in iterations_of_run(open_run([paths[name]]), name)]
    found = nodes(rounds)
    rows = found.results["nodes"].table.to_frame().to_dict("records")
    assert [(row["run"], row["rank"], row["mode"], row["ranks"]) for row in rows] == [
        ("forward", "0", "forward", "independent"),
        ("forward", "1", "forward", "independent"),
        ("forward", "mean", "forward", "independent"),
        ("both", "0", "forward+backward", "synchronized"),
        ("both", "1", "forward+backward", "synchronized"),
    ]
    for row in rows:
        # Slow steps and one that an edge cuts are in no mean; a busy machine has more of them.
        assert 0 < row["rounds_count"] <= N_STEPS - row["warmup_count"]
        assert row["forward_ns"] < row["round_ns"]
    both, one = rows[-1], rounds[-1]
    # DDP hands in every gradient once a step, and the buffers of its normalizations.
    bytes_ = 313_000 * (one.iterations_count - 1)
    assert both["sync_bytes"] * both["syncs_per_s"] == pytest.approx(
        bytes_ * 1e9 / one.calls_iterations_ns, rel=0.02
    )
