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


_TITLE: Final = r"(?m)^(?:\d+\. )?"
"""Where the title of a finding stands on a page, or as a sentence of its own."""
FINE: Final = r"(?m)^No problem {2,}\d+ checks?: .*"


def fine(*subjects: str) -> str:
    """Return the pattern of a page that calls any of ``subjects`` fine."""
    return rf"{FINE}\b(?:{'|'.join(subjects)})\b"


_UNKNOWN_IDLE: Final = (
    r"[Gg]ive it work",
    "[Hh]ost-bound",
    r"\bidle \d",
    fine("idle time", "kernel launches"),
)

WILD: Final = {
    "pytorch192021-dropped-head.json": Label(
        (r"48 of 80 kernel launches have no recorded kernel", r"compute 88\.0%"),
        (r"[Gg]ive it work", r"launch no device work", r"idle 64\.6%"),
    ),
    "launches-no-kernels-at-all.json": Label(
        (r"kernels were not recorded: 80 launches have no kernel",), _UNKNOWN_IDLE
    ),
    "hyperloom1047-graph-replays.json": Label(
        (r"95 of 100 CUDA graph launches have no recorded kernels", "[Ii]nference"),
        (*_UNKNOWN_IDLE, fine("graph tracing"), r"idle 95\.3%"),
    ),
    "nsys-kernels-lost.sqlite": Label(
        (r"60 of 100 kernel launches have no recorded kernel", r"compute 90\.0%"),
        (r"[Gg]ive it work", r"idle 63\.9%"),
    ),
    "kineto109-zero-ts.json": Label(
        (r"ignored 20 events", r"of 39\.99 ms"),
        (r"1,615,207,264", fine("idle time", "kernel launches")),
    ),
    "kineto1416-hip-streams.json": Label(("AMD Instinct MI300X",), (r"CUDA graphs", "cuda[A-Z]")),
    "inference-foreach-copy.json": Label(
        ("[Ii]nference",), (r"\b[Tt]raining\b", "optimizer kernels")
    ),
    "expert-parallel-kernels.json": Label(
        ("Communication-bound", r"exposed communication 6[5-7]\.\d%", r"compute 25\.\d%"),
        (r"GPU-bound", fine("communication")),
    ),
    "megatron691-pipeline": Label(
        ("Pipeline bubble", r"is idle 29\.3%", r"27\.3%", "micro-batches"),
        (r"2[03]\.\d % of the time.*bubble", "[Ss]end less", "straggler"),
    ),
    "megatron691b-no-allreduce": Label(
        ("Pipeline bubble", r"is idle 29\.3%", r"27\.3%"),
        ("[Ss]end less", "Straggler: the other"),
    ),
    "nccltests184": Label(
        (
            r"rank 1 is late once, in one of 40",
            r"5\.00 s for it \(99\.2%",
            r"Costs +5\.00 s once",
        ),
        ("[Nn]o single rank", fine("load balance across ranks"), "[Ss]aves .* per step"),
    ),
    "megatron1001-contention.json": Label(
        (
            "GPU-bound",
            r"Communication slows overlapped kernels: .* 1\.40× as long",
            r"4\.00 ms per step",
        ),
        (
            r"[Hh]ost-bound",
            "straggler",
            fine("contention between compute and communication"),
            "Exposed communication takes",
        ),
    ),
    "uvm-migrations.sqlite": Label(
        (r"compute 6\.1%", "Waiting for pages of managed memory", "cudaMemPrefetchAsync"),
        ("GPU-bound", fine("idle time"), "record the kernel launch calls", "on a separate stream"),
    ),
    "trtllm16313-prepare.json": Label(
        ("mean of 7 steps", r"1 call to cudaHostAlloc per step", "Reuse pinned", "33.3 steps/s"),
        (
            r"[Cc]osts .* once",
            "caching allocator",
            "No step markers found",
            r"(?m)^One-time +loading",
        ),
    ),
    "hfblog3438-outlier.json": Label((r"4 steps", r"compute 24\.2%"), ("Warm-up: the first",)),
    "pytorch130730-annotations.json": Label(
        ("Communication-bound", r"exposed communication 40\.0%"), ("straggler",)
    ),
    "pytorch148314-deepep.json": Label(
        ("Communication-bound", r"exposed communication 75\.0%"), ("GPU-bound",)
    ),
    "sglang16219-async.json": Label(
        (r"compute 100\.0%", "[Nn]o (?:rule found anything|problem)"),
        (r"[Hh]ost-bound", r"[Ss]aves"),
    ),
    "traceml252": Label(
        (r"wait for rank 1", r"rank 1 is a straggler"),
        (fine("load balance across ranks"), "[Nn]o single rank"),
    ),
    "xpu.json": Label(("Data Center GPU Max 1550", "[Hh]ost-bound"), ("cuda[A-Z]", "NVIDIA")),
    "rocprofv3_results.db": Label(("ROCprofiler",), ("view",)),
    "trace.rpd": Label(("rocmProfileData",)),
    "dlprof_dldb.sqlite": Label(("DLProf", "nsys_profile.sqlite")),
    "memory_snapshot.pickle": Label(("PyTorch memory snapshot",), ("SQLite",)),
    "host.xplane.pb": Label(("XPlane",), ("SQLite",)),
    "report.ncu-rep": Label(("Nsight Compute",), ("SQLite",)),
    "nccl-profiler-plugin.json": Label(
        ("NCCL's profiler plugin",), ("torch.profiler trace is empty",)
    ),
}

SHARED: Final = {
    "kineto/2021-resnet50.json.gz": Label(
        ("[Tt]raining", "Input-bound", r"idle during data loading for 25\.6% of step time"),
        ("straggler", fine("input pipeline")),
    ),
    "kineto/2024-a100-plain.json": Label(
        (r"Kernel loading at first launches[^\n]*\s+[Cc]osts +675 ms once",),
        (r"[Ss]aves [^\n]*96\.2%", fine("kernel loading")),
    ),
    "kineto/2025-b200-rank0of8.json.gz": Label(
        ("[Ii]nference",), ("bucket_cap_mb", r"\b[Tt]raining\b", "optimizer kernels")
    ),
    "kineto/2025-mi300x-rccl.json.gz": Label(
        ("AMD Instinct MI300X", r"exposed communication 62\.4%", r"compute 34\.0%"),
        ("80% of them", "66.1%", "CUDA graphs"),
    ),
    "kineto/dlrm-8ranks-v100": Label(
        (r"idle 56\.5%", r"exposed communication 36\.5%"), ("Straggler: the other", r"66\.4%")
    ),
    "kineto/resnet18-2ranks-v100": Label(("Host-bound",), ("[Ii]nference",)),
    "kineto/torchrec-4ranks-straggler-v100": Label(
        ("Waiting for rank 2", r"56 calls to cudaFree in 1 of 2 steps", r"rank 2 is a straggler"),
        ("[Nn]o single rank", fine("load balance across ranks"), "[Ll]ate once"),
    ),
    "kineto/torchrec-4ranks-v100": Label(
        ("rank 2 is a straggler",), ("[Nn]o single rank", fine("load balance across ranks"))
    ),
    "nsys/2022.2-pytorch-a100-sampling-osrt.sqlite.gz": Label(
        ("[Tt]raining", "Input-bound", r"idle 95\.\d%"),
        (fine("input pipeline", "idle time"), "GPU-bound"),
    ),
    "nsys/2022.2-pytorch-a100-gpu-metrics-sampling.sqlite.gz": Label(
        ("Input-bound", "two kinds"), (fine("input pipeline", "idle time"), "GPU-bound")
    ),
    "nsys/2022.4-copies-only-8gpu-host.sqlite": Label(
        (r"34 copies to a GPU and no kernel",), ("GPU-bound", "[Ss]mall kernels")
    ),
    "nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz": Label(
        ("499 iterations", "GPU 3"), ("of them slow", "499 steps")
    ),
    "nsys/2024.6-cuda-graphs-a100.sqlite": Label(
        ("CUDA graphs were traced whole", r"compute 100\.0%"), ("9 steps", r"\b[Tt]raining\b on")
    ),
    "nsys/2024.6-llm-2.7b-nvtx-a100.sqlite": Label(
        (r"compute 99\.7%", "loading 30.7 s", "FP32"), ("[Pp]in the memory", "40.1%")
    ),
    "nsys/2025.1-fuser-nvtx-h200.sqlite": Label(
        (r"compilation or loading.*\s+Costs +545 ms", r"1\.63 s"),
        ("resetTvUses", "createChild"),
    ),
    "nsys/2025.1-llm-17k-kernels.sqlite": Label(
        (r"compute 97\.1%", "GPU-bound"), ("idle 27.5%", "Input-bound:")
    ),
    "nsys/2025.1-many-copies.sqlite": Label(
        # Fortran that writes its results to a file, page after page of managed memory.
        (
            r"Managed memory: the GPU waits for .* 46\.3% of the analyzed time",
            r"CPU work between launches.*43\.7%",
            "pwrite64",
        ),
        (
            r"have no recorded launch",
            "for an unknown reason",
            fine("idle time"),
            fine("CPU work between launches"),
        ),
    ),
    "nsys/2025.5-no-kernels.sqlite": Label(
        (), ("1 copies", r"^loading\b|One-time +loading", "[Ss]mall kernels")
    ),
    "nsys/2025.6-non-utf8-metadata.sqlite": Label(("can evaluate little",), (FINE,)),
    "nsys/2026.2-windows-laptop.sqlite": Label(("Launch-bound",), ("of them slow",)),
    "nvprof/v16-nccl-4gpu.nvvp": Label(
        ("[Cc]ommunication benchmark",), ("[Oo]verlap .* with compute", "[Ss]aves")
    ),
    "nvprof/v8-tensorflow.nvvp": Label(
        (r"Costs +1\.67 s once",), (r"[Ss]aves +1\.80 s", "GPU-bound")
    ),
    "h100/gpt-embedded.sqlite.gz": Label(
        ("GPU-bound", r"per step of 11\.2 ms", r"1\.41× as long"),
        (fine("profiler overhead"), r"per step of 15\.77"),
    ),
    "h100/cnn-embedded.sqlite.gz": Label(
        ("Layout conversion", "channels_last"), (r"at most 5\.2[89] ms", "[Hh]ost-bound")
    ),
    "h100/item-embedded.sqlite.gz": Label(("FP32", "BF16"), (r"Input-bound:",)),
    "h100/ddp-gloo-2ranks-embedded": Label(
        ("gloo", "rank 1", "on 1× NVIDIA H100"),
        ("2× NVIDIA H100", fine("communication", "load balance across ranks")),
    ),
    "h100/gpt-nsys2023.4-lost-kernels.sqlite.gz": Label(
        ("have no recorded launch", "incomplete"), ("idle 99.9%", "[Hh]ost-bound", FINE)
    ),
    "h100/cnn-nsys2023.4-lost-kernels.sqlite.gz": Label(
        ("have no recorded launch", "incomplete"),
        ("[Hh]ost-bound", fine("kernel launches", "idle time")),
    ),
    "h100/jax-0.11-mlp.trace.json.gz": Label(
        ("GPU-bound", "9 steps", r"compute 99\.7%"), ("No step markers found", "[Hh]ost-bound")
    ),
}

PLANTED: Final = {
    "managed_memory_that_migrates": Label(
        ("100 d2h migrations", "cudaMemAdvise"),
        ("record the kernel launch calls", fine("managed memory")),
    ),
    "kernel_of_one_block": Label(
        (r"1 block of 32 threads on 132 SMs", "Saves +up to"), (fine("SM utilization"),)
    ),
    "kernels_slowed_by_communication": Label(
        (r"1\.40× as long, which costs",),
        ("Exposed communication takes", fine("contention between compute and communication")),
    ),
    "attention_in_pieces": Label(
        ("Unfused attention", "scaled_dot_product_attention"), (fine("kernel fusion"),)
    ),
    "pageable_copies_that_should_be_asynchronous": Label(
        ("[Pp]in the memory", "because the CPU is blocked in these calls"),
        (f"{_TITLE}CPU work between launches[:,]", "Launch-bound: ", fine("pinned memory")),
    ),
    "bimodal_steps_every_other_of_which_waits_for_data": Label(
        (r"Every other step takes 1\.20 s", r"per step of 61\d ms", "Input-bound"),
        (
            "A typical step",
            "of them slow",
            fine("input pipeline", "step time variation", "idle time"),
        ),
    ),
    "pauses_of_a_minute": Label(
        (r"per step of 22\.\d ms.*: compute 99\.9%", "between steps", r"2 slow \("),
        (r"\bidle (?!0\.1%)\d", "[Hh]ost-bound", "garbage collection, slow file"),
    ),
    "structural_wait_between_steps": Label(
        ("between steps", r"16\.[56] steps/s", "fetches a batch, evaluates, or logs"),
        (
            f"{_TITLE}CPU work between launches[:,]",
            "of them slow",
            fine("CPU work between launches", "idle time"),
        ),
    ),
    "clean_gpu_loader_on_another_thread": Label(
        ("GPU-bound", r"mean of \d+ steps"), ("of them slow", "[Ss]aves", "straggler")
    ),
    "three_steps_with_warm_up": Label(
        ("mean of 2 steps", "The first step .* is excluded", "One-time +warm-up"),
        ("steps get", "Memory allocation", "of them slow", "[Ss]aves"),
    ),
    "four_steps_with_warm_up": Label(
        ("mean of 3 steps", "The first step .* is excluded", "One-time +warm-up"),
        ("steps get", "Memory allocation", "of them slow", "[Ss]aves"),
    ),
    "delay_of_rank_2_once": Label(
        ("step 12", r"rank 2 is 477 ms late at a collective"),
        ("rank 2 is a straggler", fine("load balance across ranks")),
    ),
    "slow_rank": Label(("rank 2 is a straggler",), ("[Nn]o single rank", "[Ll]ate once")),
    "clean_4_ranks": Label(
        ("[Nn]o (?:rule found anything|problem)",), ("straggler", "[Ll]ate once", "[Ss]aves")
    ),
    "malloc_in_loop": Label(
        ("in the loop", "6 calls to cudaMalloc per step"),
        ("[Cc]osts .* once", fine("memory allocation")),
    ),
    "input_wait_between_steps": Label(
        ("Input-bound:",), (f"{_TITLE}CPU work between", fine("input pipeline"))
    ),
    "host_code": Label(
        ("gc.collect",), ("between steps, mostly", fine("CPU work between launches"))
    ),
    "loss_read_every_step": Label(("Host synchronization",), (fine("host synchronization"),)),
    "set_up_ten_times_the_loop": Label(("One-time +loading",), ("[Ss]aves", "[Pp]in the memory")),
    "all_reduce_exposed": Label(
        ("Exposed communication takes",), (fine("communication"), "Straggler: the other")
    ),
    "pageable_copies": Label(("pageable",), (fine("pinned memory"),)),
}
