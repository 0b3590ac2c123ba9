"""Pairs of generated runs of which everything is known: how they differ, and how noisy they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.builders import TraceBuilder
from traceprof.comparison.summary.summarize import summarize
from traceprof.model.ranks import Ranks
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table
from traceprof.model.trace import Trace, TraceInfo
from traceprof.session.run import run_of

__all__ = ["KERNELS", "MS", "US", "Program", "noise_of", "of_steps"]

US: Final = 1_000
MS: Final = 1_000_000

KERNELS: Final[Mapping[str, int]] = {
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn": 40 * MS,
    "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, "
    "at::detail::Array<char*, 3>>(int, at::native::MulFunctor<float>, "
    "at::detail::Array<char*, 3>)": 20 * MS,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float>(int)": 10 * MS,
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)": 26 * MS,
}
"""The kernels of a step of 100 ms, in their order; the device is idle for the other 4 ms."""


def noise_of(kind: str, n: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return ``n`` numbers about 0: independent, each half of the one before, or heavy-tailed."""
    if kind == "heavy":
        return random.standard_t(2, size=n)
    if kind == "independent":
        return random.normal(size=n)
    burn = 50
    drawn, found = random.normal(size=n + burn), np.zeros(n + burn)
    for i in range(1, n + burn):
        found[i] = 0.5 * found[i - 1] + drawn[i]
    return found[burn:]


@dataclass
class Program:
    """A training loop: each step launches its kernels, which run one after the other.

    ``kernels`` gives the length of each, ``idle_ns`` what the device waits for the next step.
    ``noise_ratio`` is how far steps deviate, ``noise`` how (see `noise_of`).
    """

    kernels: Mapping[str, int] = field(default_factory=lambda: dict(KERNELS))
    idle_ns: int = 4 * MS
    n_steps: int = 41
    batch: int = 32
    noise_ratio: float = 0.0
    noise: str = "neighbors"
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    format: str = "nsys"

    def summary(self, name: str) -> Summary:
        """Return what is kept of the run."""
        return summarize(run_of(Ranks.of(self.trace(name))), name=name)

    def trace(self, name: str = "built") -> Trace:
        """Return the recording of the run."""
        builder = TraceBuilder().device(0, "NVIDIA H100").process(1, rank=0, world_size=1)
        for key, value in self.settings.items():
            builder.setting(key, value)
        random = np.random.default_rng(self.seed)
        factors = np.exp(self.noise_ratio * noise_of(self.noise, self.n_steps, random))
        at = 0
        for step, factor in enumerate(factors.tolist()):
            start = at
            builder.batch(start, self.batch)
            at += round(self.idle_ns * factor)
            for place, (kernel, length) in enumerate(self.kernels.items()):
                launched = start + (place + 1) * 10 * US
                end = at + round(length * factor)
                builder.kernel(kernel, at, end, launched_ns=(launched, launched + 5 * US))
                at = end
            builder.step(start, at, step)
        info = TraceInfo(path=f"{name}.sqlite", format=self.format, profiler=self.format)
        return builder.build(info=info)


def of_steps(name: str, periods_ns: npt.NDArray[np.float64], batch: int = 0) -> Summary:
    """Return a run of which the steps alone are known; the last one, which is cut, is left out."""
    lengths = np.append(periods_ns, 1.0).astype(np.int64)
    steps = Table(
        {
            "attempt": 0,
            "rank": 0,
            "step": np.arange(len(lengths)),
            "steps_count": 1,
            "at_ns": np.append(0, np.cumsum(lengths)[:-1]),
            "period_ns": lengths,
            "between_ns": 0,
            "is_warmup": False,
        }
    )
    if batch:
        steps = steps.assign(samples_count=batch)
    table = SUMMARY.table("steps").of_rows(steps)
    return Summary(name, "built", tables={"steps": table}, steps_count=len(lengths) - 1)
