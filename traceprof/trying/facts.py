"""Questions about a program that decide which changes apply to it, answered by the first run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]
"""What the hooks found in the program: see `_describe_program` in ``trying`` of the runtime."""


def is_on_gpu(facts: Facts) -> bool:
    """Return whether the program uses a GPU."""
    return bool(facts.get("on_gpu"))


def loaders(facts: Facts) -> list[dict[str, Any]]:
    """Return the options of the DataLoaders of the program."""
    return [loader for loader in facts.get("loaders", ()) if isinstance(loader, dict)]


def has_modules(facts: Facts, *names: str) -> bool:
    """Return whether the program has a module of one of these classes."""
    return any(facts.get("modules", {}).get(name) for name in names)


def is_in_32_bits(facts: Facts) -> bool:
    """Return whether most parameters are float32 and autocast is off."""
    types = facts.get("parameters", {})
    whole = sum(types.values())
    return bool(whole) and types.get("torch.float32", 0) > whole / 2 and not facts["is_autocast"]


def has_optimizer_without(facts: Facts, option: str) -> bool:
    """Return whether a torch optimizer supports an option but does not use it."""
    return any(optimizer.get(option) in (None, False) for optimizer in facts.get("optimizers", ()))


def optimizer_of_torch(facts: Facts) -> str:
    """Return the class of the program's optimizer; ``Optimizer`` if it is unknown."""
    kinds = [str(one["kind"]) for one in facts.get("optimizers", ()) if one.get("is_of_torch")]
    return kinds[0] if kinds else "Optimizer"


def is_wrapped(facts: Facts) -> bool:
    """Return whether the program uses DistributedDataParallel."""
    return "DistributedDataParallel" in facts.get("wrappers", ())


def has_loader_without_workers(facts: Facts) -> bool:
    """Return whether a DataLoader has no workers and could have some."""
    return any(not loader["workers"] and not loader["is_stream"] for loader in loaders(facts))


def usual_workers(facts: Facts) -> str:
    """Return the number of DataLoader workers to try: one per CPU core, at most 8."""
    return str(max(1, min(8, int(facts.get("cpus") or 1))))


def other_threads(facts: Facts) -> str:
    """Return the number of CPUs if fewer threads are used, otherwise half of it."""
    cpus, threads = int(facts.get("cpus") or 1), int(facts.get("threads") or 1)
    return str(cpus if threads < cpus else max(1, cpus // 2))


def changes_of_memory(facts: Facts) -> list[str]:
    """Return the names of the changes that can lower the peak memory of the program."""
    applies = {
        "checkpoint": True,
        "set_to_none": True,
        "bf16": bool(facts) and is_in_32_bits(facts),
        "gradient_as_bucket_view": is_wrapped(facts),
        "optimizer_8bit": is_on_gpu(facts) and "Adam" in optimizer_of_torch(facts),
    }
    return [name for name, does_apply in applies.items() if does_apply]
