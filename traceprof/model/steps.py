"""The steps of a trace: where each begins and ends. `traceprof.facts.steps` finds them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.values import dataclass

__all__ = ["OWN_DOMAIN", "STEP_COLUMNS", "Steps", "empty_steps"]

OWN_DOMAIN: Final = "traceprof"
"""The NVTX domain of the ranges that `traceprof record` injects."""

STEP_COLUMNS: Final = ("process", "step", "start_ns", "end_ns", "declared_warmup")
"""What is read from ranges, or inferred from kernels."""


def empty_steps() -> pd.DataFrame:
    """Return a table of no steps."""
    columns = {name: np.empty(0, np.int64) for name in STEP_COLUMNS}
    return pd.DataFrame(columns | {"declared_warmup": np.empty(0, np.bool_)})


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    ``table`` has one row per process and step, sorted by process and start:

    - process, step (its number);
    - start_ns, end_ns: its borders on the host;
    - next_ns: where the next step of the process starts on the host, of the last one its own end:
      from start to next is its period;
    - launched_ns: when it had launched its last work (its end, where that is not known);
    - device_start_ns, device_end_ns: the step itself. From the end of the last work that the step
      before launched to the end of the last work that it launched; of the first step from its
      first work. Where its launches are not known, its period;
    - on_device: whether these are known from launches, or are times of kernels;
    - declared_warmup (whether its name says so), is_warmup (as found in, or said of, the whole).

    ``source`` says what they were read from ("" where there are none); ``confidence_ratio`` is 1
    unless they were inferred, then the share of the kernel sequence that repeats. ``is_pattern``:
    they are no steps, but turns of a pattern that repeats, and nobody knows what it is.
    """

    table: pd.DataFrame
    source: str
    confidence_ratio: float = 1.0
    is_pattern: bool = False

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_inferred(self) -> bool:
        """Whether nobody named the steps: they were seen in the sequence of kernels."""
        return self.confidence_ratio < 1

    @property
    def durations_ns(self) -> npt.NDArray[np.int64]:
        """The length of each step: on the devices where that is known, else its period."""
        return (self.table["device_end_ns"] - self.table["device_start_ns"]).to_numpy(np.int64)

    @property
    def periods_ns(self) -> npt.NDArray[np.int64]:
        """From the start of each step to that of the next one, on the host."""
        return (self.table["next_ns"] - self.table["start_ns"]).to_numpy(np.int64)

    def warmup(self) -> npt.NDArray[np.bool_]:
        """Return which rows are warm-up: the same number of leading steps in every process."""
        return self.table["is_warmup"].to_numpy(bool)
