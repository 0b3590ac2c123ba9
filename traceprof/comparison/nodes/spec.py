"""What is told of nodes beside one another."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same
from traceprof.names.ranges import PHASES

__all__ = ["LAYERS", "LAYERS_SPEC", "MEAN", "NAME", "SPEC"]

NAME: Final = "nodes"
LAYERS: Final = "node-layers"
MEAN: Final = "mean"

_RUN: Final = key("run", "the run")
_RANK: Final = key("rank", "the rank; mean: of independent ranks, which do not wait for others")
_MODE: Final = derived("mode", Unit.TEXT, "forward, or forward+backward")
_RANKS: Final = derived("ranks", Unit.TEXT, "one, synchronised, or independent")
_PHASES: Final = tuple(
    derived(f"{phase}_ns", Unit.NS, f"of it the host was in {phase}") for phase in PHASES
)

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            NAME,
            "a round of each rank: means over the rounds without warm-up",
            (
                _RUN,
                _RANK,
                _MODE,
                _RANKS,
                derived("round_ns", Unit.NS, "a round, from its start to that of the next"),
                *_PHASES,
                derived("other_ns", Unit.NS, "of it in no phase"),
                derived("samples_per_s", Unit.PER_S, "samples over time"),
                derived("syncs_per_s", Unit.PER_S, "collectives per second"),
                derived("sync_bytes", Unit.BYTES, "what a rank hands in at each"),
                derived("sync_ns", Unit.NS, "how long each takes, waiting for others included"),
                derived("sync_bytes_per_s", Unit.BYTES_PER_S, "bytes over that time"),
                derived("waited_ns", Unit.NS, "waiting in collectives for the last rank to come"),
                derived("rounds_count", Unit.COUNT, "how many rounds these are means of"),
                derived("warmup_count", Unit.COUNT, "leading rounds that are left out"),
                same("node", Unit.TEXT, "the machine"),
            ),
        ),
    )
)

LAYERS_SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "layers",
            "a layer in a round: means over the rounds without warm-up",
            (
                key("layer", "the path of the module, or what stands for it"),
                _RUN,
                _RANK,
                derived("type", Unit.TEXT, "the class of the module"),
                _MODE,
                _RANKS,
                derived("forward_ns", Unit.NS, "its forward pass: on the device, else the host"),
                derived("backward_ns", Unit.NS, "its backward pass, where that is told"),
                derived("both_ns", Unit.NS, "both"),
            ),
        ),
    ),
    scalars=(same("clock", Unit.TEXT, "whose time it is: device or host"),),
)
