"""Define the changes that can be tried: when they apply, what they do, and what they can break.

`_traceprof_runtime/changes.py` applies them in the program, under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from traceprof.errors import UsageError
from traceprof.registries import Registry
from traceprof.trying.facts import (
    Facts,
    changes_of_memory,
    has_loader_without_workers,
    has_modules,
    has_optimizer_without,
    is_in_32_bits,
    is_on_gpu,
    is_wrapped,
    loaders,
    optimizer_of_torch,
    other_threads,
    usual_workers,
)

LOSS_CURVE: Final = "the loss curve, within its noise"
SAME_LOSSES: Final = "the losses: the change does not affect the computation"
OTHER_TRAINING: Final = "nothing: the training run is different"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a program.

    Attributes:
        name: the name on the command line.
        about: what the change does.
        breaks: what it can break.
        lines: the code to add to the program; ``{value}`` stands for the value.
        applies: returns whether to try the change without a request, given the facts; None: never.
        rules: the findings that advise the change.
        equal: what must stay equal: one of the three constants of this module.
        usual: returns the default value, given the facts; "" if the change needs no value.
        environment: returns environment variables for the program, given the value.
        needs_value: there is no default value.
        has_commas: the value may contain commas.
    """

    name: str
    about: str
    breaks: str
    lines: str
    applies: Callable[[Facts], bool] | None = None
    rules: Sequence[str] = ()
    equal: str = LOSS_CURVE
    usual: Callable[[Facts], str] = field(default=lambda _facts: "")
    environment: Callable[[str], Mapping[str, str]] = field(default=lambda _value: {})
    needs_value: bool = False
    has_commas: bool = False


CHANGES: Final[Registry[Change]] = Registry(
    "change",
    (
        Change(
            "workers",
            "worker processes load batches ahead of the loop",
            "memory per worker; datasets with locks or open files; random augmentation",
            "DataLoader(…, num_workers={value}, persistent_workers=True)",
            has_loader_without_workers,
            ("input_bound",),
            equal=SAME_LOSSES,
            usual=usual_workers,
        ),
        Change(
            "prefetch_factor",
            "each worker loads more batches ahead",
            "host memory",
            "DataLoader(…, prefetch_factor={value})",
            lambda facts: any(
                loader["workers"] and (loader["prefetch"] or 2) < 4 for loader in loaders(facts)
            ),
            ("input_bound",),
            SAME_LOSSES,
            lambda _facts: "4",
        ),
        Change(
            "persistent_workers",
            "workers keep running between epochs",
            "the state of a dataset in a worker persists between epochs",
            "DataLoader(…, persistent_workers=True)",
            lambda facts: any(
                loader["workers"] and not loader["is_persistent"] for loader in loaders(facts)
            ),
            ("input_bound", "slow_steps"),
            SAME_LOSSES,
        ),
        Change(
            "pin_memory",
            "batches are in pinned memory, so that the GPU can copy them directly",
            "host memory that cannot be paged out",
            "DataLoader(…, pin_memory=True)",
            lambda facts: (
                is_on_gpu(facts) and any(not loader["is_pinned"] for loader in loaders(facts))
            ),
            ("pageable_copies", "unpinned_memory"),
            SAME_LOSSES,
        ),
        Change(
            "non_blocking",
            "copies from pinned memory do not block the CPU",
            "a batch that the CPU changes before the copy has finished",
            "batch.to(device, non_blocking=True)",
            lambda facts: (
                is_on_gpu(facts) and any(loader["is_pinned"] for loader in loaders(facts))
            ),
            ("blocking_copies", "exposed_copies", "host_sync"),
            SAME_LOSSES,
        ),
        Change(
            "channels_last",
            "images and convolution weights use the NHWC layout, which suits tensor cores",
            "code that relies on strides",
            "model = model.to(memory_format=torch.channels_last); "
            "x = x.to(memory_format=torch.channels_last)",
            lambda facts: has_modules(facts, "Conv2d", "ConvTranspose2d"),
            ("layout_conversion",),
        ),
        Change(
            "channels_last_3d",
            "volumes and convolution weights use the NDHWC layout",
            "code that relies on strides",
            "model = model.to(memory_format=torch.channels_last_3d); "
            "x = x.to(memory_format=torch.channels_last_3d)",
            lambda facts: has_modules(facts, "Conv3d", "ConvTranspose3d"),
            ("layout_conversion",),
        ),
        Change(
            "bf16",
            "GEMMs and convolutions run in bfloat16 (autocast)",
            "precision of three digits instead of seven",
            "with torch.autocast(device, dtype=torch.bfloat16): …",
            is_in_32_bits,
            ("precision",),
        ),
        Change(
            "fp16",
            "GEMMs and convolutions run in float16 (autocast, losses scaled by 1024)",
            "values above 65,504 overflow; a GradScaler is required",
            "with torch.autocast(device, dtype=torch.float16): …; torch.amp.GradScaler",
            rules=("precision",),
        ),
        Change(
            "tf32",
            "GEMMs run in TF32: 10-bit mantissas on tensor cores",
            "products with three digits instead of seven",
            "torch.backends.cuda.matmul.allow_tf32 = True",
            lambda facts: is_on_gpu(facts) and is_in_32_bits(facts) and not facts["is_tf32"],
            ("precision",),
        ),
        Change(
            "matmul_precision",
            "float32 matrix multiplications use fewer bits (high: TF32, medium: bfloat16)",
            "products with three digits instead of seven",
            'torch.set_float32_matmul_precision("{value}")',
            rules=("precision",),
            usual=lambda _facts: "high",
        ),
        Change(
            "cudnn_benchmark",
            "cuDNN measures its algorithms and uses the fastest one",
            "a new measurement for every new shape; different algorithms in different runs",
            "torch.backends.cudnn.benchmark = True",
            lambda facts: (
                is_on_gpu(facts)
                and not facts["is_benchmark"]
                and has_modules(facts, "Conv1d", "Conv2d", "Conv3d")
            ),
        ),
        Change(
            "fused_optimizer",
            "the optimizer updates many parameters with one kernel",
            "optimizers without a fused implementation raise an error",
            "torch.optim.{optimizer}(…, fused=True)",
            lambda facts: has_optimizer_without(facts, "fused"),
            ("unfused_optimizer", "looped_optimizer", "launch_bound"),
        ),
        Change(
            "foreach_optimizer",
            "the optimizer updates many parameters at a time",
            "temporary memory of the size of the parameters",
            "torch.optim.{optimizer}(…, foreach=True)",
            lambda facts: has_optimizer_without(facts, "foreach"),
            ("looped_optimizer", "launch_bound"),
        ),
        Change(
            "set_to_none",
            "zero_grad releases gradients instead of filling them with zeros",
            "code that reads gradients after zero_grad",
            "optimizer.zero_grad(set_to_none=True)",
            rules=("launch_bound",),
            equal=SAME_LOSSES,
        ),
        Change(
            "compile",
            "torch.compile compiles the outermost module",
            "minutes of compilation; graph breaks; changing shapes",
            "model = torch.compile(model{value})",
            lambda facts: is_on_gpu(facts) and not has_modules(facts, "OptimizedModule"),
            ("launch_bound", "fusable_kernels", "small_kernels"),
        ),
        Change(
            "sdpa",
            "attention uses only the given backend: flash, efficient, math, or cudnn",
            "shapes and masks that the backend does not support",
            "with torch.nn.attention.sdpa_kernel(…): …",
            needs_value=True,
        ),
        Change(
            "bucket_cap_mb",
            "DDP reduces gradients in larger buckets",
            "less overlap with the backward pass if the buckets are too large",
            "DistributedDataParallel(…, bucket_cap_mb={value})",
            is_wrapped,
            ("small_buckets", "exposed_communication"),
            LOSS_CURVE,
            lambda _facts: "100",
        ),
        Change(
            "gradient_as_bucket_view",
            "gradients are views of the DDP buckets: no copies, less memory",
            "code that replaces gradients",
            "DistributedDataParallel(…, gradient_as_bucket_view=True)",
            is_wrapped,
            ("exposed_communication",),
            SAME_LOSSES,
        ),
        Change(
            "static_graph",
            "DDP assumes the same graph in every step",
            "models that use different parameters in different steps",
            "DistributedDataParallel(…, static_graph=True)",
            rules=("exposed_communication",),
        ),
        Change(
            "ddp_hook",
            "DDP sends gradients in 16 bits",
            "gradients outside the range or precision of 16 bits",
            "model.register_comm_hook(None, default_hooks.{value}_compress_hook)",
            is_wrapped,
            ("exposed_communication", "host_communication"),
            LOSS_CURVE,
            lambda _facts: "bf16",
        ),
        Change(
            "threads",
            "CPU operators use this number of threads",
            "a different order of summation",
            "OMP_NUM_THREADS={value}",
            lambda facts: not is_on_gpu(facts) and int(facts.get("cpus") or 1) > 1,
            ("host_code",),
            LOSS_CURVE,
            other_threads,
            lambda value: {"OMP_NUM_THREADS": value, "MKL_NUM_THREADS": value},
        ),
        Change(
            "affinity",
            "threads stay on their CPU cores (OMP_PROC_BIND: close or spread)",
            "other programs on the same CPU cores",
            "OMP_PROC_BIND={value}",
            None,
            ("host_code",),
            SAME_LOSSES,
            lambda _facts: "close",
            lambda value: {"OMP_PROC_BIND": value, "OMP_PLACES": "cores"},
        ),
        Change(
            "allocator",
            "the caching allocator uses these settings (PYTORCH_CUDA_ALLOC_CONF)",
            "CUDA graphs and IPC with expandable segments in older PyTorch versions",
            "PYTORCH_CUDA_ALLOC_CONF={value}",
            None,
            ("allocations",),
            SAME_LOSSES,
            lambda _facts: "expandable_segments:True",
            lambda value: {"PYTORCH_CUDA_ALLOC_CONF": value},
            has_commas=True,
        ),
        Change(
            "gc_freeze",
            "Python's garbage collector is off after warm-up",
            "reference cycles are not freed",
            "gc.collect(); gc.freeze(); gc.disable()",
            None,
            ("slow_steps", "host_code"),
            SAME_LOSSES,
        ),
        Change(
            "env",
            "the program runs with this environment variable, such as NCCL_ALGO=Ring",
            "the effects of the variable",
            "{value}",
            needs_value=True,
            environment=lambda value: dict([value.split("=", 1)]),
            has_commas=True,
        ),
        Change(
            "batch_size",
            "batches have a different size (x2: double); savings are per sample",
            "a different training run: learning rate and accuracy change",
            "DataLoader(…, batch_size={value})",
            needs_value=True,
            equal=OTHER_TRAINING,
        ),
        Change(
            "checkpoint",
            "repeated blocks keep no activations and run their forward pass again (all, or every "
            "Nth block)",
            "batch norm updates its statistics twice; about a third more compute",
            "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            equal=SAME_LOSSES,
            usual=lambda _facts: "1",
        ),
        Change(
            "accumulate",
            "the optimizer steps after N batches, and DDP reduces gradients once (no_sync); "
            "savings are per batch",
            "a different training run: the batch is N times as large",
            "with model.no_sync() for {value} - 1 of {value} batches; (loss / {value}).backward()",
            equal=OTHER_TRAINING,
            usual=lambda _facts: "4",
        ),
        Change(
            "optimizer_8bit",
            "Adam and AdamW keep their state in 8 bits (requires bitsandbytes)",
            "optimizer state with two digits; embeddings can need 32 bits",
            "bitsandbytes.optim.{optimizer}8bit(…)",
        ),
        Change(
            "empty_cache",
            "the caching allocator returns unused GPU memory every N steps "
            "(torch_empty_cache_steps)",
            "new allocations take time",
            "if step % {value} == 0: torch.cuda.empty_cache()",
            equal=SAME_LOSSES,
            usual=lambda _facts: "4",
        ),
    ),
)

_NAMES: Final = frozenset(change.name for change in CHANGES)


@dataclass(frozen=True, slots=True)
class ChosenChange:
    """A change with its value; texts join changes that are applied together with +."""

    change: Change
    value: str

    @property
    def text(self) -> str:
        """The change as the user writes it: ``workers=8``."""
        return f"{self.change.name}={self.value}" if self.value else self.change.name

    def lines_in(self, facts: Facts) -> str:
        """Return the code to add to a program with these facts."""
        value = self.value
        if self.change.name == "compile" and value:
            value = f', mode="{value}"'
        if self.change.name == "batch_size" and value.startswith("x"):
            size = next((loader["batch"] for loader in loaders(facts) if loader.get("batch")), 0)
            value = str(size * int(value[1:])) if size else f"{value[1:]} * batch_size"
        optimizer = optimizer_of_torch(facts)
        return self.change.lines.replace("{value}", value).replace("{optimizer}", optimizer)


def change_named(name: str) -> Change:
    """Return the change with this name.

    Raises:
        UsageError: the change is unknown.
    """
    for change in CHANGES:
        if change.name == name:
            return change
    raise UsageError(f"unknown change {name!r}; use {', '.join(item.name for item in CHANGES)}")


def parse_changes(texts: Sequence[str], facts: Facts | None = None) -> list[ChosenChange]:
    """Return the changes in texts such as ``channels_last,workers=8``.

    Raises:
        UsageError: a change is unknown or needs a value.
    """
    found: list[ChosenChange] = []
    for text in (part.strip() for whole in texts for part in whole.split(",")):
        if not text:
            continue
        name, _, value = text.partition("=")
        if found and found[-1].change.has_commas and name not in _NAMES:
            found[-1] = replace(found[-1], value=f"{found[-1].value},{text}")
            continue
        change = change_named(name)
        value = value or change.usual(facts or {"cpus": os.cpu_count()})
        if change.needs_value and not value:
            raise UsageError(f"--change {text} needs a value: use --change {name}=VALUE")
        if name == "env" and "=" not in value:
            raise UsageError(f"--change {text}: expected env=NAME=VALUE")
        found.append(ChosenChange(change, value))
    return found


def changes_to_try(
    facts: Facts, predicted: Mapping[str, float], *, for_memory: bool = False
) -> list[ChosenChange]:
    """Return the changes that apply to a program, the largest predicted saving first.

    Args:
        facts: what the hooks found.
        predicted: the predicted saving as a share of the time, by finding rule.
        for_memory: return the changes that can lower the peak memory.
    """
    names = changes_of_memory(facts)
    found = [
        ChosenChange(change, change.usual(facts))
        for change in CHANGES
        if (change.name in names if for_memory else change.applies and change.applies(facts))
    ]
    return sorted(found, key=lambda one: -(predicted_ratio(one, predicted) or 0.0))


def predicted_ratio(chosen: ChosenChange, predicted: Mapping[str, float]) -> float | None:
    """Return the largest predicted saving of a change as a share of the time, or None."""
    savings = [predicted[rule] for rule in chosen.change.rules if rule in predicted]
    return max(savings, default=None)


def expected_savings(facts: Facts, predicted: Mapping[str, float]) -> Mapping[str, float]:
    """Return the savings to expect by finding rule, to decide which change is tried first.

    The first run measures how long the loop waits for batches; a trace predicts the rest.
    """
    return {"input_bound": float(facts.get("fetch_ratio") or 0.0), **predicted}
