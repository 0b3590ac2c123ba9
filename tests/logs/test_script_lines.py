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


MULTIPLES: dict[str, dict[str, float]] = {
    "[rank 0] Step: {0} | Loss: 2.5 | Tokens/s:  45.60K | Tokens/s/GPU:   5.70K | MFU: 38.20%": {
        "tokens_per_s": 45_600,
        "tokens_per_s_per_device": 5_700,
        "mfu_ratio": 0.382,
    },
    "iteration: {0} / 1000 | elapsed_time_per_iteration_ms: 1.25K | tokens_per_sec: 852K | "
    "tokens_per_sec_per_gpu: 106K | lm_loss: 2.5": {
        "step_period_ns": 1_250 * MS,
        "tokens_per_s": 852_000,
        "tokens_per_s_per_device": 106_000,
    },
    "step {0} | loss 2.5 | 135k tok/s | 1.2s/step": {"tokens_per_s": 135_000},
    "Step {0} | loss:2.5 tokens_per_second_per_gpu:1234.5": {"tokens_per_s_per_device": 1234.5},
    "Epoch 0 | Step {0} | Loss 2.5 | Speed (samples/sec) 86123.5 | GPU 1234.5 MB": {
        "samples_per_s": 86123.5
    },
}


@pytest.mark.parametrize("form", MULTIPLES)
def test_letters_behind_a_number_are_multiples_or_units(form: str, tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(form.format(step) + "\n" for step in range(1, 1 + LINES)))
    for name, value in MULTIPLES[form].items():
        assert run.measure(name) == pytest.approx(value), name


def test_a_number_with_an_unknown_unit_is_not_read_as_one_without(tmp_path: Path) -> None:
    lines = "".join(f"step {step} loss 2.5 samples_per_sec 852Q\n" for step in range(9))
    measures = one_run(tmp_path, lines).table("measures").to_frame()["measure"].tolist()
    assert measures == ["last_loss"]


def test_lines_of_epochs_have_losses_accuracies_and_rates(tmp_path: Path) -> None:
    lines = "".join(
        f"epoch:{epoch:3d}, train_loss: 0.{epoch}, train_accuracy: 93.5, test_loss: 0.5, "
        f"test_accuracy: {0.5 + epoch:.1f}\n"
        for epoch in range(1, 9)
    )
    run = one_run(tmp_path, lines)
    assert run.measure("last_loss") == pytest.approx(0.8)
    assert run.measure("last_val_loss") == pytest.approx(0.5)
    assert run.measure("last_train_top1") == pytest.approx(0.935)
    # The first one, 1.5 %, is no share of 1, because later ones are above 1.
    table = run.table("metrics").to_frame()
    assert table[table["metric"] == "top1"]["value"].tolist() == pytest.approx(
        [(0.5 + epoch) / 100 for epoch in range(1, 9)]
    )


def test_a_bare_loss_behind_validation_is_that_of_the_validation(tmp_path: Path) -> None:
    lines = "".join(
        f"Epoch {epoch} train loss 2.5\nEpoch {epoch} validation: loss 3.5, acc 0.7\n"
        for epoch in range(4)
    )
    run = one_run(tmp_path, lines)
    assert run.measure("last_loss") == pytest.approx(2.5)
    assert run.measure("last_val_loss") == pytest.approx(3.5)
    assert run.measure("last_top1") == pytest.approx(0.7)


def test_the_time_of_epochs_may_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    lines = "".join(f"Epoch {epoch}: loss: 2.5 time {10 * (epoch + 1)}s\n" for epoch in range(6))
    run = one_run(tmp_path, lines)
    epochs = run.table("epochs").to_frame()
    assert epochs["duration_ns"].tolist() == [10e9] * 6
    assert epochs["at_ns"].tolist() == [10e9 * epoch for epoch in range(6)]
    assert run.table("metrics").to_frame()["at_ns"].tolist() == [10e9 * n for n in range(1, 7)]
    assert "counts from the start of the run" in said(run)


def test_the_rate_in_a_line_about_an_epoch(tmp_path: Path) -> None:
    lines = "".join(
        f"Epoch [{epoch}/90] Loss: 2.31 Time: 51.2 sec Throughput: 25K img/s\n" for epoch in (1, 2)
    )
    assert one_run(tmp_path, lines).measure("samples_per_s") == pytest.approx(25_000)


TRAPS: dict[str, dict[str, float]] = {
    "step {0} loss 2.5 | ms/step=120.5 | 12.5 tok/s": {"step_period_ns": 120.5 * MS},
    "iter {0} loss 2.5 s/it: 0.52": {"step_period_ns": 520 * MS},
    "| epoch   1 | {0:5d}/ 2983 batches | lr 20.00 | ms/batch 35.50 | loss  7.63 | ppl  2061.93": {
        "step_period_ns": 35.5 * MS,
        "last_loss": 7.63,
    },
    # The rate of another unit is none of samples.
    "step {0} loss 2.5 speed 120 MB/s 512 img/s": {"samples_per_s": 512},
    "step {0} tok/s 1,135,000 loss 2.5": {"tokens_per_s": 1_135_000},
}


@pytest.mark.parametrize("form", TRAPS)
def test_units_before_and_behind_numbers(form: str, tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(form.format(step) + "\n" for step in range(1, 1 + LINES)))
    for name, value in TRAPS[form].items():
        assert run.measure(name) == pytest.approx(value), name


@pytest.mark.parametrize(
    "form",
    [
        "step {0} loss 2,31 samples/s 12,5",
        "step {0} loss 0,231 samples/s 0,125",
        "Epoch {0} took 12,5 s",
        "Epoch {0}: time 12,5 s",
        "Epoch {0} took 02:30",
    ],
)
def test_decimal_commas_and_unclear_clocks_are_refused(form: str, tmp_path: Path) -> None:
    with pytest.raises(TraceprofError):
        one_run(tmp_path, "".join(form.format(step) + "\n" for step in range(1, 1 + LINES)))


@pytest.mark.parametrize("text", ["took 0:02:30", "finished in 0:02:30.00", "took 2m 30s"])
def test_the_duration_of_an_epoch_as_a_clock(text: str, tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(f"Epoch {epoch} {text}\n" for epoch in range(3)))
    assert run.table("epochs").to_frame()["duration_ns"].tolist() == [150e9] * 3


def test_a_duration_with_a_colon_is_not_its_first_number(tmp_path: Path) -> None:
    lines = "".join(f"step {step} loss 2.5 step_time 1:23\n" for step in range(LINES))
    measures = one_run(tmp_path, lines).table("measures").to_frame()["measure"].tolist()
    assert measures == ["last_loss"]


def test_the_total_time_as_a_clock(tmp_path: Path) -> None:
    lines = "Epoch 0 took 600 s\nEpoch 1 took 600 s\nTotal training time: 0:20:30\n"
    assert one_run(tmp_path, lines).measure("total_ns") == 1230e9


def test_negative_times_and_rates_are_in_no_number(tmp_path: Path) -> None:
    """A negative loss stays; a clock that went back is no step time."""
    times = (20, -5000, 20)
    lines = [f"step {i}: loss=-0.5 time={ms} ms" for i, ms in enumerate(times)]
    run = one_run(tmp_path, "\n".join(lines) + "\n")
    assert rows(run, "step_period_ns")["value"].tolist() == [20e6, 20e6]
    assert rows(run, "loss")["value"].tolist() == [-0.5] * 3
    assert "ignored 1 negative value of times or rates" in sentences(run.notes)
