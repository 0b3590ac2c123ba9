"""Rule on activation checkpointing, which recomputes the forward pass in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.findings.amounts import AUTOGRAD
from traceprof.findings.claims import ClaimKind, Kind, starts_within, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import summed, times_of
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.recomputed import recomputed_rows
from traceprof.measures.rows import lengths_of, unions_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.03
_ACTION: Final = (
    "If GPU memory allows it, checkpoint fewer layers (Hugging Face Trainer: "
    "`gradient_checkpointing=False`, Megatron-LM: `--recompute-granularity selective`). Otherwise "
    "keep the outputs of matrix products: `checkpoint(block, x, context_fn=f)` with "
    "`f = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])`."
)


@rule(
    "activation checkpointing",
    "activation checkpointing that recomputes the forward pass",
    "kernels",
    "api_calls",
    about=AUTOGRAD,
    show="kernels",
)
def recomputation(context: Context) -> Iterator[Finding]:
    """Find kernels that recompute the forward pass in the backward pass."""
    kernels = context.rows(_recomputed_kernels, context.typical)
    times = union_by_device([unions_by(kernels, "device")])
    claim = context.unclaimed(times, ClaimKind.COMPUTE)
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    names = times_of(summed(kernels, lengths_of(kernels), "name"), "ns")
    yield Finding(
        title=Note.of(
            "Activation checkpointing recomputes the forward pass: {share:ratio} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(len(kernels), "recomputed kernel(s)"),
            *context.timed_by_kernel(names),
        ),
        action=_ACTION,
        caveat="Activations that are not recomputed need GPU memory. Compare "
        "`torch.cuda.max_memory_allocated()` with the memory of the GPU first.",
        window=context.longest_row(kernels),
        ncu=context.ncu(names),
    )


def _recomputed_kernels(part: Trace, typical: Intervals) -> Table:
    """Return the kernels of a trace that recompute the forward pass in the ``typical`` time."""
    is_recomputed = recomputed_rows(part, "kernels") & starts_within(part.kernels, typical)
    return part.kernels.select("start_ns", "end_ns", "device", "name").take(is_recomputed)
