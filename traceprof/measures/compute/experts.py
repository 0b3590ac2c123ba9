"""Tokens, FLOPs, and time of the experts of a model, and their balance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.measures.compute.counted import counted_kernels, counted_operators
from traceprof.measures.compute.operators import GROUPED_PRODUCTS
from traceprof.measures.rows import ratio_of
from traceprof.model.grouping import grouped_by
from traceprof.model.results import Note, Result
from traceprof.model.table import Table
from traceprof.model.trace import Trace


def experts_of_products(trace: Trace) -> Table:
    """Return tokens, experts, and time of the products of tokens sorted by expert, by process."""
    operators, found = counted_operators(trace), counted_kernels(trace)
    ns = np.bincount(found["operator"] + 1, found["length_ns"], len(operators) + 1)[1:]
    products = operators.assign(total_ns=ns.astype(np.int64))
    products = products.take(products["name"].isin(GROUPED_PRODUCTS) & (ns > 0))
    # Only a 2-D input with 3-D weights gives the numbers of tokens and of experts.
    shapes = (json.loads(text)[:2] for text in products["dims"])
    counts = [(a[0], b[0]) if len(a) == 2 and len(b) == 3 else (0, 0) for a, b in shapes]
    sizes = np.array(counts, np.int64).reshape(-1, 2)
    products = products.assign(tokens_count=sizes[:, 0], experts_count=sizes[:, 1]).take(
        sizes[:, 1] > 0
    )
    table, groups = grouped_by(products, "process")
    n_tokens, n_experts = products["tokens_count"], products["experts_count"]
    return table.assign(
        count=groups.counts,
        tokens_count=groups.sums(n_tokens),
        experts_count=groups.reduced(np.maximum, n_experts),
        expert_tokens=ratio_of(groups.sums(n_tokens), groups.sums(n_experts)),
        total_ns=groups.sums(products["total_ns"]),
    )


_EXPERT: Final = re.compile(r"(.*\bexperts)\.(\d+)")


def note_uneven_modules(table: Table) -> Iterator[Note]:
    """Yield the largest imbalance of FLOPs between the experts (one module each) of a layer."""
    flops: dict[str, dict[int, float]] = {}
    for row in table.take(table["known_flop_ns"] > 0).rows():
        if match := _EXPERT.fullmatch(str(row["layer"])):
            flops.setdefault(match[1], {})[int(match[2])] = row["flop"]
    imbalances = [
        (max(flop_by_expert.values()) * len(flop_by_expert) / sum(flop_by_expert.values()), name)
        for name, flop_by_expert in flops.items()
    ]
    for times, layer in sorted(imbalances)[-1:]:
        yield Note.of(
            "{layer}: one of {n:count} experts has {times:number} times the mean FLOPs (tokens).",
            layer=layer,
            n=len(flops[layer]),
            times=times,
        )


def with_expert_balance(result: Result) -> Result:
    """Return the result with the tokens per expert, and a note on their imbalance across ranks."""
    table = result.tables["experts"].in_order("-tokens_count", "process")
    tokens, ns = table["tokens_count"], table["total_ns"]
    result = result.with_table(table, "experts")
    if len(table) < 2 or len({*table["count"].tolist()}) > 1:
        return result
    note = Note.of(
        "The experts of the busiest of {n:count} ranks get {times:number} times the mean number of "
        "tokens. Their matrix products take {more:ns} longer than the mean.",
        n=len(table),
        times=tokens.max() / tokens.mean(),
        more=ns[0] - ns.mean(),
    )
    return result.with_notes(note)
