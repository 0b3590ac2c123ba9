"""Lines that scripts print per step, in the forms that people use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import one_run, rows, said
from traceprof.errors import TraceprofError
from traceprof.render.formatting import sentences

MS = 1e6
LINES = 12
FORMS = {
    "step {0} loss 2.5 time 120.5ms tok/s 135000": {"tokens_per_s": 135000, "last_loss": 2.5},
    "step {0:5d} | loss 2.5 | lr 3e-4 | dt 120.50ms | tok/sec 135,000.00": {
        "tokens_per_s": 135000,
        "step_period_ns": 120.5 * MS,
    },
    "INFO train: step={0} loss=2.5 throughput=512.5 samples/s": {"samples_per_s": 512.5},
    "Epoch 1/3, Step {0}/1000, Loss: 2.5, Time: 1.2s, Images/sec: 415.2": {"samples_per_s": 415.2},
    "Iteration {0}: loss = 2.5, iteration time = 0.5 s, throughput = 962 samples/sec": {
        "samples_per_s": 962,
        "step_period_ns": 500 * MS,
    },
    "__main__ - INFO - Step {0}: train_loss=2.5, step_time=0.25s, samples_per_sec=128.0": {
        "samples_per_s": 128,
        "step_period_ns": 250 * MS,
        "last_loss": 2.5,
    },
    "INFO:root:iter: {0} loss: 2.5 batch_time: 0.3 data_time: 0.012 images/s: 850.2": {
        "samples_per_s": 850.2,
        "step_period_ns": 300 * MS,
    },
    "Train Step: {0}\tLoss: 2.5\tIter time: 301 ms\tTokens/s: 54213\tMFU: 41.2%": {
        "tokens_per_s": 54213,
        "step_period_ns": 301 * MS,
        "mfu_ratio": 0.412,
    },
    "10:00:00 step {0} loss 2.5 (0.5 s/it, 71.1 samples/s)": {
        "samples_per_s": 71.1,
        "step_period_ns": 500 * MS,
    },
    "[rank0]: it {0} - loss 2.5 - 250.0ms/step - 16384 tok/s/gpu - mem 60.2GB": {
        "tokens_per_s_per_device": 16384,
        "step_period_ns": 250 * MS,
    },
    "| step {0} | train loss 2.5 | 4.0 it/s | 102.4 samples/s |": {
        "samples_per_s": 102.4,
        "steps_per_s": 4,
        "step_period_ns": 250 * MS,
    },
    "Step {0} took 0.5s, loss=2.5": {"step_period_ns": 500 * MS, "last_loss": 2.5},
    "[TRAIN] [Rank 0] step: {0}, loss: 2.5, tokens_per_second: 76477.73, mfu: 37.59": {
        "tokens_per_s": 76477.73,
        "mfu_ratio": 0.3759,
    },
    '{{"step": {0}, "loss": 2.5, "tokens_per_sec": 52311.2, "step_time_ms": 312.5}}': {
        "tokens_per_s": 52311.2,
        "step_period_ns": 312.5 * MS,
    },
    "DEEPMD INFO   Batch {0:7d}: total wall time = 18.42 s, step time = 0.1841 s, eta = 0:10": {
        "step_period_ns": 184.1 * MS,
    },
    "{{'step': {0}, 'loss': 2.5, 'toks_per_sec': 81234.1, 'epoch': 0.1}}": {
        "tokens_per_s": 81234.1
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_lines_of_scripts(form: str, tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(form.format(step) + "\n" for step in range(1, 1 + LINES)))
    for name, value in FORMS[form].items():
        assert run.measure(name) == pytest.approx(value), name


def test_a_time_per_line_is_that_of_a_step_if_each_step_has_a_line(tmp_path: Path) -> None:
    lines = "".join(f"step {step}: loss 2.5, time {400 + step % 2}ms\n" for step in range(9))
    assert one_run(tmp_path, lines).measure("step_period_ns") == pytest.approx(400 * MS, rel=0.01)


def test_a_time_every_ten_steps_is_not_said_to_be_that_of_a_step(tmp_path: Path) -> None:
    lines = "".join(f"step {10 * i}: loss 2.5, time {400 + i % 2}ms\n" for i in range(9))
    run = one_run(tmp_path, lines)
    assert run.measure("step_period_ns") is None
    assert "every {n:count} steps, of one step or of all of them" in said(run)


def test_times_since_the_start_are_no_step_times(tmp_path: Path) -> None:
    lines = "".join(f"step {step}: loss 2.5, time {400 * (1 + step)}ms\n" for step in range(9))
    assert one_run(tmp_path, lines).measure("step_period_ns") is None


def test_steps_by_the_time_of_day_also_after_midnight(tmp_path: Path) -> None:
    stamps = ["23:59:40", "23:59:50", *(f"00:{i // 6:02d}:{i % 6}0" for i in range(10))]
    text = "".join(f"{stamp} step {2 * i} loss 2.5\n" for i, stamp in enumerate(stamps))
    assert one_run(tmp_path, text).measure("overall_step_period_ns") == 5e9


def test_steps_that_go_on_in_the_next_epoch_are_one_run(tmp_path: Path) -> None:
    lines = "".join(
        f"Epoch {1 + step // 10}, step {step}: loss 2.5, 4.0 it/s\n" for step in range(1, 30)
    )
    run = one_run(tmp_path, lines)
    assert run.measure("steps_per_s") == 4
    assert run.table("metrics").to_frame()["step"].max() == 29


def test_prose_with_a_step_is_no_log(tmp_path: Path) -> None:
    for text in ("step 1: install torch\nstep 2: run it\n", "In step 3 we set the loss.\n"):
        with pytest.raises(TraceprofError):
            one_run(tmp_path, text)


def test_the_phases_of_deepspeed(tmp_path: Path) -> None:
    line = (
        "[INFO] [logging.py:107:log_dist] [Rank 0] time (ms) | fwd: 114.5 | bwd: 230.5 | step: 9.5"
    )
    run = one_run(tmp_path, (line + "\n") * 3)
    assert run.origin == "log:deepspeed"
    for name, ms in (("forward_ns", 114.5), ("backward_ns", 230.5), ("optimizer_ns", 9.5)):
        assert run.measure(f"{name}") == ms * MS


def test_bars_of_rich_without_the_number_of_epochs(tmp_path: Path) -> None:
    bar = "Epoch 0 ━━━━━━━━━━━━ {0}/500 0:00:{1:02d} • 0:00:18 25.0it/s v_num: 0.000\n"
    run = one_run(tmp_path, "".join(bar.format(50 * i, 2 * i) for i in range(1, 11)))
    assert run.origin == "log:lightning"
    assert run.measure("step_period_ns") == 40 * MS


def test_negative_times_and_rates_are_in_no_number(tmp_path: Path) -> None:
    """A negative loss stays; a clock that went back is no step time."""
    times = (20, -5000, 20)
    lines = [f"step {i}: loss=-0.5 time={ms} ms" for i, ms in enumerate(times)]
    run = one_run(tmp_path, "\n".join(lines) + "\n")
    assert rows(run, "step_period_ns")["value"].tolist() == [20e6, 20e6]
    assert rows(run, "loss")["value"].tolist() == [-0.5] * 3
    assert "ignored 1 negative value of times or rates" in sentences(run.notes)
