"""Lines of further programs, in the forms that their versions print."""
# ruff: noqa: E501 – lines as these programs print them

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import one_run, rows, said

S = 1e9
OTHERS: dict[str, tuple[str, dict[str, float | None]]] = {
    "llm-c": ("step    2/74 | train loss 4.5 | norm 4.4 | lr 3e-04 | (25.00 ms | 4096 tok/s)\n"
              "val loss 4.25\nstep    3/74 | loss 4.0 (+0.1z)| norm 4.4 (+0.1z)| lr 3e-04 | "
               "25.00 ms |"
              " -100.0% bf16 MFU | 4096 tok/s\n",
              {"last_loss": 4.0, "step_period_ns": 25e6, "tokens_per_s": 4096,
                 "last_val_loss": 4.25}),
    "maxtext": ("Num_devices: 4, shape (1, 4)\ncompleted step: 0, seconds: 0.5, "
               "TFLOP/s/device: 10.5,"
                " Tokens/s/device: 100.0, loss: 4.5\neval metrics after step: 0, loss=4.25,\n",
                {"tokens_per_s": 400, "last_loss": 4.5, "last_val_loss": 4.25}),
    "open-clip": ("Train Epoch: 1 [  64/1280 (5%)]\tLoss: 2.5 (2.6)\tData (t): 0.1 Batch (t): 0.5, "
                  "128.0/s LR: 0.1\nEval Epoch: 2 imagenet-zeroshot-val-top1: "
               "0.25\tclip_val_loss: 2\n",
                  {"last_loss": 2.5, "samples_per_s": 128, "global_batch_count": 64,
                 "last_top1": 0.25}),
    "mnist": ("Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.5\nTest set: Average loss: 0.5, "
              "Accuracy: 98.50%\n", {"last_loss": 2.5, "last_top1": 0.985, "last_val_loss": 0.5}),
    "paddle": ("[Train][Epoch 2/3][Iter: 0/10]lr(CosineDecay): 0.1, top1: 0.5, CELoss: 2.5, "
               "loss: 2.5,"
               " batch_cost: 0.5s, reader_cost: 0.1, ips: 128.0 samples/s, eta: 0:01:00\n"
               "[Eval][Epoch 2][Avg]CELoss: 2.0, loss: 2.0, top1: 0.75, top5: 0.875\n",
               {"step_period_ns": 0.5 * S, "samples_per_s_per_rank": 128, "last_top1": 0.75,
                "last_val_loss": 2.0, "last_train_top1": 0.5}),
    "paddle ": ("global step 10, epoch: 1, batch: 9, loss: 2.5, avg_reader_cost: 0.1 sec, "
                "avg_batch_cost: 0.5 sec, avg_samples: 64, ips: 128.0 sequences/sec\n",
                {"step_period_ns": 0.5 * S, "samples_per_s_per_rank": 128, "last_loss": 2.5}),
    "paddle  ": ("loss: 2.5, learning_rate: 1e-05, global_step: 10, interval_runtime: 4.0, "
                 "interval_samples_per_second: 32.0, interval_steps_per_second: 2.0, epoch: 0.5\n",
                 {"samples_per_s": 32, "steps_per_s": 2, "last_loss": 2.5}),
    "paddle   ": ("epoch: 1, batch_id: 0, AUC:0.9, loss:2.9, avg_reader_cost: 0.1 sec, "
                  "avg_batch_cost: 0.001 sec, avg_samples: 0.128, ips: 128.0 ins/s\n"
                  "epoch: 1, batch_id: 500, AUC:0.9, loss:2.5, avg_reader_cost: 0.1 sec, "
                  "avg_batch_cost: 0.5 sec, avg_samples: 64.0, ips: 128.0 ins/s\n"
                  "epoch: 1 done, AUC: 0.9,loss:2.5, epoch time: 300.0 s\n",
                  {"step_period_ns": 0.5 * S, "samples_per_s_per_rank": 128, "last_loss": 2.5,
                   "batch_per_device_count": 64}),
    "paddle    ": ("[TRAIN] epoch: 1, iter: 10/1000, loss: 2.5, lr: 0.0099, batch_cost: 0.5000, "
                   "reader_cost: 0.04, ips: 8.0 samples/sec | ETA 00:03:17\n",
                   {"step_period_ns": 0.5 * S, "samples_per_s_per_rank": 8, "last_loss": 2.5}),
    "ssd": ("timer: 0.5000 sec.\niter 10 || Loss: 2.5 || timer: 0.5000 sec.\n"
            "Timer: 0.5000\nepoch:0 || iter:20 || Loss:2.5\n",
            {"step_period_ns": 0.5 * S, "last_loss": 2.5}),
    "tf-estimator": ("INFO:tensorflow:accuracy = 0.5, loss = 2.5, step = 101 (64.3 sec)\n"
                     "INFO:tensorflow:global_step/sec: 2.0\nINFO:tensorflow:Saving dict for "
               "global step "
                     "200: accuracy = 0.75, global_step = 200, loss = 1.5\n",
                     {"last_loss": 2.5, "steps_per_s": 2, "last_top1": 0.75, "last_val_loss": 1.5}),
    "espnet": ("1epoch:train:1-50batch: iter_time=0.1, loss=2.5, acc=0.5, train_time=0.5\n"
               "1epoch results: [train] iter_time=0.1, time=4 minutes, total_count=1, "
               "[valid] loss=2.0, "
               "acc=0.75, time=3 seconds\n",
               {"step_period_ns": 0.5 * S, "last_loss": 2.5, "last_top1": 0.75,
                 "last_val_loss": 2.0}),
    "yolox": ("2022-01-01 10:00:00 | INFO | yolox.core.trainer:257 - epoch: 1/300, iter: 10/100, mem: "
              "6000Mb, iter_time: 0.500s, data_time: 0.125s, total_loss: 2.5, iou_loss: 1.5, lr: 1e-06, "
              "size: 640, ETA: 5 days, 10:00:00\n",
              {"step_period_ns": 0.5 * S, "data_ns": 0.125 * S, "last_loss": 2.5}),
    "tf-slim": ("INFO:tensorflow:global step 10: loss = 3.5000 (0.500 sec/step)\n"
                "INFO:tensorflow:global step 20: loss = 2.5000 (0.500 sec/step)\n",
                {"step_period_ns": 0.5 * S, "last_loss": 2.5}),
    "tf-slim ": ("2017-01-01 10:00:00: step 10, loss = 2.50 (256.0 examples/sec; 0.500 sec/batch)\n",
                 {"step_period_ns": 0.5 * S, "last_loss": 2.5}),
    "tf-slim  ": ("INFO:tensorflow:Step 100 per-step time 0.500s\n"
                  "INFO:tensorflow:{'Loss/total_loss': 2.5, 'learning_rate': 0.01}\n",
                  {"step_period_ns": 0.5 * S, "last_loss": 2.5}),
    "stable-baselines": ("| rollout/           |       |\n|    ep_rew_mean     | 21.5  |\n"
                         "| time/              |       |\n|    fps             | 1200  |\n"
                         "|    total_timesteps | 4096  |\n",
                         {"environment_steps_per_s": 1200, "last_reward": 21.5}),
    "caffe": ("I0101 10:00:00.1 12 solver.cpp:239] Iteration 20 (2.5 iter/s, 8s/20 iters), loss = 2.5\n"
              "I0101 10:00:08.1 12 solver.cpp:398]     Test net output #0: accuracy = 0.75\n",
              {"steps_per_s": 2.5, "last_loss": 2.5, "last_top1": 0.75}),
    "opennmt": ("[2022-01-01 10:00:00,123 INFO] Step 50/100000; acc: 12.5; ppl: 512.0; xent: 2.5; lr: "
                "0.0001; sents: 3000; bsz: 4000/3800/60; 26000/25000 tok/s; 8 sec;\n",
                {"target_tokens_per_s": 25000, "last_loss": 2.5, "last_train_accuracy": 0.125}),
    "marian": ("[2022-01-01 10:00:00] Ep. 1 : Up. 100 : Sen. 6,400 : Cost 2.50 * 100,000 @ 500 after "
               "100,000 : Time 30.50s : 5010.50 words/s : gNorm 1.2 : L.r. 1e-05\n",
               {"tokens_per_s": 5010.5, "last_loss": 2.5}),
    "mlx-lm": ("Iter 1: Val loss 3.250, Val took 2.5s\nIter 10: Train loss 2.500, Learning Rate "
               "1.000e-05, It/sec 1.250, Tokens/sec 512.5, Trained Tokens 4100, Peak mem 7.0 GB\n",
               {"steps_per_s": 1.25, "tokens_per_s": 512.5, "last_loss": 2.5, "last_val_loss": 3.25}),
    "llama-factory": ("".join(f'{{"current_steps": {5 * n}, "total_steps": 100, "loss": 2.5, "lr": 4e-05, '
                              f'"elapsed_time": "0:00:{4 * n:02d}"}}\n' for n in range(12)),
                      {"last_loss": 2.5, "overall_step_period_ns": 0.8 * S, "step_period_ns": None}),
    "mindspore": ("epoch: 1 step: 100, loss is 2.5\n"
                  "Train epoch time: 1000.000 ms, per step time: 10.000 ms\n",
                  {"step_period_ns": 10e6, "last_loss": 2.5}),
    "mindspore ": ("2023-01-10 17:29:07,004:INFO:epoch[1], iter[377], loss:2.5, per step time: 500.0 ms, "
                   "fps: 128.5, lr:0.003\n",
                   {"step_period_ns": 0.5 * S, "samples_per_s": 128.5, "last_loss": 2.5}),
    "mindspore  ": ("epoch: [1/90] step: [100/500], loss: 2.5, overflow: False, lr: 0.1, per step time: "
                    "500.0 ms, fps: 128.5 img/s\n",
                    {"step_period_ns": 0.5 * S, "samples_per_s": 128.5, "last_loss": 2.5}),
    "detectron": ('json_stats: {"accuracy_cls": 0.9, "eta": "1:00:00", "iter": 100, "loss": 2.5, '
                  '"mem": 5000, "time": 0.5}\n', {"step_period_ns": 0.5 * S, "last_loss": 2.5}),
    "vllm": ("INFO 01-01 10:00:00 [loggers.py:116] Engine 000: Avg prompt throughput: 120.5 tokens/s, "
             "Avg generation throughput: 300.5 tokens/s, Running: 10 reqs, Waiting: 0 reqs\n",
             {"prompt_tokens_per_s": 120.5, "generated_tokens_per_s": 300.5}),
    "sglang": ("[2025-01-01 10:00:00] Decode batch. #running-req: 4, #token: 1000, token usage: 0.01, "
               "cuda graph: True, gen throughput (token/s): 300.5, #queue-req: 0\n",
               {"generated_tokens_per_s": 300.5, "last_running_requests": 4}),
    "llama-cpp": ("llama_perf_context_print: prompt eval time = 123.45 ms / 32 tokens ( 3.86 ms per "
                  "token, 259.5 tokens per second)\nllama_perf_context_print:        eval time = "
                  "1234.56 ms / 127 runs ( 9.72 ms per token, 102.5 tokens per second)\n",
                  {"prompt_tokens_per_s": 259.5, "generated_tokens_per_s": 102.5}),
    "trtexec": ("[01/01/2024-10:00:00] [I] Throughput: 512.5 qps\n[01/01/2024-10:00:00] [I] Latency: "
                "min = 1.9 ms, max = 2.5 ms, mean = 2.1 ms, median = 2.0 ms, percentile(99%) = 2.4 ms\n",
                {"queries_per_s": 512.5, "latency_ns": 2e6}),
    "serving-benchmark": ("Benchmark duration (s):      25.0\nRequest throughput (req/s):  4.0\n"
                          "Output token throughput (tok/s):   776.5\nMedian TTFT (ms):  45.5\n",
                          {"total_ns": 25 * S, "requests_per_s": 4, "generated_tokens_per_s": 776.5,
                           "first_token_ns": 45.5e6}),
    "litgpt": ("Epoch 1 | iter 1 step 0 | loss train: 3.5, val: n/a | iter time: 300.00 ms "
               "remaining time: 1:00:00\nEpoch 1 | iter 2 step 1 | loss train: 2.5, val: 2.25 | "
               "iter time: 300.00 ms (step) remaining time: 1:00:00\n",
               {"step_period_ns": 0.3 * S, "last_loss": 2.5, "last_val_loss": 2.25}),
    "litgpt ": ("iter 1 step 1: loss 2.5000, iter time: 300.00ms (optimizer.step)\n",
                {"step_period_ns": 0.3 * S, "last_loss": 2.5}),
    "clu": ("I0101 10:00:00.123456 140 logging_writer.py:48] [100] steps_per_second=4.0, "
            "train_accuracy=0.5, train_loss=2.5\n"
            "I0101 10:00:25.123456 140 logging_writer.py:48] [200] eval_accuracy=0.75\n",
            {"steps_per_s": 4.0, "last_loss": 2.5, "last_top1": 0.75}),
    "diffusers": ("Num examples = 100\nTotal train batch size (w. parallel, distributed & "
               "accumulation)"
                  " = 8\nSteps:   2%|x| 1/50 [00:02<01:38, 2.00s/it, lr=1e-5, step_loss=0.5]\n"
                  "Steps:   4%|x| 2/50 [00:04<01:36, 2.00s/it, lr=1e-5, step_loss=0.25]\n"
                  "Steps:   6%|x| 3/50 [00:06<01:34, 2.00s/it, lr=1e-5, step_loss=0.25]\n",
                  {"step_period_ns": 2 * S, "samples_per_s": 4, "last_loss": 0.25}),
    "cleanrl": ("global_step=512, episodic_return=20.0\nSPS: 2500\nglobal_step=1024, "
                "episodic_return=[21.]\nSPS: 2502\n",
                {"last_reward": 21, "environment_steps_per_s": 2502}),
    "rsl-rl": ("              \x1b[1m Learning iteration 0/1500 \x1b[0m\n\n"
               "     Computation: 48000 steps/s (collection: 1.500s, learning 0.500s)\n"
               "     Mean reward: 12.25\n     Iteration time: 2.00s\n",
               {"environment_steps_per_s": 48000, "generation_ns": 1.5 * S, "update_ns": 0.5 * S,
                "step_period_ns": 2 * S, "last_reward": 12.25}),
    "rl-games": ("fps step: 12345 fps step and policy inference: 10234 fps total: 8765 epoch: "
                 "5/1000 frames: 327680\n", {"environment_steps_per_s": 8765}),
    "deepmd": ("DEEPMD INFO    batch     100 training time 20.00 s, testing time 0.01 s\n"
               "DEEPMD INFO    batch     200 training time 12.50 s, testing time 0.01 s\n"
               "DEEPMD INFO    batch     300 training time 12.50 s, testing time 0.01 s\n",
               {"step_period_ns": 0.125 * S}),
    "deepmd ": ("[2024-10-05 20:18:01,123] DEEPMD INFO    batch     100: trn: rmse = 1.5e+01, "
                "rmse_e = 2.1e-01, lr = 1.00e-03\n[2024-10-05 20:18:01,123] DEEPMD INFO    batch "
                "    100: total wall time = 30.00 s, eta = 2:03:04\n[2024-10-05 20:18:13,623] "
                "DEEPMD INFO    batch     200: total wall time = 12.50 s, eta = 2:03:04\n",
                {"step_period_ns": 0.125 * S, "last_rmse": 15}),
    "olmo": ("2024-06-01 10:00:01 INFO     [olmo.train:967, rank=0] [step=100/739328,epoch=0]\n"
             "    train/CrossEntropyLoss=2.500\n    throughput/total_tokens=419,430,400\n"
             "    throughput/device/tokens_per_second=11,012\n"
             "    throughput/device/batches_per_second=0.5000\n",
             {"tokens_per_s_per_device": 11012, "steps_per_s": 0.5, "last_loss": 2.5}),
    "bigdl": ("INFO  DistriOptimizer$:408 - [Epoch 1 512/60000][Iteration 1][Wall Clock 0.500s] "
              "Trained 512 records in 0.500 seconds. Throughput is 1024.0 records/second. "
              "Loss is 2.25. \n",
              {"samples_per_s": 1024, "step_period_ns": 0.5 * S, "global_batch_count": 512,
               "last_loss": 2.25}),
    "darknet": (" 10: 2.500000, 2.612345 avg loss, 0.001000 rate, 3.400000 seconds, 640 images\n",
                {"step_period_ns": 3.4 * S, "last_loss": 2.5}),
    "coqui": ("   --> TIME: 2023-01-05 10:00:01 -- STEP: 24/391 -- GLOBAL_STEP: 25\n"
              "     | > loss: 3.25  (3.12)\n     | > step_time: 0.5000  (0.5100)\n"
              "     | > loader_time: 0.0100  (0.0120)\n",
              {"last_loss": 3.25, "step_period_ns": 0.5 * S, "data_ns": 0.01 * S}),
    "kaldi": ("LOG (nnet3-train[5.5]:PrintStatsForThisPhase():nnet-training.cc:236) Average "
              "objective function for 'output' for minibatches 0-99 is -0.25 over 128000 frames.\n"
              "# Accounting: time=250 threads=1\n",
              {"last_objective": -0.25, "total_ns": 250 * S}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_lines_of_other_programs(name: str, tmp_path: Path) -> None:
    text, measures = OTHERS[name]
    run = one_run(tmp_path, text)
    assert run.origin == f"log:{name.strip()}"
    assert {one: run.measure(one) for one in measures} == pytest.approx(measures)


def test_steps_of_epochs_of_unknown_length_have_a_place_in_the_first(tmp_path: Path) -> None:
    text = "".join(
        f"{epoch}epoch:train:1-{n}batch: loss={epoch}.{n}, train_time=0.5\n"
        for epoch in (1, 2)
        for n in (50, 100)
    )
    loss = rows(one_run(tmp_path, text), "loss")
    assert loss["value"].tolist() == [1.5, 1.1, 2.5, 2.1]
    assert loss["step"].tolist()[:2] == [50, 100] and loss["step"].isna().tolist()[2:] == [True] * 2


def test_times_that_grow_count_from_the_start(tmp_path: Path) -> None:
    text = "".join(
        f"DEEPMD INFO    batch {100 * n}: total wall time = {12.5 * n:.2f} s\n" for n in range(1, 8)
    )
    assert one_run(tmp_path, text).measure("step_period_ns") == pytest.approx(0.125 * S)


@pytest.mark.parametrize("seconds", ["1.50", "{elapsed:.2f}"])
def test_episodes_are_no_steps(seconds: str, tmp_path: Path) -> None:
    lines = "Episode: {n}/500 | Reward: {reward} | Steps: 200 | Time: " + seconds + "s\n"
    text = "".join(lines.format(n=n, reward=20 + n, elapsed=1.5 * n) for n in range(1, 20))
    run = one_run(tmp_path, text)
    assert run.measure("episode_ns") == pytest.approx(1.5 * S)
    assert run.measure("last_reward") == 39
    assert "step_period_ns" not in run.table("measures").to_frame()["measure"].tolist()


def test_a_time_every_ten_episodes_is_unclear(tmp_path: Path) -> None:
    text = "".join(f"Episode {n} Reward: 21 Time: 1.50s\n" for n in range(0, 90, 10))
    run = one_run(tmp_path, text)
    assert run.table("measures").to_frame()["measure"].tolist() == ["last_reward"]
    assert "ignores it" in said(run)
