"""Logs of reinforcement learning, and newer and older lines of Megatron-LM and MaxText."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import one_run, rows, said


def verl(step: int, gen: float, *, number: str = "{}") -> str:
    whole = gen + 20
    values = {
        "actor/pg_loss": 0.01, "perf/mfu/actor": 0.38, "critic/rewards/mean": 0.2 + step / 100,
        "val-core/gsm8k/reward/mean@1": 0.5, "timing_s/gen": gen, "timing_s/update_actor": 20.0,
        "timing_s/step": whole, "perf/total_num_tokens": 8000 * whole, "perf/throughput": 1000.0,
    }  # fmt: skip
    cells = " - ".join(f"{key}:{number.format(value)}" for key, value in values.items())
    return f"(TaskRunner pid=42) step:{step} - {cells}\n"


@pytest.mark.parametrize("number", ["{}", "np.float64({})"])
def test_verl(tmp_path: Path, number: str) -> None:
    run = one_run(tmp_path, "".join(verl(i, 20 + 10 * i, number=number) for i in range(1, 9)))
    assert run.origin == "log:verl"
    assert rows(run, "generation_ns")["value"].tolist() == [
        1e9 * (20 + 10 * i) for i in range(1, 9)
    ]
    assert run.measure("step_period_ns") == 85e9
    assert run.measure("tokens_per_s_per_device") == 1000
    assert (run.measure("world_size"), run.measure("tokens_per_s")) == (8, 8000)
    assert run.measure("last_reward") == pytest.approx(0.28)
    (note,) = (note for note in run.notes if "takes" in note.text)
    assert note.values["phase"] == "generation"
    assert note.values["share"] == pytest.approx(520 / 680)
    assert (note.values["first"], note.values["last"]) == (35e9, 95e9)


def test_times_of_sequences_in_logs_of_verl_are_no_phases(tmp_path: Path) -> None:
    more = "timing_s/agent_loop/slowest/response_length:4096 - timing_s/gen:"
    text = "".join(verl(i, 50).replace("timing_s/gen:", more) for i in range(1, 9))
    run = one_run(tmp_path, text)
    (note,) = (note for note in run.notes if "takes" in note.text)
    assert (note.values["phase"], note.values["share"]) == ("generation", pytest.approx(5 / 7))
    assert not any("agent_loop" in name for name in run.table("metrics")["metric"].tolist())


def test_a_phase_that_stays_equal_does_not_change(tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(verl(i, 50) for i in range(1, 9)))
    (note,) = (note for note in run.notes if "takes" in note.text)
    assert "changes" not in note.text


def test_other_lines_with_steps_are_not_of_verl(tmp_path: Path) -> None:
    text = "".join(f"step:{i} - loss:{1 / i} - took 3 s\n" for i in range(1, 9))
    run = one_run(tmp_path, text)
    assert run.origin == "log:script-lines"
    assert run.measure("step_period_ns") == 3e9


def test_nemo_rl(tmp_path: Path) -> None:
    block = (
        "========================= Step {n}/100 =========================\n▶ Preparing batch...\n"
        "📊 Training Results:\n  • Loss: 0.0{n}\n  • Avg Reward: 0.2{n}44\n\n⏱️  Timing:\n"
        "  • Total step time: 40.00s\n  • policy_training: 16.00s (40.0%)\n"
        "  • generation: 20.00s (50.0%)\n    - E2E (Tokens/sec/gpu): 150.50\n"
    )
    run = one_run(tmp_path, "".join(block.replace("{n}", str(n)) for n in range(1, 6)))
    assert run.origin == "log:nemo-rl"
    assert run.measure("step_period_ns") == 40e9
    assert run.measure("generation_ns") == 20e9
    assert run.measure("policy_training_ns") == 16e9
    assert run.measure("tokens_per_s_per_device") == 150.5
    assert rows(run, "reward")["step"].tolist() == [1, 2, 3, 4, 5]
    assert "takes {share:ratio}" in said(run)


def test_megatron_prints_means_energy_and_timers(tmp_path: Path) -> None:
    text = "".join(
        f" [2026-02-06 20:55:0{i}.9] iteration {i * 10}/ 500 | consumed samples: {i * 320} | "
        "elapsed time per iteration (ms): 2701.3/2712.7 | throughput per GPU (TFLOP/s/GPU): "
        "210.5/217.3 | tokens per GPU (tokens/s/GPU): 12130.4/12525.5 | "
        "energy per GPU (J/iter/GPU): 1992.5 | power per GPU (W/GPU): 647.8 | "
        "global batch size: 32 | lm loss: 2.35E+00 |\n"
        "(min, max) time across ranks (ms):\n"
        "    forward-backward ..................: (2400.10, 2500.50)\n"
        "    optimizer .........................: (101.00, 102.25)\n"
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.0 | max allocated: 2048.0\n"
        for i in range(1, 6)
    )
    run = one_run(tmp_path, text)
    assert run.measure("step_period_ns") == pytest.approx(2701.3e6)
    assert run.measure("tokens_per_s_per_device") == 12130.4
    assert run.measure("last_power_watts") == 647.8
    assert run.measure("forward_backward_ns") == 2500.5e6
    assert run.measure("optimizer_ns") == 102.25e6
    assert run.measure("peak_memory_bytes") == 2048 * 2**20


@pytest.mark.parametrize("tokens", ["", ", Tokens/s/device: 1950.0, total_weights: 12"])
def test_maxtext_with_and_without_tokens(tmp_path: Path, tokens: str) -> None:
    text = "Num_devices: 8\n" + "".join(
        f"completed step: {i}, seconds: 4.2{i}, TFLOP/s/device: 160.5{tokens}, loss: 9.{i}\n"
        for i in range(5)
    )
    run = one_run(tmp_path, text)
    assert run.origin == "log:maxtext"
    assert run.measure("step_period_ns") == pytest.approx(4.225e9)
    assert run.measure("last_loss") == 9.4
    assert run.measure("tokens_per_s") == (1950 * 8 if tokens else None)


def openrlhf(step: int, *, step_s: float = 70.0, more: str = "") -> str:
    return (
        f"(PPOTrainer pid=12) INFO 03-04 10:00:00 ppo_trainer.py:190] ✨ Global step {step}: "
        f"{{'policy_loss': 0.01, 'kl': np.float64(0.{step}), 'reward': 0.5, {more}"
        "'timing/make_experience': 5.0, 'timing/ppo_train': 20.0, 'timing/broadcast': 2.5, "
        f"'timing/generation': 40.0, 'timing/step_total': {step_s}}}\n"
    )


def test_openrlhf(tmp_path: Path) -> None:
    run = one_run(tmp_path, "".join(openrlhf(i, more="'response_length': 700, ") for i in (1, 2)))
    assert run.origin == "log:openrlhf"
    assert run.measure("step_period_ns") == 70e9
    assert run.measure("generation_ns") == 40e9
    assert run.measure("weight_sync_ns") == 2.5e9
    assert run.measure("last_response_length") == 700
    assert rows(run, "kl")["value"].tolist() == [0.1, 0.2]
    (note,) = (note for note in run.notes if "takes" in note.text)
    assert (note.values["phase"], note.values["share"]) == ("generation", pytest.approx(4 / 7))


def test_a_global_step_without_a_status_is_not_of_openrlhf(tmp_path: Path) -> None:
    text = "".join(f"Global step {i}: {{'lr': 0.1, 'note': 'fast'}}\n" for i in range(1, 9))
    with pytest.raises(Exception, match="format is unknown"):
        one_run(tmp_path, text)


def test_trl_counts_tokens_and_the_time_of_training_passes(tmp_path: Path) -> None:
    text = "".join(
        f"  {i}%|█| {i}/20 [{i:02d}:00<1:52:59, 60.0s/it]{{'loss': 0.05, "
        f"'num_tokens': {i * 6000}.0, 'completions/mean_length': 212.6, 'reward': 0.4, "
        f"'step_time': 58.5, 'epoch': {i / 20}}}\n"
        for i in range(1, 20)
    )
    run = one_run(tmp_path, text)
    assert run.measure("step_period_ns") == 60e9
    assert run.measure("training_pass_ns") == 58.5e9
    assert run.measure("tokens_per_s") == 100
    assert run.measure("last_response_length") == 212.6
    assert "num_tokens" not in run.table("metrics")["metric"].tolist()


def test_trl_counts_tokens_without_a_progress_bar(tmp_path: Path) -> None:
    text = "".join(
        f"{{'loss': '0.05', 'num_tokens': '{i * 1000}', 'epoch': '{i / 20}'}}\n"
        for i in range(1, 11)
    )
    final = "{'train_runtime': '4', 'train_samples_per_second': '24', "
    run = one_run(tmp_path, text + final + "'train_steps_per_second': '3', 'epoch': '0.5'}\n")
    assert run.measure("tokens_per_s") == 10_000 / 4
    assert (run.measure("samples_per_s"), run.measure("steps_per_s")) == (24, 3)


def test_nemo_rl_names_phases_within_phases(tmp_path: Path) -> None:
    block = (
        "========================= Step {n}/100 =========================\n"
        "  • Total step time: 40.00s\n  • prepare_for_generation/total: 25.00s (62.5%)\n"
        "  • prepare_for_generation/transfer_and_update_weights: 6.00s (15.0%)\n"
        "  • generation: 10.00s (25.0%)\n"
    )
    run = one_run(tmp_path, "".join(block.replace("{n}", str(n)) for n in range(1, 6)))
    assert run.measure("weight_sync_ns") == 6e9
    (note,) = (note for note in run.notes if "takes" in note.text)
    assert note.values["phase"] == "generation"  # a total of other phases is no phase
