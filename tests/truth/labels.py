"""What is known of each recording: what must be said of it, and what must not.

Patterns of what a page, its findings and the notes of its tables say. Of the shared traces it is
what CATALOGUE.md says there, or SQL and brute force on the file (docs/truth.md); of those in
``wild`` what they were made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["PLANTED", "SHARED", "WILD", "Label"]


@dataclass(frozen=True)
class Label:
    """Patterns, all of which must be found (``says``), or none of which may be (``never``)."""

    says: tuple[str, ...]
    never: tuple[str, ...] = ()


FINE: Final = "(?m)^checked and fine: .*"


def fine(*subjects: str) -> str:
    """Return the pattern of a page that calls any of ``subjects`` fine."""
    return rf"{FINE}\b(?:{'|'.join(subjects)})\b"


_UNKNOWN_IDLE: Final = (r"give it work", "[Hh]ost-bound", r"% idle", fine("idle time", "launches"))

WILD: Final = {
    "pytorch192021-dropped-head.json": Label(
        (r"48 of 80 kernel launches have no kernel", r"88\.0 % compute"),
        (r"give it work", r"launch no device work", r"64\.6 % idle"),
    ),
    "launches-no-kernels-at-all.json": Label(
        (r"kernels were not recorded: 80 launches have none",), _UNKNOWN_IDLE
    ),
    "hyperloom1047-graph-replays.json": Label(
        (r"95 of 100 launches of CUDA graphs have no kernels", "inference"),
        (*_UNKNOWN_IDLE, fine("graphs"), r"95\.3 % idle"),
    ),
    "nsys-kernels-lost.sqlite": Label(
        (r"60 of 100 kernel launches have no kernel", r"90\.0 % compute"),
        (r"give it work", r"63\.9 % idle"),
    ),
    "kineto109-zero-ts.json": Label(
        (r"20 events left out", r"of 39\.99 ms"), (r"1 615 207 264", fine("idle time", "launches"))
    ),
    "kineto1416-hip-streams.json": Label(("AMD Instinct MI300X",), (r"CUDA graphs", "cuda[A-Z]")),
    "inference-foreach-copy.json": Label(("inference",), (r"\btraining\b", "optimizer kernels")),
    "expert-parallel-kernels.json": Label(
        ("Communication-bound", r"6[5-7]\.\d % exposed communication", r"25\.\d % compute"),
        (r"GPU-bound", fine("communication")),
    ),
    "megatron691-pipeline": Label(
        ("pipeline bubble", r"stands? still 29\.3 %", r"27\.3 %", "micro-batches"),
        (r"2[03]\.\d % of the time.*bubble", "send less", "straggler"),
    ),
    "megatron691b-no-allreduce": Label(
        ("pipeline bubble", r"stands? still 29\.3 %", r"27\.3 %"),
        ("send less", "straggler: the others"),
    ),
    "nccltests184": Label(
        (r"rank 1 comes late once, in one of 40", r"5\.000 s \(99\.2 %", r"costs 5\.000 s once"),
        ("no single rank", fine("ranks in step"), "saves .* of a step"),
    ),
    "megatron1001-contention.json": Label(
        (
            "GPU-bound",
            r"hiding communication has a price: .* 1\.40 x as long",
            r"4\.000 ms per step",
        ),
        (r"[Hh]ost-bound", "straggler", fine("contention"), "exposed communication:"),
    ),
    "uvm-migrations.sqlite": Label(
        (r"6\.1 % compute", "Waiting for pages of managed memory", "cudaMemPrefetchAsync"),
        ("GPU-bound", fine("idle time"), "record the calls", "on a stream of its own"),
    ),
    "trtllm16313-prepare.json": Label(
        ("mean of 7 steps", r"1 call of cudaHostAlloc per step", "reuse pinned", "33.33 steps/s"),
        (r"costs .* once", "caching allocator", "no steps are known", r"(?m)^once: loading"),
    ),
    "hfblog3438-outlier.json": Label((r"4 steps", r"24\.2 % compute"), ("warm-up:",)),
    "pytorch130730-annotations.json": Label(
        ("Communication-bound", r"40\.0 % exposed communication"), ("straggler",)
    ),
    "pytorch148314-deepep.json": Label(
        ("Communication-bound", r"75\.0 % exposed communication"), ("GPU-bound",)
    ),
    "sglang16219-async.json": Label(
        (r"100\.0 % compute", "no rule found anything"), (r"[Hh]ost-bound", r"saves")
    ),
    "traceml252": Label(
        (r"wait for rank 1", r"rank 1 is a straggler"), (fine("ranks in step"), "no single rank")
    ),
    "xpu.json": Label(("Data Center GPU Max 1550", "[Hh]ost-bound"), ("cuda[A-Z]", "NVIDIA")),
    "rocprofv3_results.db": Label(("ROCprofiler",), ("view",)),
    "trace.rpd": Label(("rocmProfileData",)),
    "dlprof_dldb.sqlite": Label(("DLProf", "nsys_profile.sqlite")),
    "memory_snapshot.pickle": Label(("memory snapshot of PyTorch",), ("SQLite",)),
    "host.xplane.pb": Label(("XPlane",), ("SQLite",)),
    "report.ncu-rep": Label(("Nsight Compute",), ("SQLite",)),
    "nccl-profiler-plugin.json": Label(("NCCL's profiler plugin",), ("torch.profiler: it was",)),
}

SHARED: Final = {
    "kineto/2021-resnet50.json.gz": Label(
        ("training", "input-bound", r"idle while data is fetched, 25\.6 % of the time"),
        ("straggler", fine("input")),
    ),
    "kineto/2024-a100-plain.json": Label(
        (r"launched for the first time[^\n]*costs 675\.\d ms once",),
        (r"saves [^\n]*96\.2 %", fine("loading of kernels")),
    ),
    "kineto/2025-b200-rank0of8.json.gz": Label(
        ("inference",), ("bucket_cap_mb", r"\btraining\b", "optimizer kernels")
    ),
    "kineto/2025-mi300x-rccl.json.gz": Label(
        ("AMD Instinct MI300X", r"62\.4 % exposed communication", r"34\.0 % compute"),
        ("80 % of them", "66.1 %", "CUDA graphs"),
    ),
    "kineto/dlrm-8ranks-v100": Label(
        (r"56\.5 % idle", r"36\.5 % exposed communication"), ("straggler: the others", r"66\.4 %")
    ),
    "kineto/resnet18-2ranks-v100": Label(("Host-bound",), ("inference",)),
    "kineto/torchrec-4ranks-straggler-v100": Label(
        ("Waiting for rank 2", r"56 calls of cudaFree in 1 of 2 steps", r"rank 2 is a straggler"),
        ("no single rank", fine("ranks in step"), "late once"),
    ),
    "kineto/torchrec-4ranks-v100": Label(
        ("rank 2 is a straggler",), ("no single rank", fine("ranks in step"))
    ),
    "nsys/2022.2-pytorch-a100-sampling-osrt.sqlite.gz": Label(
        ("training", "Input-bound", r"95\.\d % idle"), (fine("input", "idle time"), "GPU-bound")
    ),
    "nsys/2022.2-pytorch-a100-gpu-metrics-sampling.sqlite.gz": Label(
        ("Input-bound", "two kinds"), (fine("input", "idle time"), "GPU-bound")
    ),
    "nsys/2022.4-copies-only-8gpu-host.sqlite": Label(
        (r"34 copies to a device and no kernel",), ("GPU-bound", "small kernels")
    ),
    "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz": Label(
        ("499 iterations of a repeating pattern", "device 3"), ("of them slow", "499 steps")
    ),
    "nsys/2024.6-cuda-graphs-a100.sqlite": Label(
        ("CUDA graphs were traced whole", r"100\.0 % compute"), ("9 steps", r"\btraining\b on")
    ),
    "nsys/2024.6-llm-2.7b-nvtx-a100.sqlite": Label(
        (r"99\.7 % compute", "loading 30.74 s", "FP32"), ("pin the memory", "40.1 %")
    ),
    "nsys/2025.1-fuser-nvtx-h200.sqlite": Label(
        (r"compiled or loaded.*545\.\d ms", r"1\.629 s"), ("resetTvUses", "createChild")
    ),
    "nsys/2025.1-llm-17k-kernels.sqlite": Label(
        (r"97\.1 % compute", "GPU-bound"), ("27.5 % idle", "input-bound:")
    ),
    "nsys/2025.1-many-copies.sqlite": Label(
        # Fortran that writes its results to a file, page after page of managed memory.
        (
            r"managed memory: devices wait for .*, 46\.3 % of the time",
            r"host code between launches.*42\.5 %",
            "pwrite64",
        ),
        (r"no launch was recorded", "does not tell why", fine("idle time"), fine("host code")),
    ),
    "nsys/2025.5-no-kernels.sqlite": Label(
        (), ("1 copies", r"^loading\b|once: loading", "small kernels")
    ),
    "nsys/2025.6-non-utf8-metadata.sqlite": Label(("little can be judged",), (FINE,)),
    "nsys/2026.2-windows-laptop.sqlite": Label(("Launch-bound",), ("of them slow",)),
    "nvprof/v16-nccl-4gpu.nvvp": Label(
        ("communication benchmark",), ("overlap it with compute", "saves")
    ),
    "nvprof/v8-tensorflow.nvvp": Label((r"costs 1\.669 s once",), ("saves 1.801 s", "GPU-bound")),
    "h100/gpt-embedded.sqlite.gz": Label(
        ("GPU-bound", r"A step of 11\.23 ms", "1.41. times as long"),
        (fine("profiler"), r"A step of 15\.77"),
    ),
    "h100/cnn-embedded.sqlite.gz": Label(
        ("layout conversion", "channels_last"), (r"at most 5\.285 ms", "[Hh]ost-bound")
    ),
    "h100/item-embedded.sqlite.gz": Label(("FP32", "BF16"), (r"input-bound:",)),
    "h100/ddp-gloo-2ranks-embedded": Label(
        ("gloo", "rank 1", "on NVIDIA H100"), ("2 × H100", fine("communication", "ranks in step"))
    ),
    "h100/gpt-nsys2023.4-lost-kernels.sqlite.gz": Label(
        ("no launch was recorded", "incomplete"), ("99.9 % idle", "[Hh]ost-bound", FINE)
    ),
    "h100/cnn-nsys2023.4-lost-kernels.sqlite.gz": Label(
        ("no launch was recorded", "incomplete"), ("[Hh]ost-bound", fine("launches", "idle time"))
    ),
    "h100/jax-0.11-mlp.trace.json.gz": Label(
        ("GPU-bound", "9 steps", r"99\.7 % compute"), ("no steps are known", "[Hh]ost-bound")
    ),
}

PLANTED: Final = {
    "managed_memory_that_migrates": Label(
        ("100 of d2h", "cudaMemAdvise"), ("record the calls", fine("managed memory"))
    ),
    "kernel_of_one_block": Label(
        (r"1 block of 32 threads on 132 SMs", "saves at most"), (fine("use of the SMs"),)
    ),
    "kernels_slowed_by_communication": Label(
        (r"1\.40 x as long beside it",), ("exposed communication:", fine("contention"))
    ),
    "attention_in_pieces": Label(
        ("unfused attention", "scaled_dot_product_attention"), (fine("fusion"),)
    ),
    "pageable_copies_that_should_be_asynchronous": Label(
        ("pin the memory", "launches late because of these calls"),
        ("host code between launches", "launch-bound:", fine("pinned memory")),
    ),
    "bimodal_steps_every_other_of_which_waits_for_data": Label(
        (r"Every other step takes 1\.20\d s", r"A step of 61\d\.\d ms", "Input-bound"),
        ("A typical step", "of them slow", fine("input", "even steps", "idle time")),
    ),
    "pauses_of_a_minute": Label(
        (r"A step of 22\.\d\d ms is 99\.9 % compute", "between steps", r"2 slow \("),
        (r"\d % idle", "[Hh]ost-bound", "garbage collection, a slow file"),
    ),
    "structural_wait_between_steps": Label(
        ("between steps", r"16\.[56]\d steps/s", "fetch a batch, evaluate or log"),
        ("host code between launches:", "of them slow", fine("host code", "idle time")),
    ),
    "clean_gpu_loader_on_another_thread": Label(
        ("GPU-bound", r"mean of \d+ steps"), ("of them slow", "saves", "straggler")
    ),
    "three_steps_with_warm_up": Label(
        ("mean of 2 steps", "without the first step", "once: warm-up"),
        ("steps get", "memory is allocated", "of them slow", "saves"),
    ),
    "four_steps_with_warm_up": Label(
        ("mean of 3 steps", "without the first step", "once: warm-up"),
        ("steps get", "memory is allocated", "of them slow", "saves"),
    ),
    "delay_of_rank_2_once": Label(
        ("step 12", r"rank 2 comes 476\.9 ms late to a collective"),
        ("rank 2 is a straggler", fine("ranks in step")),
    ),
    "slow_rank": Label(("rank 2 is a straggler",), ("no single rank", "late once")),
    "clean_4_ranks": Label(("no rule found anything",), ("straggler", "late once", "saves")),
    "malloc_in_loop": Label(
        ("in the loop", "6 calls of cudaMalloc per step"), ("costs .* once", fine("allocation"))
    ),
    "input_wait_between_steps": Label(("input-bound",), ("host code between", fine("input"))),
    "host_code": Label(("gc.collect",), ("between steps, mostly", fine("host code"))),
    "loss_read_every_step": Label(("the host waits for the device",), (fine("synchronisation"),)),
    "set_up_ten_times_the_loop": Label(("once: loading",), ("saves", "pin the memory")),
    "all_reduce_exposed": Label(
        ("exposed communication",), (fine("communication"), "straggler: the others")
    ),
    "pageable_copies": Label(("pageable|pin",), (fine("pinned memory"),)),
}
