"""What a comparison of runs of several sizes holds."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same

__all__ = ["NAME", "SPEC", "SUMMARY"]

NAME: Final = "scaling"
SUMMARY: Final = "throughput by number of devices, against ideal"

_GROUP: Final = key("group", "the labels that runs of one group share, as far as groups differ")
_DEVICES: Final = key("devices_count", "GPUs; of runs without any, ranks", Unit.COUNT)
_NODES: Final = key("nodes_count", "machines", Unit.COUNT)
_BATCH: Final = key("global_batch_count", "samples of a step on all devices", Unit.COUNT)

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "scaling",
            "a row for each group, size and global batch; runs that agree in all of them are "
            "repeats, and averaged",
            (
                _GROUP,
                _DEVICES,
                _NODES,
                derived("samples_per_s", Unit.PER_S, "throughput of all devices together"),
                derived("tokens_per_s", Unit.PER_S, "the same in tokens"),
                derived("steps_per_s", Unit.PER_S, "the same in steps, where samples are unknown"),
                derived("speedup", Unit.FACTOR, "throughput over that of the base"),
                derived(
                    "efficiency_ratio",
                    Unit.RATIO,
                    "of ideal: throughput per device over that of the base",
                ),
                derived("lost_to", Unit.TEXT, "where most of the rest was lost, in % of ideal"),
                derived("scaling", Unit.TEXT, "against the base: weak, strong, mixed, or unknown"),
                derived("printed_ratio", Unit.RATIO, "the efficiency that the source prints"),
                derived("printed_is", Unit.TEXT, "how that follows from the rates"),
                derived("low_ratio", Unit.RATIO, "the lower end of the 95 % interval of it"),
                derived("high_ratio", Unit.RATIO, "the upper end"),
                _BATCH,
                derived("ranks", Unit.TEXT, "one, synchronised, or independent (averaged)"),
                derived("base_count", Unit.COUNT, "the size of the base"),
                derived("ideal_per_s", Unit.PER_S, "what ideal scaling from the base would give"),
                derived("low_per_s", Unit.PER_S, "the lower end of the throughput's interval"),
                derived("high_per_s", Unit.PER_S, "the upper end"),
                derived(
                    "karp_flatt_ratio",
                    Unit.RATIO,
                    "the serial share that explains the speed-up; growing with the size: overhead",
                ),
                derived("time_to_train_ns", Unit.NS, "the time to the target"),
                derived("time_speedup", Unit.FACTOR, "that of the base over it"),
                derived("step_ns", Unit.NS, "the time of a step"),
                derived("runs_count", Unit.COUNT, "how many runs"),
            ),
        ),
        TableSpec(
            "losses",
            "where the lost efficiency went, per device and step; the rows of a size add up",
            (
                _GROUP,
                _DEVICES,
                _NODES,
                _BATCH,
                key("loss", "what took longer than in the base"),
                derived("lost_ratio", Unit.RATIO, "of ideal; all together 1 - efficiency_ratio"),
                derived("lost_ns", Unit.NS, "own_ns - base_ns"),
                derived("own_ns", Unit.NS, "its time per device and step; all are the step's"),
                derived("base_ns", Unit.NS, "in the base, for as many samples per device"),
            ),
        ),
        TableSpec(
            "laws",
            "the serial share of each group, by Amdahl's law",
            (
                _GROUP,
                derived("serial_ratio", Unit.RATIO, "the share that fits all sizes best"),
                derived("limit_speedup", Unit.FACTOR, "the speed-up that it allows at most"),
                derived("is_exceeded", Unit.FLAG, "whether more was measured: it does not fit"),
                derived("karp_flatt_first_ratio", Unit.RATIO, "of the smallest size beyond base"),
                derived("karp_flatt_last_ratio", Unit.RATIO, "of the largest size"),
                derived("sizes_count", Unit.COUNT, "how many sizes beyond the base"),
            ),
        ),
        TableSpec(
            "groups",
            "the labels of each group",
            (
                _GROUP,
                key("label", "the name of the label"),
                same("value", Unit.TEXT, "its value"),
            ),
        ),
        TableSpec(
            "runs",
            "the runs one by one",
            (
                key("run", "its name"),
                same("group", Unit.TEXT, "the group"),
                same("devices_count", Unit.COUNT, "GPUs, or ranks"),
                same("nodes_count", Unit.COUNT, "machines"),
                same("samples_per_s", Unit.PER_S, "throughput"),
                same("tokens_per_s", Unit.PER_S, "the same in tokens"),
                same("steps_per_s", Unit.PER_S, "the same in steps"),
                same("ranks", Unit.TEXT, "one, synchronised, or independent"),
                same("origin", Unit.TEXT, "what it was read from"),
            ),
        ),
    ),
    scalars=(
        same("by", Unit.TEXT, "what the size is: gpus or nodes"),
        same("devices", Unit.TEXT, "what devices are: GPUs, or ranks where there are none"),
        same("base", Unit.TEXT, "the base that was asked for; empty: the smallest of each group"),
    ),
)
