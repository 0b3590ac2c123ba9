"""The logs beside the checkout: what their CATALOGUE.md says is true comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.logs.reading import kinds, rows, said, scope_of, shared
from traceprof.logs import read_log
from traceprof.model.results import Note
from traceprof.model.summary import Summary

S = 1e9
TRUTHS: dict[str, tuple[str, dict[str, float]]] = {
    "tf_cnn_benchmarks_horovod_2gpu": (
        "tf-cnn-benchmarks",
        {
            "samples_per_s": 308.27,
            "samples_per_s_per_rank": 154.2,
            "world_size": 2,
            "global_batch_count": 128,
            "batch_per_device_count": 64,
        },
    ),
    "tf_cnn_benchmarks_1gpu_issue": (
        "tf-cnn-benchmarks",
        {"samples_per_s": 204.75, "samples_per_s_per_rank": 204.8},
    ),
    "horovod_synthetic_ray_16gpu": (
        "horovod",
        {
            "samples_per_s": 5640.2,
            "samples_per_s_per_device": 352.5,
            "world_size": 16,
            "global_batch_count": 16 * 128,
        },
    ),
    "horovod_synthetic_variant_bagua_32gpu": (
        "horovod",
        {"samples_per_s": 4046.6, "samples_per_s_per_device": 126.5, "world_size": 32},
    ),
    "hf_trainer_esm2_ddp": (
        "hf-trainer",
        {
            "world_size": 8,
            "global_batch_count": 1024,
            "accumulation_count": 16,
            "batch_per_device_count": 8,
            "last_loss": 2.6591,
        },
    ),
    "hf_trainer_final_metrics_issue": (
        "hf-trainer",
        {
            "samples_per_s": 1.474,
            "steps_per_s": 0.185,
            "total_ns": 2218.55 * S,
            "mean_loss": 0.7228,
        },
    ),
    "lightning_tqdm_tensor_parallel": ("lightning", {"world_size": 4, "step_period_ns": 10.9 * S}),
    "lightning_tqdm_issue": ("lightning", {"step_period_ns": 4.14 * S, "last_loss": 9.926}),
    "timm_imagenette_1hpu": ("timm", {"global_batch_count": 128, "best_top1": 0.39261}),
    "timm_imagenette_2hpu": ("timm", {"global_batch_count": 256, "best_top1": 0.32934}),
    "torchvision_ref_imagenet_issue": ("torchvision", {"step_period_ns": 2.6215 * S}),
    "metriclogger_fork_epochs_issue": ("torchvision", {}),
    "imagenet_main_jetson_plants": ("imagenet", {"last_train_top1": 0.1040}),
    "imagenet_main_2022_issue": ("imagenet", {}),
    "megatron_lm_2024_tflops_issue": (
        "megatron",
        {"global_batch_count": 128, "tflop_per_s_per_device": 236.0},
    ),
    "megatron_lm_srun_prefix": ("megatron", {"global_batch_count": 2}),
    "megatron_lm_startup_skipped_iters": ("megatron", {"global_batch_count": 288}),
    "megatron_deepspeed_bloom176b": ("megatron", {"global_batch_count": 2048}),
    "deepspeed_cifar_2020": ("deepspeed", {"samples_per_s": 1284.5698818883018, "best_top1": 0.57}),
    "deepspeed_2022_issue": ("deepspeed", {"samples_per_s": 83.73838805358588}),
    "deepspeed_0.7.7_issue": ("deepspeed", {}),
    "deepspeed_chat_opt13b": ("deepspeed", {"last_val_ppl": 2.018}),
    "nanogpt_shakespeare_issue": ("nanogpt", {"mfu_ratio_per_device": 0.1658}),
    "nanogpt_gpt2_eval_issue": ("nanogpt", {"last_val_loss": 4.0427}),
    "nanogpt_2023_no_mfu_issue": ("nanogpt", {"step_period_ns": 0.562455 * S}),
    "torchtitan_2026_all_ranks_issue": ("torchtitan", {}),
    "torchtitan_2025_rank0_issue": ("torchtitan", {}),
    "composer_llmfoundry": ("composer", {"last_loss": 10.6459}),
    "composer_2023_issue": ("composer", {"last_loss": 11.6153}),
    "nemo1_bionemo_tqdm": ("nemo", {"step_period_ns": S / 1.73}),
    "nemo1_megatron_gpt_issue": ("nemo", {"step_period_ns": 0.615 * S, "last_val_loss": 7.04238}),
    "nemo2_torchrun_8gpu": ("nemo", {"world_size": 8, "global_batch_count": 512}),
    "elastic_restart_ft_launcher": ("nemo", {"world_size": 8, "global_batch_count": 512}),
    "nemo2_skypilot": ("nemo", {"global_batch_count": 512}),
    "fairseq_json_1gpu": ("fairseq", {"last_val_ppl": 253807, "total_ns": 798.6 * S}),
    "fairseq_json_8gpu": ("fairseq", {"world_size": 8, "total_ns": 509.9 * S}),
    "fairseq_simple_2020_issue": ("fairseq", {}),
    "fairseq_2018_issue": ("fairseq", {"tokens_per_s": 961, "last_val_ppl": 3.83}),
    "keras2_transfer_learning_verbose1": (
        "keras",
        {"step_period_ns": 0.308 * S, "best_top1": 0.9837},
    ),
    "keras3_mirrored": ("keras", {"best_top1": 0.9724, "devices_count": 1}),
    "keras3_mirrored_verbose2": ("keras", {"last_top1": 0.9710}),
    "keras_horovod_mpirun_interleaved_issue": ("keras", {"last_train_top1": 0.7489}),
    "mxnet_gluon_cifar_issue": ("mxnet", {"best_top1": 0.808193}),
    "detectron2_2019_issue": ("detectron2", {"step_period_ns": 0.3322 * S}),
    "detectron2_plain_na_eta_issue": ("detectron2", {"last_loss": 0.035}),
    "mmdet_v2_issue": ("mmengine", {"step_period_ns": 0.593 * S}),
    "mmcls_v0_val_issue": ("mmengine", {"best_top1": 0.22}),
    "mmengine_cifar_fsdp": ("mmengine", {"last_loss": 1.7523}),
    "mmengine_train_val": ("mmengine", {"last_top1": 0.125}),
    "mlperf_v2.0_resnet_1xdgxa100": (
        "mlperf",
        {
            "time_to_train_ns": 1704.628 * S,
            "best_top1": 0.7606,
            "global_batch_count": 3264,
            "batch_per_device_count": 408,
            "world_size": 8,
        },
    ),
    "mlperf_v6.1_grpo_seed1": (
        "mlperf",
        {
            "time_to_train_ns": 8736.956 * S,
            "best_eval_accuracy": 0.70703125,
            "target_eval_accuracy": 0.69,
            "global_batch_count": 1024,
        },
    ),
    "mlperf_rcp_deepseekv3_no_time_ms": (
        "mlperf",
        {"best_eval_loss": 3.5984, "target_eval_loss": 3.6, "global_batch_count": 15360},
    ),
    "mlperf_rcp_primus_small_moe": (
        "mlperf",
        {"time_to_train_ns": 31529.438 * S, "last_eval_loss": 3.3316, "global_batch_count": 64},
    ),
    "torchelastic_2020_etcd": ("torchrun", {"world_size": 2, "nodes_count": 1}),
    "torchrun_failed_restart_issue": ("torchrun", {}),
    "horovod_elastic_worker_killed_issue": ("horovod", {}),
    "horovod_elastic_scale_down_issue": ("horovod", {}),
    "dllogger_fastpitch_took": ("dllogger", {}),
}
LAST: dict[str, tuple[str, str, float]] = {
    "timm_imagenette_1hpu": ("samples_per_s", "epoch", 863.22),
    "metriclogger_fork_epochs_issue": ("step_period_ns", "epoch", 0.2397 * S),
    "imagenet_main_jetson_plants": ("step_ns", "epoch", 1.261 * S),
    "imagenet_main_2022_issue": ("step_ns", "epoch", 1.706 * S),
    "torchvision_ref_imagenet_issue": ("compute_samples_per_s", "", 14.936840423055163),
    "megatron_lm_2024_tflops_issue": ("samples_per_s", "", 128 / 5.7186),
    "megatron_lm_srun_prefix": ("samples_per_s", "", 2 / 0.0884),
    "megatron_deepspeed_bloom176b": ("samples_per_s", "", 19.297),
    "deepspeed_0.7.7_issue": ("samples_per_s", "step", 155.10475468488542),
    "torchtitan_2025_rank0_issue": ("mfu_ratio", "", 0.3437),
    "fairseq_json_1gpu": ("tokens_per_s", "interval", 311.8),
    "fairseq_json_8gpu": ("tokens_per_s", "interval", 3274.4),
    "fairseq_simple_2020_issue": ("tokens_per_s", "interval", 16.2),
    "keras3_mirrored": ("step_period_ns", "", 0.003 * S),
    "mxnet_gluon_cifar_issue": ("samples_per_s", "", 585.36),
    "mmengine_cifar_fsdp": ("step_period_ns", "", 0.1998 * S),
    "nemo2_torchrun_8gpu": ("step_period_ns", "", 7.592 * S),
    "nemo2_skypilot": ("step_period_ns", "", 46.81 * S),
    "nanogpt_gpt2_eval_issue": ("step_with_evaluation_ns", "", 35.39233 * S),
    "horovod_elastic_scale_down_issue": ("samples_per_s", "", 93.7),
    "dllogger_fastpitch_took": ("frames_per_s", "", 4589.15),
}


def the_run(name: str) -> Summary:
    runs = read_log(shared(f"samples/{name}.log"))
    assert len(runs) == 1
    return runs[0]


@pytest.mark.parametrize("name", TRUTHS)
def test_sources_are_recognized_and_say_what_is_true(name: str) -> None:
    source, measures = TRUTHS[name]
    run = the_run(name)
    assert run.origin == f"log:{source}"
    found = {measure: run.measure(measure) for measure in measures}
    assert found == pytest.approx(measures, rel=1e-5)


@pytest.mark.parametrize("name", LAST)
def test_the_last_value_is_that_of_the_catalogue(name: str) -> None:
    metric, over, value = LAST[name]
    assert rows(the_run(name), metric, over)["value"].iloc[-1] == pytest.approx(value, rel=1e-6)


def test_two_runs_one_after_the_other_are_two() -> None:
    runs = read_log(shared("samples/mxnet_gluon_ssd.log"))
    rates = [run.measure("samples_per_s_per_rank") for run in runs]
    assert rates == pytest.approx([58.4, 93.7], rel=0.01)
    assert all(run.measure("samples_per_s") is None for run in runs)


def test_a_rate_of_one_rank_without_loading_is_no_throughput() -> None:
    run = the_run("torchvision_ref_imagenet_issue")
    assert run.measure("samples_per_s") is None
    assert scope_of(run, "compute_samples_per_s_per_rank") == "rank"


def test_an_iteration_that_evaluates_is_no_length_of_a_step() -> None:
    run = the_run("nanogpt_gpt2_eval_issue")
    assert run.measure("step_period_ns") == pytest.approx(1.09665 * S)


def test_ranks_that_print_the_same_are_one() -> None:
    run = the_run("torchtitan_2026_all_ranks_issue")
    loss = rows(run, "loss")
    assert loss["step"].tolist() == [4, 5]
    assert run.measure("tokens_per_s") is None
    assert run.measure("tokens_per_s_per_device") == pytest.approx(10_028, abs=25)


def test_a_run_that_was_restarted_is_one_run_of_two_lives() -> None:
    run = the_run("elastic_restart_ft_launcher")
    losses = rows(run, "loss")
    assert losses.groupby("attempt")["step"].agg(["first", "last"]).to_numpy().tolist() == [
        [0, 15],
        [10, 19],
    ]
    assert kinds(run).count("restart") == 1
    events = run.table("events").to_frame()
    failed = events[events["text"].str.startswith("Worker group FAILED")]["at_ns"].iloc[0]
    assert events["at_ns"].iloc[-1] - failed == pytest.approx(105.3 * S, abs=0.5 * S)


def test_skipped_iterations_have_no_loss() -> None:
    run = the_run("megatron_lm_startup_skipped_iters")
    assert rows(run, "loss").empty and len(rows(run, "step_period_ns")) == 3


def test_a_log_without_times_has_no_time_to_train() -> None:
    run = the_run("mlperf_rcp_deepseekv3_no_time_ms")
    assert run.measure("time_to_train_ns") is None and run.measure("samples_per_s") is None


MLPERF = {
    "dgxa100_ngc22.04": (8, 1704.628, 35, 27_012.35),
    "dgxa100_n8_ngc22.04": (64, 270.100, 35, 167_607.0),
    "dgxa100_n128_ngc22.04": (1024, 31.767, 56, 2_343_570.7),
    "dgxa100_n527_ngc22.04": (4216, 19.092, 86, 6_288_303.6),
}


@pytest.mark.parametrize("name", MLPERF)
def test_resnet_of_mlperf(name: str) -> None:
    gpus, seconds, epochs, rate = MLPERF[name]
    run = read_log(shared(f"mlperf-v2.0-{name}_mxnet-resnet.txt"))[0]
    assert run.measure("time_to_train_ns") == pytest.approx(seconds * S)
    assert run.measure("world_size") == gpus
    assert rows(run, "top1")["epoch"].iloc[-1] == epochs
    assert run.measure("samples_per_s") == pytest.approx(rate, rel=1e-6)
    is_impossible = "contradicts itself" in said(run)
    assert is_impossible == (gpus == 4216)


def values_of(run: Summary, text: str) -> dict[str, Any]:
    notes: list[Note] = [note for note in run.notes if text in note.text]
    assert len(notes) == 1, said(run)
    return dict(notes[0].values)


def test_the_largest_run_prints_what_its_own_times_rule_out() -> None:
    run = read_log(shared("mlperf-v2.0-dgxa100_n527_ngc22.04_mxnet-resnet.txt"))[0]
    values = values_of(run, "contradicts itself")
    assert values["samples"] == 86 * 1_281_167
    assert values["by"] < 6.2e6 < 19e6 < values["rate"]


def test_a_job_that_was_rescaled() -> None:
    run = read_log(shared("elastic-cycle-20min-4+4.log"))[0]
    events = run.table("events").to_frame()
    assert run.measure("total_ns") == pytest.approx(2772.4093 * S)
    lost = events[events["kind"] == "time_lost"]
    assert (lost["duration_ns"] / S).round(1).tolist() == [115.3, 84.8]
    assert lost["epoch"].tolist() == [12, 19]
    for kind, seconds in (("initialization", [33.6, 3.0]), ("setup", [51.4, 27.1, 28.1])):
        own = events.loc[events["kind"] == kind, "duration_ns"]
        assert (own / S).round(1).tolist() == seconds
    epochs = run.table("epochs").to_frame().set_index("epoch")["duration_ns"] / S
    assert (epochs[12], epochs[19]) == (675.68, 448.04)
    assert values_of(run, "of the total")["rest"] == pytest.approx(218.245 * S, abs=1e6)


@pytest.mark.parametrize(("batch", "by", "rate"), [(64, 132.5, 200), (320, 135.6, 240)])
def test_parts_of_a_step_that_rule_out_its_rate(batch: int, by: float, rate: float) -> None:
    run = read_log(shared(f"pipe-ddp-bs{batch}.log"))[0]
    values = values_of(run, "contradicts itself")
    assert (values["batch"], values["rate"]) == (batch, rate)
    assert values["by"] == pytest.approx(by, abs=0.05)
    assert values_of(run, "the reported")["n"] == 2
    assert values_of(run, "less than half")
    # No parameter is reduced: the pipeline's layers are frozen, and their backward costs nothing.
    (frozen,) = [note.text for note in run.notes if "less than half" in note.text]
    assert "layers are frozen" in frozen
    assert "not measured" not in frozen


@pytest.mark.parametrize(
    ("reduced", "backward_ms", "expected"),
    [
        ("0.000000", 8.6, "layers are frozen"),
        ("25.557032", 8.6, "layers may be frozen"),
        ("0.000000", 900.0, ""),
    ],
)
def test_a_short_backward_pass_is_no_contradiction(
    tmp_path: Path, reduced: str, backward_ms: float, expected: str
) -> None:
    lines = (
        "INFO data loading time cost (ms) by CUDA event 3.2",
        "INFO forward time cost (ms) by CUDA event 471.1",
        f"INFO backwards time cost: (ms) by CUDA event {backward_ms}",
        f"INFO size_params_ddp_sum: {reduced}",
        "INFO epoch = 0, batch index = 8/391",
    )
    path = tmp_path / "notes.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    said = [note.text for note in read_log(path)[0].notes]
    assert not any("contradicts" in text for text in said)
    about = [text for text in said if "less than half" in text]
    assert all(expected in text for text in about)
    assert len(about) == bool(expected)


def test_every_sample_is_told() -> None:
    names = {path.stem for path in shared("samples").glob("*.log")}
    assert names - {"mxnet_gluon_ssd"} == set(TRUTHS)
