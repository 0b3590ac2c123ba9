"""Each source by a few lines in its form, made up here: what is read, and whose it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.logs.reading import all_runs, kinds, one_run, rows, said, scope_of
from tests.requirements import ROOT
from traceprof.logs import read_log, source_names
from traceprof.logs.sources import SOURCES, reader_of

S = 1e9


def mllog(key: str, time_ms: int, value: object = None, **about: object) -> str:
    event = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key}
    return f":::MLLOG {json.dumps({**event, 'value': value, 'metadata': about})}\n"


def mlperf(epochs: list[int], rate: float, *, ranks: int = 2, stop: str = "success") -> str:
    """Return a log of 100 samples in each epoch, which takes so many ms; one evaluation each."""
    text = "".join(mllog("init_start", 1000) for _ in range(ranks))
    text += mllog("submission_benchmark", 1000, "resnet") + mllog("global_batch_size", 1000, 10)
    text += mllog("submission_poc_email", 1000, "a@b.example")
    text += mllog("init_stop", 3000) + mllog("run_start", 3000) + mllog("train_samples", 3000, 100)
    now = 3000
    for number, length in enumerate(epochs, 1):
        text += mllog("epoch_start", now, epoch_num=number)
        now += length
        text += mllog("epoch_stop", now, epoch_num=number)
        text += mllog("throughput", now, rate) + mllog("eval_start", now, epoch_num=number)
        now += 500
        text += mllog("eval_stop", now, epoch_num=number)
        text += mllog("eval_accuracy", now, number / 10, epoch_num=number)
    return text + mllog("run_stop", now, status=stop)


def test_mlperf(tmp_path: Path) -> None:
    run = one_run(tmp_path, mlperf([20_000, 10_000, 10_000, 10_000], 10.1))
    assert run.measure("time_to_train_ns") == 52 * S
    assert run.measure("samples_per_s") == pytest.approx(10)
    assert run.measure("printed_samples_per_s") == pytest.approx(10.1)
    assert run.measure("world_size") == 2
    assert run.workload == "resnet"
    assert rows(run, "top1")["value"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert rows(run, "top1")["at_ns"].tolist() == [22.5 * S, 33 * S, 43.5 * S, 54 * S]
    assert kinds(run).count("evaluation") == 4
    assert run.started_utc_ns == 1 * S
    assert "contradicts" not in said(run)
    assert "example" not in repr(run)


def test_a_throughput_that_the_times_of_epochs_rule_out(tmp_path: Path) -> None:
    run = one_run(tmp_path, mlperf([20_000, 10_000, 10_000, 10_000], 70))
    assert "contradicts itself" in said(run)
    assert run.measure("samples_per_s") == pytest.approx(10)


def test_an_aborted_run_has_no_time_to_train(tmp_path: Path) -> None:
    run = one_run(tmp_path, mlperf([10_000], 10, stop="aborted"))
    assert run.measure("time_to_train_ns") is None
    assert run.measure("run_ns") == 10.5 * S


def test_logs_of_mlperf_behind_one_another_are_several_runs(tmp_path: Path) -> None:
    runs = all_runs(tmp_path, mlperf([10_000], 10) + mlperf([20_000], 5))
    assert [run.measure("time_to_train_ns") for run in runs] == [10.5 * S, 20.5 * S]


def test_the_first_mlperf(tmp_path: Path) -> None:
    text = "".join(
        f":::MLPv0.5.0 resnet {at}.000000000 (a.py:1) {rest}\n"
        for at, rest in (
            (1541635612, "run_start"),
            (1541635712, 'eval_accuracy: {"epoch": 4, "value": 0.7}'),
            (1541635713, 'run_stop: {"success": true}'),
        )
    )
    assert one_run(tmp_path, text).measure("time_to_train_ns") == 101 * S


def test_lower_is_better_where_the_target_says_so(tmp_path: Path) -> None:
    text = mllog("run_start", 0) + mllog("target_accuracy", 0, 3.4)
    for i, value in enumerate((5.0, 3.3)):
        text += mllog("eval_accuracy", 1000 * i, value, samples_count=100 * i)
    assert one_run(tmp_path, text).measure("best_eval_loss") == 3.3


HF_BANNER = """***** Running training *****
  Num examples = 1,000
  Num Epochs = 2
  Instantaneous batch size per device = 4
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 2
  Total optimization steps = 32
"""


def test_hf_trainer(tmp_path: Path) -> None:
    bars = "\r".join(
        f"\r {3 * n:2d}%|###       | {n}/32 [{n * 4 // 60:02d}:{n * 4 % 60:02d}<01:00,  4.00s/it]"
        for n in range(1, 33)
    )
    text = HF_BANNER + bars + "\n{'loss': 2.5, 'grad_norm': nan, 'epoch': 1.0}\n"
    text += "{'eval_loss': 2.1, 'eval_accuracy': 0.6, 'eval_runtime': 3.0, 'epoch': 2.0}\n"
    text += "{'train_runtime': 140.0, 'train_samples_per_second': 14.2, "
    text += "'train_steps_per_second': 0.229, 'train_loss': 2.4, 'epoch': 2.0}\n"
    run = one_run(tmp_path, text)
    assert run.measure("world_size") == 8
    assert run.measure("step_period_ns") == 4 * S
    assert rows(run, "loss")[["step", "value", "samples_count"]].to_numpy().tolist() == [
        [16, 2.5, 1024],
    ]
    assert run.measure("best_top1") == 0.6 and run.measure("best_val_loss") == 2.1
    assert run.measure("samples_per_s") == 14.2
    assert run.measure("total_ns") == 140 * S


def test_samples_per_second_of_old_trainers_are_steps(tmp_path: Path) -> None:
    text = "{'train_runtime': 100.0, 'train_samples_per_second': 3.2, 'epoch': 3.0}\n"
    run = one_run(tmp_path, text)
    assert run.measure("samples_per_s") is None
    assert run.measure("steps_per_s") == 3.2
    assert "May 2021" in said(run)


def test_lightning(tmp_path: Path) -> None:
    text = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n"
    for n in range(0, 41, 10):
        text += f"\rEpoch 1: {n * 2:3d}%|###  | {n}/50 [01:{n:02d}<00:10, 1.00it/s, v_num=3, "
        text += f"train_loss=0.{n}, val_acc=0.5]"
    text += "\rValidation DataLoader 0: 100%|####| 5/5 [00:01<00:00, 9.0it/s]\n"
    text += "`Trainer.fit` stopped: `max_epochs=2` reached.\n"
    run = one_run(tmp_path, text)
    assert run.measure("world_size") == 4
    assert rows(run, "loss")["step"].tolist() == [60, 70, 80, 90]
    metrics = run.table("metrics").to_frame()
    assert "v_num" not in set(metrics["metric"])
    # Only the `loss` of old versions is smoothed; validation is of the whole epoch.
    assert set(metrics[metrics["metric"] == "loss"]["over"]) == {"step"}
    assert set(metrics[metrics["metric"] == "top1"]["over"]) == {"run"}
    assert kinds(run) == ["end"]


def test_rich_bars_of_lightning(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch 3/9  ━━━━━━╸    {n}/100 0:00:{n:02d} • 0:00:50 1.00it/s loss: 0.{n}\n"
        for n in (10, 50)
    )
    run = one_run(tmp_path, text)
    assert run.origin == "log:lightning"
    assert rows(run, "loss")[["step", "over"]].to_numpy().tolist() == [[310, "ema"], [350, "ema"]]


def test_metrics_csv(tmp_path: Path) -> None:
    text = "epoch,lr-Adam,step,train_loss,val_loss\n,0.001,49,,\n0,,49,0.57,\n0,,67,,0.43\n"
    run = one_run(tmp_path, text, "metrics.csv")
    assert rows(run, "loss")[["step", "value"]].to_numpy().tolist() == [[50, 0.57]]
    assert rows(run, "val_loss")[["epoch", "value"]].to_numpy().tolist() == [[1, 0.43]]


def test_timm(tmp_path: Path) -> None:
    text = ""
    for idx, (now, mean) in ((0, (5.0, 5.0)), (50, (0.1, 0.2)), (99, (0.1, 0.151))):
        text += f"Train: 0 [{idx:>4d}/100 ({idx:>3d}%)]  Loss:  6.93 (6.94)  Time: {now:.3f}s, "
        text += f"{128 / now:.2f}/s  ({mean:.3f}s, {128 / mean:.2f}/s)  LR: 1.0e-05  Data: 0 (0)\n"
    text += "Test: [  30/30]  Time: 0.2 (0.5)  Loss:  1.0 ( 2.0)  Acc@1: 63.5 ( 39.2)  "
    text += "Acc@5: 80.0 ( 85.0)\nTest (EMA): [  30/30]  Time: 0.2 (0.5)  Loss:  1.0 ( 2.0)  "
    text += "Acc@1: 1.0 ( 41.0)  Acc@5: 80.0 ( 85.0)\n"
    run = one_run(tmp_path, text)
    assert run.measure("global_batch_count") == 128
    assert rows(run, "top1")[["step", "epoch", "value"]].to_numpy().tolist() == [[100, 1, 0.392]]
    assert rows(run, "top1_ema")["value"].tolist() == [0.41]
    assert run.measure("samples_per_s") == pytest.approx(128 / 0.1, rel=0.02)
    assert scope_of(run, "samples_per_s") == "run"


def test_torchvision(tmp_path: Path) -> None:
    text = "Namespace(batch_size=32, epochs=90, model='resnet50', world_size=8)\n"
    for i in (0, 10, 20):
        text += f"Epoch: [0]  [{i:>3d}/21]  eta: 0:00:09  lr: 0.1  img/s: 3200.5  loss: 6.9 (7.0)  "
        text += "acc1: 10.0 (5.0)  acc5: 20.0 (9.0)  time: 0.0500  data: 0.0300  max mem: 100\n"
    text += "Epoch: [0] Total time: 0:00:01 (0.0520 s / it)\n"
    for line in ("Test:  Acc@1 77.000 Acc@5 92.862", " * Acc@1 77.0 Acc@5 93.0 loss 0.95"):
        assert one_run(tmp_path, f"{text}{line}\n").measure("best_top1") == 0.77
    run = one_run(tmp_path, text)
    assert scope_of(run, "compute_samples_per_s_per_rank") == "rank"
    assert run.measure("samples_per_s") == pytest.approx(8 * 32 / 0.052)
    assert rows(run, "train_top1")["scope"].unique().tolist() == ["rank"]


def test_imagenet_counts_from_0_or_from_1_and_leaves_the_first_batch_out(tmp_path: Path) -> None:
    for first, means in ((0, (10.0, 1.9, 1.5)), (1, (10.0, 1.9, 1.5))):
        text = "".join(
            f"Epoch: [0][{first + i:>4d}/100]\tTime  1.000 ({mean:6.3f})\tData  0.000 ( 0.060)\t"
            "Loss 2.39e+01 (1.52e+01)\tAcc@1   0.00 (  5.68)\tAcc@5  12.50 ( 27.27)\n"
            for i, mean in zip((0, 10, 20), means, strict=True)
        )
        run = one_run(tmp_path, text + " *   Acc@1 69.758 Acc@5 89.078\n")
        periods = rows(run, "step_period_ns")["value"] / S
        expected = [(11 * 1.9 - 10) / 10, (21 * 1.5 - 11 * 1.9) / 10]
        assert periods.tolist() == pytest.approx(expected)
        assert run.measure("best_top1") == pytest.approx(0.69758)


def test_processes_that_print_without_a_name_are_averaged(tmp_path: Path) -> None:
    line = (
        "Epoch: [0][{:>4d}/100]\tTime  1.0 ( 1.0)\tData 0.0 (0.0)\tLoss {} (1.0)\tAcc@1 0.0 (1.0)\n"
    )
    text = "".join(line.format(i, loss) for i in (0, 10, 20) for loss in (1.0, 3.0))
    run = one_run(tmp_path, text)
    assert rows(run, "loss")["value"].tolist() == [2.0, 2.0, 2.0]
    assert "processes print" in said(run)


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "[1,{}]<stdout>:", "{}: "])
def test_ranks_that_say_who_they_are_are_kept_apart(tmp_path: Path, prefix: str) -> None:
    line = (
        "Epoch: [0][{:>4d}/100]\tTime  1.0 ( 1.0)\tData 0.0 (0.0)\tLoss {} (1.0)\tAcc@1 0.0 (1.0)\n"
    )
    text = "".join(
        prefix.format(rank) + line.format(i, rank) for i in (0, 10, 20) for rank in (0, 1)
    )
    loss = rows(one_run(tmp_path, text), "loss")
    assert loss.groupby("rank")["value"].unique().tolist() == [[0], [1]]


MEGATRON = (
    " [2024-04-06 02:59:{:02d}] iteration {:8d}/     100 | consumed samples: {:12d} | elapsed time "
    "per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 239.8 | learning rate: 8.6E-06 "
    "| global batch size:   128 | lm loss: 1.8E+00 | loss scale: 1.0 | grad norm: 1.4 | number of "
    "skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def test_megatron(tmp_path: Path) -> None:
    text = "using world size: 16, data-parallel-size: 2\n  seq_length ................. 4096\n"
    text += "".join(MEGATRON.format(2 * i, 50 + i, 128 * (50 + i)) for i in range(5))
    text += " validation loss at iteration 54 | lm loss value: 2.1E+00 | lm loss PPL: 8.1E+00 |\n"
    run = one_run(tmp_path, text)
    assert run.measure("samples_per_s") == 64
    assert run.measure("tokens_per_s") == 64 * 4096
    assert run.measure("samples_per_s_per_device") == 4
    assert scope_of(run, "tflop_per_s_per_device") == "device"
    assert rows(run, "val_loss")[["step", "value"]].to_numpy().tolist() == [[54, 2.1]]
    assert "contradicts" not in said(run)


def test_megatron_of_2020_and_of_bigscience(tmp_path: Path) -> None:
    old = " iteration 10/100 | elapsed time per iteration (ms): 500.0 | learning rate 1.5E-04 | "
    run = one_run(tmp_path, old + "lm loss 1.0E+01 | loss scale 1.0 |\n")
    assert run.measure("last_loss") == 10 and run.measure("step_period_ns") == 0.5 * S
    text = "iteration 7/ 9 | elapsed time per iteration (s): 106.46 | global batch size: 2048 | "
    run = one_run(tmp_path, text + "samples per second: 19.238 | TFLOPs: 147.29 |\n")
    assert run.measure("step_period_ns") == 106.46 * S
    assert run.measure("samples_per_s") == 19.238
    assert "contradicts" not in said(run)


def test_deepspeed_in_its_generations(tmp_path: Path) -> None:
    for line, is_old in (
        ("0/{}, SamplesPerSec=100.5", True),
        ("0/{}, RunningAvgSamplesPerSec=99.0, CurrSamplesPerSec=100.5, MemAllocated=1.0GB, "
         "MaxMemAllocated=2.0GB", True),
        ("epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec=99.0, "
         "CurrSamplesPerSec=100.5", False),
    ):  # fmt: skip
        text = "".join(f"[INFO] [timer.py:1:stop] {line.format(i)}\n" for i in (10, 20, 30))
        run = one_run(tmp_path, text)
        assert run.measure("samples_per_s") == 100.5
        assert ("before 0.7.7" in said(run)) == is_old


def test_a_rate_of_one_gpu_that_is_called_that_of_all(tmp_path: Path) -> None:
    text = "  train_batch_size ............. 64\n  world_size ............. 8\n" + "".join(
        f"[2022-03-11 02:0{i}:00,000] [INFO] [timer.py:1:stop] 0/{60 * i}, "
        "RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0\n"
        for i in range(1, 5)
    )
    run = one_run(tmp_path, text)
    assert "contradicts itself" in said(run) and "one rank" in said(run)


def test_nanogpt(tmp_path: Path) -> None:
    text = "tokens per iteration will be: 491,520\n"
    text += "".join(
        f"iter {i}: loss 3.2, time {ms}ms, mfu {mfu}%\n"
        for i, ms, mfu in ((0, 9371.8, -100.0), (10, 1000.0, 16.6), (20, 1002.0, 16.6))
    )
    text += "step 30: train loss 1.5, val loss 1.7\niter 30: loss nan, time 35392.33ms, mfu 13.8%\n"
    run = one_run(tmp_path, text)
    assert run.measure("step_period_ns") == pytest.approx(1.001 * S)
    assert run.measure("tokens_per_s") == pytest.approx(491_520 / 1.001)
    assert run.measure("mfu_ratio_per_device") == pytest.approx(0.138)
    assert run.measure("best_val_loss") == 1.7
    assert {"first", "later"} <= set(run.notes[-1].values)


def test_torchtitan(tmp_path: Path) -> None:
    text = "- Building 1-D device mesh with ['dp_shard'], [8]\n" + "".join(
        f"[rank{rank}]:\x1b[31m step: {step:2d}  \x1b[32mloss: {9 - step}.5  \x1b[0mgrad_norm:  1  "
        f"memory: 40.00GiB(50.0%)  \x1b[34mtps: {tps:,}  tflops: 339.16  mfu: N/A\n"
        for step, tps in ((1, 500), (2, 5_000), (3, 5_010))
        for rank in range(2)
    )
    run = one_run(tmp_path, text + "validate step: 3  loss: 5.1  memory: 1.0GiB(1%)  tps: 9,000\n")
    assert run.measure("tokens_per_s_per_device") == 5_005
    assert run.measure("tokens_per_s") == 8 * 5_005
    assert rows(run, "loss")["step"].tolist() == [1, 2, 3]
    assert run.measure("best_val_loss") == 5.1


def test_composer(tmp_path: Path) -> None:
    text = ""
    for i in (1, 2, 3):
        text += f"[batch={i}/100]:\n\t Train time/batch: {i - 1}\n\t Train time/sample: {256 * i}\n"
        text += (
            f"\t Train loss/train/total: {9 - i}.5\n\t Train throughput/samples_per_sec: 512.0\n"
        )
        text += "\t Train throughput/device/samples_per_sec: 64.0\n"
    text += "[Eval batch=1/10] Eval on eval data\n[Eval batch=10/10] Eval on eval data:\n"
    text += "\t Eval metrics/eval/LanguageCrossEntropy: 7.2\n"
    run = one_run(tmp_path, text)
    assert run.measure("samples_per_s") == 512
    assert run.measure("world_size") == 8
    assert run.measure("last_val_LanguageCrossEntropy") == 7.2
    assert rows(run, "loss")["value"].tolist() == [8.5, 7.5, 6.5]


def test_nemo_2_whatever_the_order_of_its_cells(tmp_path: Path) -> None:
    head = "[default0]:Training epoch 0, iteration {}/19 | "
    cells = ["global_batch_size: 512", "global_step: {}", "reduced_train_loss: 11.0"]
    text = ""
    for i in range(5):
        own = cells if i < 3 else cells[::-1]
        seconds = 10.0 if i == 0 else 8.0
        text += head.format(i) + " | ".join(own).format(i)
        text += f" | train_step_timing in s: {seconds}\n"
    run = one_run(tmp_path, text)
    assert run.measure("step_period_ns") == 8 * S
    assert run.measure("samples_per_s") == 64


def test_nemo_1_does_not_use_rounded_counters(tmp_path: Path) -> None:
    text = "\r".join(
        f"Epoch 0: :   3%|3 | {n}/301500 [1:42:{n - 9000:02d}<55:37:46, v_num=0, reduced_train_loss"
        "=nan.0, global_step=9e+3, consumed_samples=6.3e+5, train_step_timing in s=0.615, "
        "val_loss=7.040]"
        for n in (9000, 9010, 9020)
    )
    run = one_run(tmp_path, text)
    assert run.origin == "log:nemo"
    assert run.measure("step_period_ns") == 0.615 * S
    assert rows(run, "step_period_ns")["step"].tolist() == [9000, 9010, 9020]


def test_fairseq_takes_words_for_tokens_of_all(tmp_path: Path) -> None:
    text = "training on 8 devices (GPUs/TPUs)\n"
    for i, wps in enumerate(("0", "1000", "1010"), 1):
        row = {"epoch": 1, "loss": "9.5", "wps": wps, "ups": "0", "wpb": "5000", "bsz": "10",
               "num_updates": str(100 * i), "wall": str(500 * i)}  # fmt: skip
        text += f"2021-03-08 12:31:{i:02d} | INFO | train_inner | {json.dumps(row)}\n"
    text += '2021-03-08 12:40:00 | INFO | valid | {"epoch": 1, "valid_loss": "8.1"}\n'
    text += "2021-03-08 12:40:00 | INFO | fairseq_cli.train | done training in 509.9 seconds\n"
    run = one_run(tmp_path, text)
    assert run.measure("tokens_per_s") == 1005
    assert run.measure("step_period_ns") == pytest.approx(4.975 * S, rel=1e-3)
    assert run.measure("last_val_loss") == 8.1
    assert run.measure("total_ns") == 509.9 * S


@pytest.mark.parametrize(
    "line",
    ["291/291 [==============================] - 90s 308ms/step - loss: 0.05 - accuracy: 0.9 - "
     "val_loss: 0.04 - val_accuracy: 0.95",
     " 291/291 ━━━━━━━━━━━━━━━━━━━━ 90s 308ms/step - accuracy: 0.9 - loss: 0.05 - val_accuracy: .95"
     " - val_loss: 0.04",
     "291/291 - 90s - 308ms/step - loss: 0.05 - accuracy: 0.9 - val_loss: 0.04 - val_accuracy: .9",
     "291/291 - 1:30 - 308ms/step - loss: 0.05 - accuracy: 0.9 - val_loss: 0.04 - val_accuracy: "
     "0.95"],
)  # fmt: skip
def test_keras(tmp_path: Path, line: str) -> None:
    progress = "".join(f" {n}/291 [===>......] - ETA: 3s - loss: 0.2\r" for n in (10, 20))
    text = f"Epoch 1/2\n{progress}{line}\nEpoch 2/2\n{line}\n"
    run = one_run(tmp_path, text)
    assert run.origin == "log:keras"
    assert rows(run, "top1")[["epoch", "step"]].to_numpy().tolist() == [[1, 291], [2, 582]]
    assert rows(run, "top1")["at_ns"].tolist() == [90 * S, 180 * S]
    assert run.measure("step_period_ns") == 0.308 * S
    assert run.table("epochs").to_frame()["duration_ns"].tolist() == [90 * S, 90 * S]


@pytest.mark.parametrize("closing", ["", " - val_accuracy: 0.95 - val_loss: 0.04"])
def test_the_last_bar_of_keras_is_drawn_twice(tmp_path: Path, closing: str) -> None:
    bar = "100/100 ━━━━━━━━━━━━━━━━━━━━ {}s 50ms/step - accuracy: 0.9 - loss: 0.05"
    epoch = f"{bar.format(5)}\r{bar.format(6)}{closing}\n"
    run = one_run(tmp_path, f"Epoch 1/2\n{epoch}Epoch 2/2\n{epoch}")
    assert run.table("epochs").to_frame()["duration_ns"].tolist() == [6 * S, 6 * S]
    assert rows(run, "train_top1")["epoch"].tolist()[-1] == 2
    assert len(run.table("events").to_frame()) == 0


def test_epochs_of_notes_count_what_was_done(tmp_path: Path) -> None:
    for first in (0, 1):
        text = "".join(f"Epoch {i + first} took 10.0 loss: 2.0\n" for i in range(3))
        run = one_run(tmp_path, text)
        assert rows(run, "loss")["epoch"].tolist() == [1, 2, 3]


def test_old_keras_counts_samples(tmp_path: Path) -> None:
    text = "Epoch 1/1\n60000/60000 [==============================] - 5s 80us/sample - loss: 0.2\n"
    run = one_run(tmp_path, text)
    assert run.measure("samples_per_s") == 12_500
    assert run.table("epochs").to_frame()["samples_count"].tolist() == [60_000]


def test_mxnet_and_gluon(tmp_path: Path) -> None:
    text = "".join(
        f"INFO:root:Epoch[{e}] Batch [{b - 20}-{b}]\tSpeed: 100.00 samples/sec\taccuracy=0.400000\n"
        for e in (0, 1)
        for b in (20, 40, 60)
    )
    text += "INFO:root:Epoch[1] Time cost=85.5\nINFO:root:Epoch[1] Validation-accuracy=0.8\n"
    run = one_run(tmp_path, text)
    assert run.measure("samples_per_s_per_rank") == 100
    assert run.measure("samples_per_s") is None
    assert rows(run, "top1")[["epoch", "value"]].to_numpy().tolist() == [[2, 0.8]]
    text = "[Epoch 0] speed: 1030 samples/sec\ttime cost: 1243.1\n"
    text += "[Epoch 0] validation: err-top1=0.25\n"
    assert one_run(tmp_path, text).measure("best_top1") == 0.75


@pytest.mark.parametrize(
    ("line", "gap"),
    [("2020-05-08 18:44:{:02d},494 - mmdet - INFO - Epoch [1][{}/100]\tlr: 0.00125, eta: 4:44:04, "
      "time: 0.500, data_time: 0.031, memory: 6836, loss: 0.46", 10),
     ("07/03 13:04:{:02d} - mmengine - INFO - Epoch(train)  [1][{:>3d}/100]  lr: 3.3e-04  eta: "
      "1 day, 0:13:14  time: 0.5000  data_time: 0.0335  memory: 970  loss: 6.1887", 10),
     ("07/03 13:04:{:02d} - mmengine - INFO - Iter(train) [{:>3d}/20000]  lr: 3.3e-04  eta: 0:13 "
      "time: 0.5000  data_time: 0.0335  memory: 970  loss: 6.1887", 10)],
)  # fmt: skip
def test_openmmlab(tmp_path: Path, line: str, gap: int) -> None:
    text = "".join(f"{line.format(5 * i, gap * i)}\n" for i in range(1, 5))
    text += "07/03 13:05:04 - mmengine - INFO - Epoch(val) [1][5/5]    accuracy/top1: 75.5000  "
    text += "data_time: 0.0044  time: 0.0146\n"
    run = one_run(tmp_path, text)
    assert run.origin == "log:mmengine"
    assert run.measure("step_period_ns") == 0.5 * S
    assert rows(run, "loss")["step"].tolist() == [10, 20, 30, 40]
    assert run.measure("best_top1") == 0.755


def test_detectron2(tmp_path: Path) -> None:
    text = "".join(
        f"\x1b[32m[11/01 11:27:{i:02d} d2.utils.events]: \x1b[0m eta: {eta}  iter: {20 * i - 1}  "
        f"total_loss: 1.0  time: 0.33{i}  last_time: 0.4000  data_time: 0.03  lr: 0.01  "
        "max_mem: 3961M\n"
        for i, eta in ((1, "8:05:12"), (2, "N/A"), (3, "1 day, 0:00:01"))
    )
    text += "[11/01 11:28:00 d2.engine.hooks]: Overall training speed: 58 iterations in 0:00:19\n"
    text += "[11/01 11:29:00 d2.evaluation.testing]: copypaste: Task: bbox\n"
    text += "[11/01 11:29:00 d2.evaluation.testing]: copypaste: AP,AP50\n"
    text += "[11/01 11:29:00 d2.evaluation.testing]: copypaste: 38.5,59.1\n"
    run = one_run(tmp_path, text)
    assert rows(run, "loss")["step"].tolist() == [20, 40, 60]
    assert rows(run, "step_period_ns", "run")["value"].iloc[-1] == 0.333 * S
    assert run.measure("step_period_ns") == 0.4 * S
    assert run.measure("best_bbox/AP") == 38.5


def tf_cnn(rate: float, total: float) -> str:
    text = "TensorFlow:  1.14\nModel:       resnet101\nBatch size:  128 global\n"
    text += "             64 per device\nDevices:     ['horovod/gpu:0', 'horovod/gpu:1']\n"
    text += "Variables:   horovod\nData format: NCHW\nStep\tImg/sec\ttotal_loss\n"
    for step in (1, 10, 20):
        text += f"{step}\timages/sec: {rate} +/- 0.0 (jitter = 0.0)\t9.1\n" * 2
    return text + f"{'-' * 64}\ntotal images/sec: {total}\n" * 2


def test_totals_that_every_process_prints_are_one(tmp_path: Path) -> None:
    run = one_run(tmp_path, tf_cnn(154.2, 308.3))
    assert run.measure("samples_per_s") == 308.3
    assert run.measure("samples_per_s_per_rank") == 154.2
    assert run.labels["variable_update"] == "horovod" and run.labels["data_format"] == "NCHW"
    assert "counts it once" in said(run)


def test_two_benchmarks_in_one_log(tmp_path: Path) -> None:
    runs = all_runs(tmp_path, tf_cnn(154.2, 308.3) + tf_cnn(90.0, 180.0))
    assert [run.measure("samples_per_s") for run in runs] == [308.3, 180.0]


def test_horovod_and_a_fork_that_prints_totals(tmp_path: Path) -> None:
    head = "Model: resnet50\nBatch size: 128\nNumber of GPUs: 16\n"
    tail = "Img/sec per GPU: 352.5 +-3.0\nTotal img/sec on 16 GPU(s): 5640.0 +-47.2\n"
    for value, scope in ((352.5, "device"), (5640.0, "run")):
        body = "".join(f"Iter #{i}: {value} img/sec per GPU\n" for i in range(5))
        run = one_run(tmp_path, head + body + tail)
        assert run.measure("samples_per_s") == 5640
        assert rows(run, "samples_per_s")["scope"].unique().tolist() == [scope]
        assert run.measure("global_batch_count") == 2048


def test_dllogger(tmp_path: Path) -> None:
    text = "".join(
        f"DLL 2021-06-14 23:08:{i:02d}.659718 - epoch    1 | iter   {i}/48 | loss 40.97 | mel loss "
        "35.04 | 5000.0 frames/s | took 2.5 s | lrate 3.16e-06\n"
        for i in range(1, 5)
    )
    run = one_run(tmp_path, text)
    assert run.measure("frames_per_s") == 5000
    assert run.measure("step_period_ns") == 2.5 * S
    assert "lrate" not in set(run.table("metrics").to_frame()["metric"])


def test_notes_of_epochs(tmp_path: Path) -> None:
    text = "Script setup took 50.0\n" + "".join(
        f"Epoch {i} took {seconds} loss: {9 - i}.5 accuracy: 0.{i + 1} top_5_accuracy: 0.{i + 3}\n"
        for i, seconds in enumerate((100, 50.5, 50))
    )
    run = one_run(tmp_path, text + "Total train time is 400.5\n")
    assert rows(run, "top1")[["epoch", "value"]].to_numpy().tolist() == [
        [1, 0.1],
        [2, 0.2],
        [3, 0.3],
    ]
    assert rows(run, "top1")["at_ns"].tolist() == [150 * S, 200.5 * S, 250.5 * S]
    assert "the log does not explain" in said(run)
    assert run.measure("samples_per_s") is None
    short = one_run(tmp_path, text + "Total train time is 100.0\n")
    assert "contradicts itself" in said(short)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [("Epoch 3 took 45.2s", 45.2), ("epoch [3] took: 2 minutes", 120), ("Epoch #3/9 took 1h", 3600),
     ("epoch 3, loss 0.5, took 700 ms", 0.7), ("Epoch 3 completed in 12 sec", 12),
     ("Epoch 3 | time 0m 50s", 50), ("Epoch 3 took 1h 2m 30.5s", 3750.5)],
)  # fmt: skip
def test_lengths_of_epochs_in_any_unit(tmp_path: Path, line: str, seconds: float) -> None:
    epochs = one_run(tmp_path, f"{line}\n").table("epochs").to_frame()
    assert epochs[["epoch", "duration_ns"]].to_numpy().tolist() == [[3, seconds * S]]


def test_every_source_is_told() -> None:
    assert len({source.name for source in SOURCES}) == len(SOURCES) == len(source_names())
    told = (ROOT / "docs" / "logs.md").read_text("utf-8")
    assert not [name for name in source_names() if f"`{name}`" not in told]
    assert f"recognizes the logs of {len(SOURCES)} programs" in " ".join(told.split())


def test_sources_do_not_take_logs_of_others_for_theirs(tmp_path: Path) -> None:
    for text in (tf_cnn(1, 2), MEGATRON.format(1, 1, 1), HF_BANNER, mlperf([1000], 1)):
        run = one_run(tmp_path, text)
        assert "the log also contains lines of" not in said(run)


def test_another_source_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(HF_BANNER)
    assert read_log(path, source="nanogpt")[0].origin == "log:nanogpt"


def test_declared_lines_hold_together() -> None:
    """Regular expressions compile, values have cells to be in, and hooks are there."""
    for source in SOURCES:
        assert source.all_marks(), f"{source.name}: nothing tells its logs"
        for pattern in source.patterns:
            groups = pattern.regex.groupindex
            assert bool(pattern.cells) == ("_cells" in groups), pattern.line
            assert not pattern.cells or {"key", "value"} <= pattern.cell.groupindex.keys()
            assert not pattern.then or callable(getattr(reader_of(source), pattern.then))
            is_of_epoch = {"_idx", "_n"} & groups.keys()
            assert not is_of_epoch or "epoch" in groups, pattern.line
