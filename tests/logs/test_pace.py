"""Pauses, lasting changes, and overall rates of a log, from its timestamps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from traceprof.cli import app
from traceprof.comparison.comparing import compare_named
from traceprof.comparison.runs_named import summaries_of
from traceprof.logs.reading import read_log
from traceprof.model.summary import Summary
from traceprof.render.formatting import sentences

BATCH = 256
PER_LINE = 10


def megatron(
    path: Path, steps_s: Sequence[float], pauses_s: dict[int, float] | None = None
) -> Path:
    """Write a log of Megatron-LM: a line per 10 steps, and pauses before lines (by number)."""
    now, lines = datetime(2026, 3, 1), []
    for number, step_s in enumerate(steps_s, 1):
        now += timedelta(seconds=PER_LINE * step_s + (pauses_s or {}).get(number, 0.0))
        step = number * PER_LINE
        lines.append(
            f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8}/ 900 | consumed samples: "
            f"{step * BATCH} | elapsed time per iteration (ms): {step_s * 1e3:.1f} | "
            f"learning rate: 1.0E-04 | global batch size: {BATCH} | lm loss: 5.0E+00 | "
            "loss scale: 1.0 | grad norm: 0.500 | number of skipped iterations: 0 |"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def torchtitan(path: Path, rate: float, line_s: float, pause_s: float = 0.0) -> Path:
    """Write a log of torchtitan: 30 lines of 10 steps; a pause before the 10th and the 20th."""
    now = datetime(2026, 3, 1, 10)
    lines = [
        f"[rank0]:[titan] {now:%Y-%m-%d %H:%M:%S},000 - root - INFO - "
        "Building 1-D device mesh with ['dp_shard'], [8]"
    ]
    now += timedelta(seconds=60)
    for number in range(1, 31):
        now += timedelta(seconds=line_s + pause_s * (number in (10, 20)))
        lines.append(
            f"[rank0]:[titan] {now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03} - root - INFO - "
            f"step: {number * 10:3}  loss:  7.9800  grad_norm: 1.0000  "
            f"memory: 49.66GiB(52.28%)  tps: {rate:,.0f}  tflops: 677.60  mfu: 68.51%"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def run_of(path: Path) -> Summary:
    (run,) = summaries_of([str(path)])
    return run


def test_two_levels_and_pauses_are_named(tmp_path: Path) -> None:
    # 300 steps of 1.0 s, 300 of 1.5 s, and a pause of 40 s after every 100 steps: 750 + 200 s.
    pauses = dict.fromkeys((11, 21, 31, 41, 51), 40.0)
    run = run_of(megatron(tmp_path / "slows.log", [1.0] * 30 + [1.5] * 30, pauses))
    assert run.measure("overall_step_period_ns") == pytest.approx(950e9 / 600)
    assert run.measure("overall_samples_per_s") == pytest.approx(600 * BATCH / 950)
    assert run.measure("pauses_ns") == pytest.approx(200e9)
    assert run.measure("step_period_ns") == pytest.approx(1.25e9, rel=0.005)
    said = sentences(run.notes)
    assert said == [
        "step_period_ns changes after step 300: 1.00 s before, 1.50 s later (+50.0%)",
        "200 s of 950 s (21.1%) in 5 pauses, the longest 40.0 s, every 100 steps; the overall "
        "rates include them",
    ]


def test_a_steady_run_has_no_pauses_and_no_change(tmp_path: Path) -> None:
    run = run_of(megatron(tmp_path / "flat.log", [1.0 + 0.01 * (i * 7 % 5) for i in range(60)]))
    assert run.measure("pauses_ns") is None
    assert run.measure("overall_step_period_ns") == pytest.approx(
        run.measure("step_period_ns"), rel=0.01
    )
    assert sentences(run.notes) == []


def test_slow_steps_at_the_start_are_warm_up_and_no_change(tmp_path: Path) -> None:
    run = run_of(megatron(tmp_path / "warm.log", [4.0] + [1.0] * 29))
    (said,) = sentences(run.notes)
    assert said.startswith("step_period_ns excludes the first steps: 4.00 s at the start")


def test_slow_intervals_whose_lines_report_slow_steps_are_no_pauses(tmp_path: Path) -> None:
    steps_s = [1.0] * 40
    steps_s[12] = steps_s[29] = 3.0
    said = sentences(run_of(megatron(tmp_path / "slow.log", steps_s)).notes)
    assert said == [
        "40.0 s of 440 s (9.1%) in 2 slow intervals, the longest 20.0 s, before steps 130, "
        "300; the overall rates include them"
    ]


def test_pauses_of_a_run_that_prints_rates(tmp_path: Path) -> None:
    run = run_of(torchtitan(tmp_path / "titan.log", 10_000, 14.0, pause_s=60))
    assert run.measure("tokens_per_s_per_device") == 10_000
    # 420 s of steps and 120 s of pauses; the minute before the first step is setup.
    assert run.measure("overall_tokens_per_s_per_device") == pytest.approx(10_000 * 420 / 540)
    assert run.measure("overall_tokens_per_s") == pytest.approx(80_000 * 420 / 540)
    assert run.measure("step_period_ns") == pytest.approx(1.4e9)
    assert any(
        text.startswith("120 s of 540 s (22.2%) in 2 pauses") for text in sentences(run.notes)
    )


def test_whole_seconds_are_no_pauses(tmp_path: Path) -> None:
    run = run_of(torchtitan(tmp_path / "titan.log", 10_000, 3.4))
    text = (tmp_path / "titan.log").read_text()
    (tmp_path / "whole.log").write_text(re.sub(r",\d{3} - root", ",000 - root", text))
    whole = run_of(tmp_path / "whole.log")
    assert whole.measure("pauses_ns") is None
    assert whole.measure("step_period_ns") == pytest.approx(run.measure("step_period_ns"), rel=0.01)


def test_two_logs_are_compared_by_their_rates(tmp_path: Path) -> None:
    base = torchtitan(tmp_path / "base.log", 11_703, 14.0)
    new = torchtitan(tmp_path / "new.log", 10_176, 16.1)
    found = compare_named([base], [new], limits=["5%"])
    said = sentences(found.verdict)
    assert said[0].startswith("new is slower than base: 13.0% fewer tokens per second (95%")
    assert said[1].startswith("A step takes 1.61 s, compared with 1.40 s in the base")
    steps = found.results["steps"].table
    assert steps["period_ns"][steps["side"] == "new"] == pytest.approx(1.61e9)
    (limit,) = found.results["limits"].table.rows()
    assert (limit["measure"], limit["is_exceeded"]) == ("tokens_per_s", True)


def test_pauses_are_compared_by_the_overall_rates(tmp_path: Path) -> None:
    base = torchtitan(tmp_path / "base.log", 10_000, 14.0)
    new = torchtitan(tmp_path / "new.log", 10_000, 14.0, pause_s=60)
    found = compare_named([base], [new], limits=["5%"])
    said = sentences(found.verdict)
    assert said[0].startswith("No difference shown between base and new: tokens per second 0.0%")
    assert any(
        text.startswith("With pauses such as checkpoints, tokens per second: 62,200 /s")
        for text in said
    )
    assert any(text.startswith("new: 120 s of 540 s") for text in sentences(found.notes))
    same = compare_named([base], [base])
    assert not any(text.startswith("With pauses") for text in sentences(same.verdict))


def test_logs_have_reports(tmp_path: Path) -> None:
    base = torchtitan(tmp_path / "base.log", 10_000, 14.0)
    new = torchtitan(tmp_path / "new.log", 9_000, 15.5, pause_s=60)
    page = tmp_path / "page.html"
    one = CliRunner().invoke(app, ["report", str(new), "-o", str(page)])
    assert one.exit_code == 0, one.stderr
    assert "in 2 pauses, the longest 60.0 s" in page.read_text("utf-8")
    two = CliRunner().invoke(app, ["report", str(base), str(new), "-o", str(page), "-f"])
    assert two.exit_code == 0, two.stderr
    assert "new is slower than base: 10.0% fewer tokens per second" in page.read_text("utf-8")
    (tmp_path / "notes.txt").write_text("nothing\n")
    neither = CliRunner().invoke(app, ["report", str(tmp_path / "notes.txt")])
    assert neither.exit_code == 3


@pytest.mark.parametrize(
    ("line_s", "measured_s"),
    [(30.0, 3.0), (2.5, 0.25), (2.0, None)],
    ids=["long", "exact", "whole"],
)
def test_steps_of_a_log_without_step_times_have_those_of_its_clock(
    line_s: float, measured_s: float | None, tmp_path: Path
) -> None:
    """Timestamps in whole seconds are too coarse for the usual step, but not for the whole run."""
    rows = [{"step": 10 * n, "loss": 2.5, "elapsed_s": line_s * n} for n in range(1, 14)]
    rows += [{"step": 140, "loss": 2.5, "elapsed_s": line_s * 14 + 60.0}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run,) = read_log(path, columns={"elapsed_s": "elapsed_s", "step": "step", "loss": "loss"})
    overall_s = (line_s * 13 + 60.0) / 130
    assert run.measure("overall_step_period_ns") == pytest.approx(overall_s * 1e9)
    expected = None if measured_s is None else pytest.approx(measured_s * 1e9)
    assert run.measure("step_period_ns") == expected
