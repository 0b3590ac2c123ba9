"""Detects what a run does (training, inference, a benchmark …), its software, and the evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.host.phases import phases_of_all_ranges, phases_of_work
from traceprof.measures.host.threads import autograd_rows
from traceprof.measures.rows import are_named, grouped, lengths_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of, is_in
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Names, Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import RecordedBy, Trace
from traceprof.names.kernels import short_name
from traceprof.names.ranges import PHASES, are_matched, plain_name, plain_names

TRAINING, INFERENCE, LOADING = "training", "inference", "loading"
COMMUNICATION, UNKNOWN = "communication benchmark", "unknown"
WORKLOADS: Final = (TRAINING, INFERENCE, LOADING, COMMUNICATION, UNKNOWN)

_BACKWARD: Final = re.compile(
    r"(?i)backward|(^|[^a-z])bwd|_bwd|wgrad|dgrad|(^|[^a-z])d(q|kv|x|w)_kernel|autograd::engine"
)
_OPTIMIZER: Final = re.compile(r"(?i)optimi[sz]er[ ._#]?step|Optimizer\.step#")
_DECODER_NAMES: Final = re.compile(
    r"(?i)paged[_ ]?attention|kv[_ ]?cache|reshape_and_cache|decode(with|_|attention)"
    r"|masked_multihead|prefill|mmha|trtllm|vllm|sglang|topk.{0,99}sampl|sampl.{0,99}top|speculative"
)
_TRAINING_NAMES: Final = re.compile(
    r"(?i)cross_?entropy|(nll|mse|l1|huber|ctc|kl_?div)_?loss|(^|[^a-z])loss($|[^a-z])"
    r"|DistributedDataParallel|DDPSink|FullyShardedDataParallel|FSDP|zero_?grad|GradScaler"
    r"|sync_?grad|grad_?(norm|sync)|(^|[^a-z])(rowwise_)?ada(grad|m)w?_"
)
"""Names that accompany a backward pass even if it was not recorded: losses, gradient averaging."""
_HEAVY: Final = (Activity.GEMM.value, Activity.CONVOLUTION.value, Activity.ATTENTION.value)
_MAX_NAME_LENGTH: Final = 60
_MIN_BACKWARD_RATIO: Final = 0.01
"""Minimum share of kernel time in backward kernels. A single loss kernel is no proof of training.
"""
_MIN_HEAVY_RATIO: Final = 0.1
_MAX_OTHER_RATIO: Final = 0.02
_FORWARD: Final = tuple(map(PHASES.index, ("forward", "eval")))
"""A forward pass without gradients is an evaluation, so both phases count as forward."""
_MIN_FORWARD_RATIO: Final = 0.9
"""Forward ranges indicate inference only if nearly all work is launched in them.

Backward passes would be launched outside them.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run does (one of `WORKLOADS`), and the evidence, strongest first."""

    kind: str
    reasons: tuple[Note, ...] = ()


@fact
def workload(ranks: Ranks) -> Workload:
    """Return what the run does, from names of ranges and kernels and the time that they take."""
    kernels = _sum_by(ranks.each(_times_of_names), "name", "activity")
    whole = float(kernels["total_ns"].sum())
    backward, stepped = _backward_of(ranks, kernels), _optimizer_of(ranks, kernels)
    if training := [*backward, *stepped]:
        # Kernel names alone are as weak as kernel names that indicate inference.
        is_certain = backward or any(map(len, ranks.each(_names_of, "optimizer", _OPTIMIZER)))
        contrary = [] if is_certain else list(_inference_of(ranks, kernels))
        return Workload(UNKNOWN if contrary else TRAINING, (*training, *contrary))
    if not whole:
        return _without_kernels(ranks)
    by_activity = _sum_by([kernels], "activity")
    shares = dict(
        zip(by_activity["activity"], (by_activity["total_ns"] / whole).tolist(), strict=True)
    )
    communication = shares.get(Activity.COMMUNICATION.value, 0.0)
    if communication >= 1 - _MAX_OTHER_RATIO:
        return Workload(
            COMMUNICATION,
            (Note.of("communication takes {share:ratio} of kernel time", share=communication),),
        )
    inference = list(_inference_of(ranks, kernels))
    trains = [] if inference else _signs_of_training(ranks)
    inference += [] if trains else _only_forward(ranks)
    heavy = sum(shares.get(activity, 0.0) for activity in _HEAVY)
    if inference or trains or heavy >= _MIN_HEAVY_RATIO:
        note = Note("no backward pass or optimizer was recorded")
        return Workload(INFERENCE if inference else UNKNOWN, (*inference, *trains, note))
    return Workload(UNKNOWN, (Note("no names that indicate training or inference"),))


def _times_of_names(part: Trace) -> Table:
    """Return the time of the kernels by name: name, activity, total_ns, count."""
    groups = groups_of(part.kernels["name"])
    named = part.kernels.select("name", "activity").take(groups.first_rows)
    return Table(
        {
            "name": np.asarray(named["name"]),
            "activity": np.asarray(named["activity"]),
            "total_ns": groups.reduced(np.add, lengths_of(part.kernels)),
            "count": groups.counts,
        }
    )


def _sum_by(tables: Sequence[Table], *keys: str) -> Table:
    """Return the sums of all integer columns by the texts of ``keys``, in alphabetical order."""
    stacked = Table.stacked(tables)
    named = ((key, Names.of(stacked[key])) for key in keys)
    groups, labels = grouped(
        {key: Names.coded(column.texts, column.packed, is_sorted=True) for key, column in named}
    )
    summed = [name for name in stacked if name not in keys and stacked[name].dtype.kind == "i"]
    return Table(labels | {name: groups.reduced(np.add, stacked[name]) for name in summed})


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME_LENGTH else f"{text[:_MAX_NAME_LENGTH]}…"


def _kernel_name(name: str) -> str:
    """Return the short name of a kernel without its arguments."""
    return _short(short_name(plain_name(name)))


def _longest_of(kernels: Table) -> str:
    return _kernel_name(kernels["name"][kernels["total_ns"].argmax()])


def _range_name(name: str) -> str:
    return _short(plain_name(name).strip())


def _named(kernels: Table, pattern: re.Pattern[str]) -> Table:
    return kernels.take(are_matched(kernels["name"], pattern))


def _ranges_of(part: Trace, phase: str, pattern: re.Pattern[str]) -> Table:
    """Return the ranges of a phase and those whose name matches ``pattern``."""
    return part.ranges.take(
        are_named(part.ranges["name"], pattern)
        | (phases_of_all_ranges(part) == PHASES.index(phase))
    )


def _names_of(part: Trace, phase: str, pattern: re.Pattern[str], is_named: bool = False) -> Table:
    """Return the names of `_ranges_of` with their total time and count: name, ns, n.

    ``is_named``: only ranges whose name matches ``pattern``.
    """
    ranges = _ranges_of(part, phase, pattern)
    if is_named:
        ranges = ranges.take(are_named(ranges["name"], pattern))
    plain = plain_names(ranges["name"])
    names = Names.coded((_short(name.strip()) for name in plain.texts), plain.codes)
    counts = np.ones(len(ranges), np.int64)
    return _sum_by([Table({"name": names, "ns": lengths_of(ranges), "n": counts})], "name")


_BACKWARD_PASS: Final = "backward"
"""The name of a backward pass in recordings of traceprof."""


def _longest_name(found: list[Table]) -> list[Note]:
    """Return a note on the name with the most time in ``found``; an empty list if there is none."""
    sums = _sum_by(found, "name")
    if sums.empty:
        return []
    top = sums.row(int(sums["ns"].argmax()))
    if top["name"] == _BACKWARD_PASS:
        what = "backward pass" if top["n"] == 1 else "backward passes"
        return [Note.of(f"{{n:count}} {what} recorded", n=top["n"])]
    return [Note.of("{n:count} range(s) named {name}", n=top["n"], name=top["name"])]


def _backward_of(ranks: Ranks, kernels: Table) -> list[Note]:
    """Return the evidence of backward passes."""
    notes = _longest_name(ranks.each(_names_of, "backward", _BACKWARD))
    count = sum(ranks.each(_n_autograd))
    if count:
        notes.append(Note.of("{n:count} autograd backward operator(s)", n=count))
    backward_kernels = _named(kernels, _BACKWARD)
    is_long_enough = (
        backward_kernels["total_ns"].sum() >= _MIN_BACKWARD_RATIO * kernels["total_ns"].sum()
    )
    if backward_kernels["count"].sum() > 1 and is_long_enough:
        notes.append(
            Note.of(
                "{n:count} backward kernel(s), such as {name}",
                n=int(backward_kernels["count"].sum()),
                name=_longest_of(backward_kernels),
            )
        )
    return notes


def _optimizer_of(ranks: Ranks, kernels: Table) -> list[Note]:
    # Names of optimizer steps are stronger evidence than "zero_grad", even if that takes longer.
    """Return the evidence of optimizer steps."""
    steps, any_named = (
        ranks.each(_names_of, "optimizer", _OPTIMIZER, is_named=is_named)
        for is_named in (True, False)
    )
    notes = _longest_name(steps) or _longest_name(any_named)
    optimizer_kernels = kernels.take(kernels["activity"] == Activity.OPTIMIZER.value)
    if len(optimizer_kernels):
        notes.append(
            Note.of("{n:count} optimizer kernel(s)", n=int(optimizer_kernels["count"].sum()))
        )
    return notes


def _inference_of(ranks: Ranks, kernels: Table) -> list[Note]:
    """Return the evidence of inference: kernels and ranges of decoders."""
    decoder_kernels = _named(kernels, _DECODER_NAMES)
    notes = []
    if len(decoder_kernels):
        notes.append(Note.of("decoder kernels, such as {name}", name=_longest_of(decoder_kernels)))
    ranges = ranks.each(_ranges_of, "eval", _DECODER_NAMES)
    if any(map(len, ranges)):
        notes.append(
            Note.of(
                "inference ranges, such as {name}",
                name=next(_range_name(found["name"][0]) for found in ranges if len(found)),
            )
        )
    return notes


def _signs_of_training(ranks: Ranks) -> list[Note]:
    """Return a note on a name that indicates training although no backward pass was recorded."""
    found = ranks.each(_names_of_training)
    # Prefer names of ranges and operators of any rank to names of kernels.
    names = [*(rank_names[:-1] for rank_names in found), *(rank_names[-1:] for rank_names in found)]
    known = next((name for rank_names in names for name in rank_names if name), "")
    if not known:
        return []
    name = _kernel_name(known) if "(" in known else _range_name(known)
    return [Note.of("a training forward pass ({name}), but no recorded backward pass", name=name)]


def _names_of_training(part: Trace) -> tuple[str, ...]:
    """Return one name that indicates training from ranges, operators, and kernels; "" for none."""
    found = []
    for table in (part.ranges, part.host_ops, part.kernels):
        names = table["name"].used().texts
        matched = names[are_matched(names, _TRAINING_NAMES) & ~are_matched(names, _BACKWARD)]
        found.append(matched[0] if len(matched) else "")
    return tuple(found)


def _only_forward(ranks: Ranks) -> list[Note]:
    """Return the number of forward passes, if nearly all kernel time was launched in them."""
    inside, whole = (sum(column) for column in zip(*ranks.each(_time_in_forward), strict=True))
    if not whole or inside < _MIN_FORWARD_RATIO * whole:
        return []
    return [
        Note.of(
            "{share:ratio} of kernel time is launched in {n:count} forward or evaluation range(s)",
            n=sum(ranks.each(_n_forward)),
            share=inside / whole,
        )
    ]


def _time_in_forward(part: Trace) -> tuple[int, int]:
    """Return the kernel time launched in forward passes, and the total kernel time."""
    length = lengths_of(part.kernels)
    is_forward = is_in(phases_of_work(part, "kernels"), _FORWARD)
    return int(length[is_forward].sum()), int(length.sum())


def _n_autograd(part: Trace) -> int:
    return int(autograd_rows(part.host_ops["name"]).sum())


def _n_forward(part: Trace) -> int:
    return int(is_in(phases_of_all_ranges(part), _FORWARD).sum())


def _n_loaded(part: Trace) -> int:
    return int((part.copies["direction"] == "h2d").sum())


def _n_host_ops(part: Trace) -> int:
    return len(part.host_ops)


def _without_kernels(ranks: Ranks) -> Workload:
    """Return the workload of a run without kernels."""
    loaded = sum(ranks.each(_n_loaded))
    if loaded:
        return Workload(
            LOADING, (Note.of("{n:count} cop(y|ies) to a GPU and no kernel", n=loaded),)
        )
    training = _signs_of_training(ranks)
    forward = sum(ranks.each(_n_forward))
    if training or not forward or not any(ranks.each(_n_host_ops)):
        return Workload(UNKNOWN, tuple(training))
    note = Note.of("{n:count} forward or evaluation range(s) and no backward range", n=forward)
    return Workload(INFERENCE, (note,))


class Vendor(StrEnum):
    """Vendor of the devices."""

    NVIDIA = "NVIDIA"
    AMD = "AMD"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Software:
    """Software of a run: whether Python and PyTorch were seen, vendor of the devices, recorder.

    ``is_compiled``: a part of the program runs in ``torch.compile``. ``is_vllm``: vLLM runs the
    model, and captures CUDA graphs itself. False means that no sign was seen.
    """

    has_python: bool
    has_pytorch: bool
    vendor: Vendor
    recorder: RecordedBy
    is_compiled: bool = False
    is_vllm: bool = False


_PYTHON: Final = re.compile(r"(^|[/\\ ])(python|pytest|ipython|jupyter)[\d.]*(\.exe)?( |$)", re.I)
_PYTORCH_KERNEL: Final = re.compile(r"\bat::|at_cuda|c10::|\bat\d+native|N2at6native")
_PYTORCH_RANGE: Final = re.compile(r"^(aten::|autograd::|torch::|ProfilerStep#|Optimizer\.)")
_COMPILED: Final = re.compile(r"\btriton_[a-z]{2,6}_fused|^Torch-Compiled Region|CompiledFxGraph")
_VLLM: Final = re.compile(r"^vllm::\w+$")
"""Operators of vLLM; other programs use single kernels of it."""
_AMD: Final = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI[23]\d\d|gfx\d", re.IGNORECASE)
_NVIDIA: Final = re.compile(
    r"NVIDIA|GeForce|Quadro|Tesla|TITAN|\b(RTX|GTX|[AHBLVPTK]\d{1,3}|GH200|GB[23]00)\b", re.I
)


@fact
def software_of(ranks: Ranks) -> Software:
    """Return the software that ran in the recording."""
    parts = list(ranks)
    recorder = ranks.info.recorded_by or parts[0].info.recorded_by
    has_pytorch = recorder is RecordedBy.TORCH or any(ranks.each(_has_pytorch))
    names = (name for part in parts for name in part.processes["name"])
    return Software(
        has_pytorch or recorder is RecordedBy.JAX or any(map(_PYTHON.search, names)),
        has_pytorch,
        _vendor_of(parts),
        recorder,
        any(ranks.each(_has_names, _COMPILED)),
        any(ranks.each(_has_names, _VLLM)),
    )


def _has_pytorch(part: Trace) -> bool:
    """Return whether names of kernels, ranges, or operators indicate PyTorch."""
    return (
        _any_named(part.kernels["name"], _PYTORCH_KERNEL)
        or _any_named(part.ranges["name"], _PYTORCH_RANGE)
        or _any_named(part.host_ops["name"], _PYTORCH_RANGE)
        or bool((part.ranges["domain"] == TRACEPROF_DOMAIN).any())
    )


def _has_names(part: Trace, pattern: re.Pattern[str]) -> bool:
    """Return whether names of kernels, ranges, or operators match a pattern."""
    tables = part.kernels, part.ranges, part.host_ops
    return any(_any_named(table["name"], pattern) for table in tables)


def _any_named(names: Names, pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.search, names.texts))


def _vendor_of(parts: Iterable[Trace]) -> Vendor:
    """Return the vendor of the used devices, else of the API calls or formats."""
    devices = [row["name"] for part in parts for row in part.devices.rows() if row["used"] == 1]
    if any(map(_AMD.search, devices)):
        return Vendor.AMD
    if any(map(_NVIDIA.search, devices)):
        return Vendor.NVIDIA
    calls = [name for part in parts for name in part.api_calls["name"].texts]
    if any(name.startswith("hip") for name in calls):
        return Vendor.AMD
    is_cuda = any(name.startswith("cu") for name in calls)
    if is_cuda or any(part.info.format in {"nsys", "nvprof"} for part in parts):
        return Vendor.NVIDIA
    return Vendor.OTHER
