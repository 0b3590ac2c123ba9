"""Progress bars of scripts and of YOLO, and other logs of small programs."""
# ruff: noqa: E501 – lines as these programs print them

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import one_run, rows, said
from traceprof.errors import TraceprofError
from traceprof.logs.gathered import LogRuns
from traceprof.logs.sources import SOURCES
from traceprof.logs.sources.bars import ProgressBar
from traceprof.logs.sources.script_bars import ScriptBarsReader

S = 1e9
OLD_YOLO = """\
      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
        {0}/2      2.61G      1.153      1.398      1.192         81        640: 100%|███| 8/8 [00:04<00:00,  1.65it/s]
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|███| 4/4 [00:01<00:00,  2.62it/s]
                   all        128        929       0.66       0.54       0.61       0.45
        {1}/2      2.56G      1.156      1.337      1.189        121        640: 100%|███| 8/8 [00:03<00:00,  2.50it/s]
                   all        128        929       0.67       0.55       0.62       0.46

2 epochs completed in 0.005 hours.
"""
NEW_YOLO = """\
        1/2     0.774G      1.143      1.391     0.9889        126        640: 100% ━━━━━━━━━━━━ 8/8 1.60it/s 5.0s
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100% ━━━━━━━━━━━━ 4/4 4.0it/s 1.0s
                   all        128        929       0.66       0.54       0.61       0.45
        2/2     0.774G      1.143      1.391     0.9889        126        640: 100% ━━━━━━━━━━━━ 8/8 2.50it/s 3.2s
                   all        128        929       0.67       0.55       0.62       0.46
2 epochs completed in 0.005 hours.
"""  # fmt: skip


@pytest.mark.parametrize(
    ("text", "lengths_ns"),
    [
        (OLD_YOLO.format(1, 2), [8 / 1.65 * S, 3.2 * S]),
        (OLD_YOLO.format(0, 1), [8 / 1.65 * S, 3.2 * S]),
        (OLD_YOLO.format(1, 2).replace("|███|", ""), [8 / 1.65 * S, 3.2 * S]),
        (NEW_YOLO, [5 * S, 3.2 * S]),
    ],
    ids=["8", "5", "notebook", "8.3.190"],
)
def test_yolo(text: str, lengths_ns: list[float], tmp_path: Path) -> None:
    run = one_run(tmp_path, text)
    assert run.origin == "log:ultralytics"
    assert run.measure("total_ns") == 18 * S
    epochs = run.table("epochs").to_frame()
    assert epochs["duration_ns"].tolist() == pytest.approx(lengths_ns)
    assert epochs["steps_count"].tolist() == [8, 8]
    assert run.measure("last_bbox/AP") == 0.46


def test_the_bar_that_takes_the_most_time_counts_the_steps(tmp_path: Path) -> None:
    text = "Downloading: 100%|###| 900/900 [05:00<00:00, 3.00it/s]\n"
    for epoch, rate in ((1, 4.0), (2, 5.0)):
        for n in (50, 100):
            text += f"\rEpoch {epoch}/2: {n}%|###| {n}/100 [00:{int(n / rate):02d}<00:00, "
            text += f"{rate:.2f}it/s, loss=0.{n}]"
        text += "\n100%|###| 10/10 [00:01<00:00, 9.00it/s]\n"
    run = one_run(tmp_path, text)
    assert run.origin == "log:progress-bars"
    epochs = run.table("epochs").to_frame()
    assert epochs["steps_count"].tolist() == [100, 100]
    assert epochs["duration_ns"].tolist() == pytest.approx([25 * S, 20 * S])
    assert rows(run, "loss")["value"].tolist() == [0.5, 0.1, 0.5, 0.1]
    assert "the one that takes the most time" in said(run)


def test_a_bar_that_is_redrawn_often_keeps_one_state_per_second() -> None:
    reader = ScriptBarsReader(LogRuns(), "a", next(s for s in SOURCES if s.name == "progress-bars"))
    for n in range(1, 1001):
        reader.take_bar(ProgressBar("", n, 1000, float(n // 100), 0.01, {}))
    ((_, bars),) = reader.loops.items()
    assert [bar.n for bar in bars] == [*range(99, 1000, 100), 1000]


def test_bars_of_downloads_are_no_training(tmp_path: Path) -> None:
    with pytest.raises(TraceprofError):
        one_run(tmp_path, "Downloading: 100%|###| 900/900 [05:00<00:00, 3.00it/s]\n")


@pytest.mark.parametrize(
    ("n", "elapsed_s", "period_s", "pass_s"),
    [(8, 4.0, 0.6, 4.8), (8, 4.0, 0.7, 4.0), (8, 4.0, 0.4, 4.0), (8, 4.0, None, 4.0)],
    ids=["mean", "longer", "shorter", "no rate"],
)
def test_the_rate_of_a_complete_pass_has_more_digits_than_its_seconds(
    n: int, elapsed_s: float, period_s: float | None, pass_s: float
) -> None:
    """A smoothed rate that does not fit the seconds is not used."""
    bar = ProgressBar("", n, n, elapsed_s, period_s, {})
    assert bar.pass_s == pytest.approx(pass_s)


def test_the_clock_of_modded_nanogpt_restarts_after_the_warm_up(tmp_path: Path) -> None:
    run = one_run(
        tmp_path,
        "step:0/100 val_loss:10.8 train_time:0ms step_avg:nanms\n"
        "step:9/100 train_loss:9.0 train_time:9000ms step_avg:nanms\n"
        "step:20/100 train_loss:8.0 train_time:1400ms step_avg:140.00ms\n"
        "step:40/100 train_loss:7.0 train_time:4200ms step_avg:140.00ms\n"
        "step:100/100 val_loss:3.25 train_time:12600ms step_avg:140.00ms\n",
    )
    assert run.origin == "log:modded-nanogpt"
    assert rows(run, "step_period_ns")["value"].tolist() == [140e6, 140e6]
    assert run.measure("last_val_loss") == 3.25
