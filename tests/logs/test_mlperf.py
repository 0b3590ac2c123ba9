"""Logs of MLPerf as submitters write them: what counts samples, and what that makes of the rate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.logs.reading import one_run, rows, said
from traceprof.comparison.accuracy import accuracy
from traceprof.model.summary import Summary

S = 1e9


class Log:
    """The lines of one log, each at a time of its own in s."""

    def __init__(self, benchmark: str, org: str, **settings: object) -> None:
        self.lines: list[str] = []
        self.at_s = 1000.0
        self.add("init_start").add("submission_benchmark", benchmark).add("submission_org", org)
        for key, value in settings.items():
            self.add(key, value)
        self.add("init_stop").add("run_start")

    def add(self, key: str, value: object = None, **about: object) -> Log:
        event = {"namespace": "", "time_ms": round(self.at_s * 1000), "key": key}
        own = {**event, "event_type": "POINT_IN_TIME", "value": value, "metadata": about}
        self.lines.append(f":::MLLOG {json.dumps(own)}")
        return self

    def wait(self, seconds: float) -> Log:
        self.at_s += seconds
        return self

    def read(self, folder: Path) -> Summary:
        return one_run(folder, "\n".join([*self.lines, ""]))

    def stop(self) -> Log:
        return self.add("run_stop", status="success")


def resnet_of_nvidia() -> Log:
    """Epochs in blocks, an evaluation at the end of each block; 500 ms of it are no training."""
    log = Log("resnet", "NVIDIA", global_batch_size=100, train_samples=1_281_167)
    for block in range(4):
        log.add("block_start", first_epoch_num=1 + 2 * block, epoch_count=2)
        for epoch in (1, 2):
            log.add("epoch_start", epoch_num=2 * block + epoch)
            log.wait(60 if block else 90).add("epoch_stop", epoch_num=2 * block + epoch)
        log.add("eval_start", epoch_num=2 * block + 2).wait(0.5)
        log.add("eval_stop", epoch_num=2 * block + 2)
        log.add("eval_accuracy", 0.2 * block, epoch_num=2 * block + 2)
        log.add("block_stop", first_epoch_num=1 + 2 * block)
    return log.stop()


def maskrcnn_of_asus() -> Log:
    """``train_samples`` is a setting, evaluations run beside the next block."""
    log = Log("maskrcnn", "ASUSTeK", global_batch_size=96, train_samples=40_000)
    steps = 0
    for epoch in range(1, 5):
        log.add("block_start", first_epoch_num=epoch, epoch_count=1)
        log.add("epoch_start", epoch_num=epoch)
        if epoch > 1:
            log.wait(20).add("eval_accuracy", {"BBOX": 0.1 * epoch, "SEGM": 0.05 * epoch},
                             epoch_num=epoch - 1)  # fmt: skip
            log.add("eval_stop", epoch_num=epoch - 1).wait(-20)
        for _ in range(12):
            steps += 100
            log.wait(10).add("tracked_stats", {"loss": 1.0}, step=steps)
        log.wait(2.15).add("epoch_stop", epoch_num=epoch).add("block_stop", first_epoch_num=epoch)
        log.add("eval_start", epoch_num=epoch)
    log.wait(20).add("eval_accuracy", {"BBOX": 0.377, "SEGM": 0.339}, epoch_num=4)
    return log.add("eval_stop", epoch_num=4).stop()


def maskrcnn_of_google() -> Log:
    log = Log("maskrcnn", "Google", global_batch_size=256, train_samples=117_266)
    for epoch in range(4):
        log.add("block_start", first_epoch_num=epoch, epoch_count=1).wait(3)
        log.add("block_stop", first_epoch_num=epoch, epoch_count=1).wait(1)
        log.add("eval_start", epoch_num=epoch + 1).wait(5)
        log.add("eval_accuracy", {"BBOX": 0.3, "SEGM": 0.2}, epoch_num=epoch + 1)
        log.add("eval_stop", epoch_num=epoch + 1)
    return log.stop()


def ssd_of_dell() -> Log:
    """``train_samples`` are batches, rates of one device; the last epoch is broken off."""
    log = Log("ssd", "Dell", local_batch_size=32, global_batch_size=256, train_samples=4572)
    for epoch in range(4):
        log.add("epoch_start", epoch, epoch_num=epoch).wait(500)
        log.add("epoch_stop", epoch, epoch_num=epoch)
        log.add("tracked_stats", {"throughput": 1_170_301 / 500 / 8}, step=epoch + 1)
        log.add("eval_start", epoch_num=epoch + 1).wait(20)
        log.add("eval_accuracy", 0.1 * epoch, epoch_num=epoch + 1)
        log.add("eval_stop", epoch_num=epoch + 1)
    log.add("epoch_start", 4, epoch_num=4).wait(3).add("epoch_stop", 4, epoch_num=4)
    return log.stop()


def unet3d_of_dell() -> Log:
    """``epoch_num`` counts samples."""
    log = Log("unet3d", "Dell", global_batch_size=28, train_samples=168, samples_per_epoch=168)
    for block in range(6):
        first = 3360 * block or 168
        log.add("block_start", first_epoch_num=first, epoch_count=3360).wait(12.42)
        log.add("block_stop", first_epoch_num=first, epoch_count=3360)
        if block > 2:
            done = 3360 * (block + 1)
            log.add("eval_start", done, epoch_num=done).wait(3)
            log.add("eval_accuracy", 0.9, epoch_num=done).add("eval_stop", done, epoch_num=done)
    return log.stop()


def unet3d_of_casia() -> Log:
    """Epochs are filled up to whole batches."""
    log = Log("unet3d", "CASIA", global_batch_size=48, train_samples=168, samples_per_epoch=192)
    for block in range(5):
        log.add("block_start", first_epoch_num=20 * block or 1, epoch_count=20).wait(10)
        done = 20 * (block + 1)
        log.add("block_stop", first_epoch_num=done, epoch_count=20)
        log.add("eval_start", done, epoch_num=done).wait(3)
        log.add("eval_accuracy", 0.9, epoch_num=done).add("eval_stop", done, epoch_num=done)
    return log.stop()


def bert_of_nvidia() -> Log:
    """One block around all; ``epoch_num`` of evaluations counts samples."""
    log = Log("bert", "NVIDIA", global_batch_size=448).add("epoch_start", epoch_num=0)
    log.add("block_start", first_epoch_num=1, epoch_count=1)
    for i in range(1, 5):
        log.wait(80 if i > 1 else 100).add("eval_accuracy", 0.2 * i, epoch_num=150_080 * i)
    log.add("block_stop", first_epoch_num=1).add("epoch_stop", epoch_num=600_320)
    return log.add("train_samples", 600_320).stop()


def bert_of_habana() -> Log:
    """Epochs of blocks are steps."""
    log = Log("bert", "Habana", global_batch_size=448, train_samples=3_001_600)
    for i in range(1, 5):
        log.add("block_start", i, first_epoch_num=335 * (i - 1), epoch_count=335).wait(50)
        log.add("block_stop", i, first_epoch_num=335 * i)
        log.add("eval_accuracy", 0.2 * i, epoch_num=150_080 * i, epoch_count=i)
    return log.stop()


def gpt3_of_nvidia() -> Log:
    """``epoch_num`` counts tokens, and so does the printed rate."""
    log = Log("gpt3", "NVIDIA", global_batch_size=1536, max_sequence_length=2048)
    tokens = 24 * 1536 * 2048
    for i in range(4):
        log.add("block_start", first_epoch_num=tokens * i, epoch_count=tokens).wait(100)
        log.add("block_stop", first_epoch_num=tokens * i, epoch_count=tokens)
        log.add("tracked_stats", {"throughput": tokens / 100}, step=tokens * (i + 1))
        log.add("eval_start", epoch_num=tokens * (i + 1)).wait(10)
        log.add("eval_accuracy", 3.0 - i / 10, epoch_num=tokens * (i + 1))
        log.add("eval_stop", epoch_num=tokens * (i + 1))
    return log.stop()


def llama2_of_habana() -> Log:
    """A block begins with its length and ends with where training is."""
    log = Log("llama2_70b_lora", "Habana", global_batch_size=8, train_samples=3901)
    for i in range(4):
        log.add("block_start", "", samples_count=192 * (i + 1)).wait(200)
        log.add("block_stop", "", samples_count=384 * (i + 4))
        log.add("eval_accuracy", 0.94 - i / 100, samples_count=384 * (i + 4))
    return log.stop()


def flux_of_nvidia() -> Log:
    """Every block has the same length."""
    log = Log("flux1", "NVIDIA", global_batch_size=2304, train_samples=1_099_776)
    for i in range(4):
        log.add("block_start", samples_count=262_656, step=114 * i).wait(15)
        log.add("block_stop", samples_count=262_656, step=114 * (i + 1))
        done = {"samples_count": 262_656 * (i + 1)}
        log.add("eval_start", **done).wait(3).add("eval_accuracy", 0.8 - i / 10, **done)
        log.add("eval_stop", **done)
    return log.stop()


def diffusion_of_nvidia() -> Log:
    """Blocks count steps; images are judged when the clock has long been stopped."""
    log = Log("stable_diffusion", "NVIDIA", global_batch_size=2048, train_samples=6_513_144)
    for i in range(4):
        log.add("block_start", "training_step", step_num=100 * i).wait(6.6 if i else 20)
        log.add("block_stop", "training_step", step_num=100 * (i + 1))
    log.stop()
    for step, fid, clip in ((200, 97.0, 0.14), (400, 78.0, 0.16)):
        log.wait(100).add("eval_start", step_num=step).wait(70).add("eval_stop", step_num=step)
        log.add("eval_accuracy", fid, step_num=step, metric="FID")
        log.add("eval_accuracy", clip, step_num=step, metric="CLIP")
    return log


def rnnt_of_nvidia() -> Log:
    log = Log("rnnt", "NVIDIA", global_batch_size=2048, train_samples=278_528)
    for epoch, rate in enumerate((11.95, 0.99, 0.2, 0.0578), 1):
        log.add("block_start", first_epoch_num=epoch, epoch_count=1)
        log.add("epoch_start", epoch_num=epoch).wait(18).add("epoch_stop", epoch_num=epoch)
        log.add("eval_start", epoch_num=epoch).wait(2).add("eval_accuracy", rate, epoch_num=epoch)
        log.add("eval_stop", epoch_num=epoch).add("block_stop", first_epoch_num=epoch)
    return log.stop()


def dlrm_of_inspur() -> Log:
    """One epoch, counted from 1; ``train_samples`` is how many were trained in the end."""
    log = Log("dlrm", "Inspur", global_batch_size=55_296, train_samples=3_775_334_400)
    log.add("epoch_start", epoch_num=1)
    for i in range(1, 6):
        log.wait(9).add("eval_start", epoch_num=1 + 0.05 * i).wait(1)
        log.add("eval_accuracy", 0.78, epoch_num=1 + 0.05 * i)
        log.add("eval_stop", epoch_num=1 + 0.05 * i)
    return log.add("epoch_stop", epoch_num=2).stop()


RATES: dict[Callable[[], Log], float] = {
    resnet_of_nvidia: 1_281_167 / 60,
    maskrcnn_of_asus: 117_266 / 122.15,
    maskrcnn_of_google: 117_266 / 3,
    ssd_of_dell: 4572 * 256 / 500,
    unet3d_of_dell: 3360 / 12.42,
    unet3d_of_casia: 192 * 20 / 10,
    bert_of_nvidia: 150_080 / 80,
    bert_of_habana: 150_080 / 50,
    gpt3_of_nvidia: 24 * 1536 / 100,
    llama2_of_habana: 384 / 200,
    flux_of_nvidia: 262_656 / 15,
    diffusion_of_nvidia: 204_800 / 6.6,
    rnnt_of_nvidia: 278_528 / 18,
    dlrm_of_inspur: 0.05 * 4_195_197_692 / 9,
}


@pytest.mark.parametrize("log", RATES, ids=lambda log: str(log.__name__))
def test_the_rate_is_what_blocks_and_batch_give(log: Callable[[], Log], tmp_path: Path) -> None:
    assert log().read(tmp_path).measure("samples_per_s") == pytest.approx(RATES[log], rel=0.01)


def test_language_models_have_a_rate_in_tokens(tmp_path: Path) -> None:
    run = gpt3_of_nvidia().read(tmp_path)
    assert run.measure("tokens_per_s") == pytest.approx(24 * 1536 * 2048 / 100)
    assert run.measure("printed_tokens_per_s") == pytest.approx(24 * 1536 * 2048 / 100)
    assert "contradicts" not in said(run)
    own = llama2_of_habana().read(tmp_path)
    assert own.measure("tokens_per_s") == pytest.approx(384 * 8192 / 200)


def test_a_printed_rate_of_one_device_is_said_to_be_none_of_the_run(tmp_path: Path) -> None:
    run = ssd_of_dell().read(tmp_path)
    assert run.measure("printed_samples_per_s") == pytest.approx(1_170_301 / 500 / 8)
    assert "contradicts itself" in said(run)
    note = next(note for note in run.notes if "train_samples is" in note.text)
    assert dict(note.values) == {"n": 4572 * 256, "said": 4572}


@pytest.mark.parametrize(
    ("log", "metric", "best"),
    [(rnnt_of_nvidia, "word_error_rate", 0.0578), (diffusion_of_nvidia, "fid", 78),
     (diffusion_of_nvidia, "clip_score", 0.16), (maskrcnn_of_asus, "bbox/AP", 0.4),
     (maskrcnn_of_asus, "segm/AP", 0.339), (unet3d_of_dell, "dice", 0.9),
     (gpt3_of_nvidia, "eval_loss", 2.7), (ssd_of_dell, "eval_accuracy", 0.3)],
)  # fmt: skip
def test_qualities_get_better_their_own_way(
    log: Callable[[], Log], metric: str, best: float, tmp_path: Path
) -> None:
    assert log().read(tmp_path).measure(f"best_{metric}") == pytest.approx(best)


def test_a_word_error_rate_is_reached_from_above(tmp_path: Path) -> None:
    run = rnnt_of_nvidia().read(tmp_path)
    found = accuracy([run])
    assert found.title == "word_error_rate ≤ 0.0578"
    assert found.results["accuracy"].tables["reached"]["time_ns"].tolist() == [80 * S]


def test_what_is_judged_behind_the_run_counts_when_it_was_trained(tmp_path: Path) -> None:
    run = diffusion_of_nvidia().read(tmp_path)
    assert run.measure("time_to_train_ns") == pytest.approx(39.8 * S)
    assert rows(run, "fid")["at_ns"].tolist() == pytest.approx([26.6 * S, 39.8 * S])
    assert rows(run, "fid")["samples_count"].tolist() == [200 * 2048, 400 * 2048]


def test_evaluations_of_one_epoch_are_told_by_their_time(tmp_path: Path) -> None:
    log = Log("bert", "Baidu", global_batch_size=448).add("epoch_start", epoch_num=1)
    for i in range(1, 4):
        log.wait(70).add("eval_accuracy", 0.2 * i, epoch_num=1)
    log.add("epoch_stop", epoch_num=1).add("train_samples", 448_000)
    run = log.stop().read(tmp_path)
    assert rows(run, "eval_accuracy")["value"].tolist() == pytest.approx([0.2, 0.4, 0.6])
    assert rows(run, "eval_accuracy")["at_ns"].tolist() == [70 * S, 140 * S, 210 * S]


def test_evaluations_beside_the_training_take_none_of_its_time(tmp_path: Path) -> None:
    """Devices of their own evaluate: 0.3 s of a block of 0.4 s, which trains on."""
    log = Log("unet3d", "NVIDIA", global_batch_size=84, train_samples=168, samples_per_epoch=168)
    for block in range(6):
        done = 20 * (block + 1)
        log.add("block_start", first_epoch_num=done - 20 or 1, epoch_count=20).wait(0.01)
        log.add("eval_start", epoch_num=done - 20).wait(0.3)
        log.add("eval_accuracy", 0.9, epoch_num=done - 20).add("eval_stop", epoch_num=done - 20)
        log.wait(0.09).add("block_stop", first_epoch_num=done, epoch_count=20)
    run = log.stop().read(tmp_path)
    assert run.measure("samples_per_s") == pytest.approx(20 * 168 / 0.4)


def test_what_is_said_behind_a_run_is_of_that_run(tmp_path: Path) -> None:
    log = resnet_of_nvidia().add("cache_clear", True).add("submission_benchmark", "resnet")
    log.add("submission_org", "late").add("global_batch_size", 100)
    assert log.read(tmp_path).environment["organization"] == "late"


def test_version_0_6(tmp_path: Path) -> None:
    text = "".join(
        f":::MLL {1558578477.495 + at} {key}: "
        + json.dumps({"value": value, "metadata": {"file": "a.py", **about}})
        + "\n"
        for at, key, value, about in (
            (0, "submission_benchmark", "maskrcnn", {}),
            (0, "global_batch_size", 192, {}),
            (1, "run_start", None, {}),
            *(
                told
                for epoch in range(1, 5)
                for told in (
                    (100 * epoch, "block_start", None, {"first_epoch_num": epoch,
                                                        "epoch_count": 1}),
                    (100 * epoch + 90, "block_stop", None, {"first_epoch_num": epoch}),
                    (100 * epoch + 95, "eval_accuracy",
                     {"accuracy": {"BBOX": epoch / 10, "SEGM": 0.1}}, {"epoch_num": epoch}),
                )
            ),
            (501, "run_stop", None, {"status": "success"}),
        )
    )  # fmt: skip
    run = one_run(tmp_path, text)
    assert run.measure("time_to_train_ns") == pytest.approx(500 * S)
    assert run.measure("samples_per_s") == pytest.approx(117_266 / 90)
    assert rows(run, "bbox/AP")["value"].tolist() == [0.1, 0.2, 0.3, 0.4]


def test_there_is_no_rate_where_nothing_tells_what_it_is_of(tmp_path: Path) -> None:
    log = Log("minigo", "Intel", train_batch_size=4096)
    for epoch in range(4):
        log.add("epoch_start", epoch_num=epoch).wait(400).add("epoch_stop", epoch_num=epoch)
        log.add("tracked_stats", {"throughput": 0.0036}, step=epoch)
    run = log.stop().read(tmp_path)
    assert run.measure("samples_per_s") is None
    assert run.measure("printed_samples_per_s") == 0.0036
    assert "no throughput" in said(run)


def test_a_rate_that_no_machine_reaches_is_none(tmp_path: Path) -> None:
    log = Log("dlrm", "Google", global_batch_size=55_296, train_samples=4_195_197_692)
    for i in range(1, 5):
        log.wait(2.4).add("eval_start", epoch_num=i).wait(1).add("eval_stop", epoch_num=i)
        log.add("eval_accuracy", 0.78, epoch_num=i)
    run = log.stop().read(tmp_path)
    assert run.measure("samples_per_s") is None and run.measure("time_to_train_ns") == 13.6 * S


def test_one_line_of_mlperf_decides_whatever_is_printed_beside_it(tmp_path: Path) -> None:
    line = "Epoch: [0]  [{}/4572]  eta: 0:10:00  lr: 0.1  loss: 1.0 (1.0)  time: 0.1  data: 0.0"
    log = ssd_of_dell()
    log.lines = [line.format(i) for i in range(5000)] + log.lines
    run = log.read(tmp_path)
    assert run.origin == "log:mlperf"
    assert math.isclose(run.measure("time_to_train_ns") or 0, 2083 * S)


@pytest.mark.parametrize(
    ("platform", "nodes", "devices"),
    [("8xA100_80GB", None, 8), ("1xDGXA100", 1, 8), ("4xDGX-H100", 4, 32),
     ("2xNF5688M6", 2, None), ("tpu-v4-128", None, None)],
)  # fmt: skip
def test_platforms_give_nodes_or_gpus(
    tmp_path: Path, platform: str, nodes: int | None, devices: int | None
) -> None:
    log = Log("resnet", "NVIDIA").add("submission_platform", platform)
    log = log.add("run_start").wait(10).add("eval_accuracy", 0.7, epoch_num=1).stop()
    run = log.read(tmp_path)
    assert run.measure("nodes_count") == nodes
    assert run.measure("devices_count") == devices
