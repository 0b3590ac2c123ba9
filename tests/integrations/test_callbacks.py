"""Callbacks of Trainers: a training is recorded, and its figures are where it logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import traceprof as tp
from tests.requirements import ROOT, require

TRANSFORMERS = """
import sys, torch
from transformers import Trainer, TrainingArguments
from traceprof.integrations.transformers import TraceprofCallback

torch.set_num_threads(1)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        if FAILS:
            raise ValueError("it breaks")
        out = self.linear(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

FAILS = "fails" in sys.argv
rows = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(64)]
arguments = TrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=8, report_to=["tensorboard"],
    use_cpu=True, logging_strategy="no", save_strategy="no", disable_tqdm=True,
)
trainer = Trainer(Model(), arguments, train_dataset=rows)
TraceprofCallback("run.sqlite", keep=True).add_to(trainer)
trainer.train()
if "again" in sys.argv:
    trainer.train()
"""
LIGHTNING = """
import lightning, torch, sys
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from traceprof.integrations.lightning import TraceprofCallback

torch.set_num_threads(1)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def training_step(self, batch, _number):
        if FAILS:
            raise ValueError("it breaks")
        return ((self.linear(batch[0]) - 1) ** 2).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

FAILS = "fails" in sys.argv
data = torch.utils.data.TensorDataset(torch.ones(64, 4))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, callbacks=[TraceprofCallback("run.sqlite", keep=True)],
    logger=[CSVLogger("csv", name="", version=0), TensorBoardLogger("out")],
)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))
"""
Trained = Callable[[str], tuple[Path, "subprocess.CompletedProcess[str]"]]
PROGRAMS = {"transformers": TRANSFORMERS, "lightning": LIGHTNING}


def ran(library: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    require("torch")
    require(library)
    own = {"PYTHONPATH": str(ROOT), "TRACEPROF_RUNS": str(folder / "runs.sqlite")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAMS[library], *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **own, "HF_HUB_OFFLINE": "1"},
        check=False,
    )


def scalars_of(folder: Path) -> dict[str, float]:
    """Return the last value of each scalar that TensorBoard finds below a folder."""
    accumulators: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found: dict[str, float] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        events = accumulators.EventAccumulator(str(path)).Reload()
        found |= {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    return found


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    """Return what trains with a library, once: where it has written, and what it printed."""

    @cache
    def train(library: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
        folder = tmp_path_factory.mktemp(library)
        return folder, ran(library, folder)

    return train


@pytest.mark.torch
@pytest.mark.parametrize(("library", "prefix"), [("transformers", "train/"), ("lightning", "")])
def test_a_training_is_recorded_kept_and_its_figures_are_logged(
    library: str, prefix: str, trained: Trained
) -> None:
    folder, done = trained(library)
    assert done.returncode == 0, done.stderr
    run = tp.open(folder / "run.sqlite")
    assert len(run.within("all").steps().table) == 16
    figures = run.figures()
    assert {"samples_per_s", "step_period_ns"} <= figures.keys()
    logged = scalars_of(folder / "out")
    for name, value in figures.items():
        assert logged[f"{prefix}traceprof/{name}"] == pytest.approx(value, rel=1e-6)
    assert run.page().headline[0] in done.stdout
    assert (
        tp.runs(folder / "runs.sqlite").get("run").measure("step_period_ns")
        == figures["step_period_ns"]
    )


@pytest.mark.torch
@pytest.mark.parametrize("library", PROGRAMS)
def test_a_training_that_breaks_off_has_its_trace(library: str, tmp_path: Path) -> None:
    done = ran(library, tmp_path, "fails")
    assert done.returncode == 1
    assert "ValueError: it breaks" in done.stderr
    assert "traceprof: recorded " in done.stderr
    assert (tmp_path / "run.sqlite").exists()


@pytest.mark.torch
def test_a_csv_logger_of_lightning_has_them_too(trained: Trained) -> None:
    folder, done = trained("lightning")
    assert done.returncode == 0, done.stderr
    table = (folder / "csv" / "version_0" / "metrics.csv").read_text()
    assert "traceprof/step_period_ns" in table.splitlines()[0]
    assert json.dumps(tp.open(folder / "run.sqlite").figures()["step_period_ns"]) in table


@pytest.mark.torch
def test_each_training_of_a_program_has_a_trace(tmp_path: Path) -> None:
    done = ran("transformers", tmp_path, "again")
    assert done.returncode == 0, done.stderr
    for name in ("run.sqlite", "run-2.sqlite"):
        assert len(tp.open(tmp_path / name).within("all").steps().table) == 16
