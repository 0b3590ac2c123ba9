"""Collectives of which only PyTorch's annotation is known: the operation, without its size."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.collective_names import collective_op
from traceprof.formats.launch_links import tied_by_launch
from traceprof.formats.sqlite.database import categorical
from traceprof.model.tables import empty_table, make_table

__all__ = ["annotated_collectives"]

_ANNOTATION: Final = re.compile(r"(nccl|gloo|ucc|mpi|xccl|hccl):(\w+)")


def annotated_collectives(
    annotations: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return the ranges or operators called ``nccl:all_reduce`` and the like.

    They are tied to the kernels that they launch. `torch.autograd.profiler.emit_nvtx` writes
    them with more behind the name.
    """
    names = [_ANNOTATION.match(str(name)) for name in annotations["name"].cat.categories]
    ops = [collective_op(found.group(2)) if found else "" for found in names]
    backends = [found.group(1) if found else "" for found in names]
    chosen = np.array([bool(op) for op in ops], np.bool_)[annotations["name"].cat.codes]
    rows = annotations[chosen]
    if rows.empty:
        return empty_table("collectives")
    codes = rows["name"].cat.codes.to_numpy()
    table = make_table(
        "collectives",
        {
            **{name: rows[name].to_numpy() for name in ("start_ns", "end_ns", "process", "thread")},
            "op": categorical(codes, ops),
            "backend": categorical(codes, backends),
        },
    )
    return tied_by_launch(table, kernels, api_calls)
