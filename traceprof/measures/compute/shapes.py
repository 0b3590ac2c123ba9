"""FLOP/s of matrix products, convolutions, and attention by the sizes of their inputs."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.compute.counted import counted_kernels
from traceprof.measures.compute.rates import (
    USES,
    kernels_of_operators,
    rates_analysis,
    rates_by,
    rates_spec,
    texts_of_operators,
)
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.rows import Floats, ratio_of
from traceprof.model.grouping import Groups, groups_of, numbered
from traceprof.model.results import Result
from traceprof.model.table import Names
from traceprof.model.trace import Trace

SHAPES_SPEC: Final = rates_spec(
    "flops_shapes",
    "operator, sizes of its inputs, and precision, sorted by time; operators without FLOPs are "
    "omitted",
    """
    key operator: outermost operator with known FLOPs
    key shape: sizes. Matrix product: M×K times K×N. Convolution: batch N, channels C, image size,
        number and size of filters, stride. Attention: batch B, heads H (queries/keys), lengths S
        (queries/keys), width D of a head
    key precision: precision of the multiplications
    same kernel: kernel that takes most of the time of these operators
    total calls_count: number of calls of the operator that launched kernels
    mean(total_ns) waves [number]: number of waves of the kernels (blocks of a launch divided by
        the blocks that fit on the GPU at the same time)
    mean(total_ns) wave_ratio: wave efficiency: waves divided by waves rounded up; below 1, part of
        the GPU is idle during the last wave
    """,
)


def measure_shapes(trace: Trace) -> Result:
    """Return FLOPs, bytes, and rates by operator and sizes of its inputs."""
    trace.require("operator_inputs")
    found, kernels = counted_kernels(trace), kernels_of_operators(trace)
    keys = {
        "operator": texts_of_operators(trace, "name"),
        "shape": texts_of_operators(trace, "shape"),
        "precision": found["precision"],
    }
    groups = groups_of(*keys.values())
    launches = launch_shapes(trace)
    of_kernel = launches.of_kernel[trace.rows_in_whole("kernels")].wide()
    waves = launches.table["waves"][of_kernel].astype(np.float64)
    ns = kernels["total_ns"].astype(np.float64)
    first_of_call = numbered(groups.number, found["operator"])[1]
    result = rates_by(trace, "flops-shapes", SHAPES_SPEC, keys, kernels)
    table = result.table.assign(
        kernel=_main_names(groups, trace.kernels["name"], ns),
        calls_count=np.bincount(groups.number[first_of_call], minlength=len(groups.keys)),
        waves=_means(groups, waves, ns),
        wave_ratio=_means(groups, ratio_of(waves, np.ceil(waves)), ns),
    )
    return result.with_table(table.take(table["known_flop_ns"] > 0))


def _means(groups: Groups, values: Floats, weights: Floats) -> Floats:
    """Return the weighted mean of the known ``values`` in each group; NaN if none is known."""
    known = np.where(np.isnan(values), 0.0, weights)
    return ratio_of(groups.sums(known * np.nan_to_num(values)), groups.sums(known))


def _main_names(groups: Groups, names: Names, ns: Floats) -> Names:
    """Return the name with the largest total ``ns`` in each group."""
    place, first = numbered(groups.number, names.codes)
    by_time = np.argsort(np.bincount(place, ns, len(first)), kind="stable")
    main = np.zeros(len(groups.keys), np.int64)
    main[groups.number[first[by_time]]] = first[by_time]  # the longest is written last
    main_names: Names = names[main]
    return main_names


FLOPS_SHAPES: Final = rates_analysis(
    "flops-shapes",
    SHAPES_SPEC,
    "operator",
    "shape",
    "precision",
    uses=(*USES, "kernel_shapes"),
    of_rank=measure_shapes,
)
