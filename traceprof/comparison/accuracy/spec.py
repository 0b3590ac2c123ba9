"""What is told of runs on the way to a target."""

from __future__ import annotations

from typing import Final

from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same

__all__ = ["ABOUT", "ACCURACY", "CURVE", "CURVE_NAME", "SPEEDUP"]

CURVE_NAME: Final = "curve"

_RUN: Final = key("run", "the run")
_GROUP: Final = key("group", "the run, or the labels of runs that are repeats")

ACCURACY: Final = ResultSpec(
    (
        TableSpec(
            "reached",
            "a row for each run: when it first reached the target",
            (
                _RUN,
                derived("devices_count", Unit.COUNT, "GPUs, else ranks"),
                derived("is_reached", Unit.FLAG, "whether it reached the target"),
                derived("time_ns", Unit.NS, "from the start of training to that evaluation"),
                derived("epochs", Unit.NUMBER, "after how many epochs"),
                derived("steps_count", Unit.COUNT, "after how many steps"),
                derived("samples_count", Unit.COUNT, "after how many samples"),
                derived("value", Unit.NUMBER, "the value that reached it"),
                derived("best", Unit.NUMBER, "the best value of all"),
                derived("time_to_train_ns", Unit.NS, "what the benchmark's own clock says"),
                derived("evaluations_count", Unit.COUNT, "how many values there are"),
            ),
        ),
        TableSpec(
            "spread",
            "runs that agree in labels, devices and batch are repeats: median, least and most",
            (
                _GROUP,
                derived("runs_count", Unit.COUNT, "how many runs"),
                derived("reached_count", Unit.COUNT, "how many of them reached the target"),
                derived("median_ns", Unit.NS, "the time of the median run that reached it"),
                derived("least_ns", Unit.NS, "that of the fastest"),
                derived("most_ns", Unit.NS, "that of the slowest"),
                derived("median_epochs", Unit.NUMBER, "the median of their epochs"),
                derived("least_epochs", Unit.NUMBER, "the fewest"),
                derived("most_epochs", Unit.NUMBER, "the most"),
            ),
        ),
    )
)
SPEEDUP: Final = ResultSpec(
    (
        TableSpec(
            "speedup",
            "against the first row: in time to the target, and in throughput",
            (
                _GROUP,
                derived("devices_count", Unit.COUNT, "GPUs, else ranks"),
                derived("time_speedup", Unit.FACTOR, "how many times as fast as the first"),
                derived("time_efficiency_ratio", Unit.RATIO, "that by how many times the devices"),
                derived("rate_speedup", Unit.FACTOR, "how many times the throughput of the first"),
                derived("rate_efficiency_ratio", Unit.RATIO, "that by how many times the devices"),
                derived("work_factor", Unit.FACTOR, "how many times the samples it needed"),
                derived(
                    "remark",
                    Unit.TEXT,
                    "what is printed and its own times rule out",
                ),
                derived("samples_per_s", Unit.PER_S, "throughput, by the run's own times"),
                derived("printed_per_s", Unit.PER_S, "the throughput that the source prints"),
                derived("time_ns", Unit.NS, "the time to the target"),
                derived("global_batch_count", Unit.COUNT, "samples of a step on all devices"),
            ),
        ),
    )
)
CURVE: Final = ResultSpec(
    (
        TableSpec(
            "curve",
            "the metric over time",
            (
                _RUN,
                key("life", "which start of the program", Unit.NUMBER),
                derived("time_ns", Unit.NS, "after the start of training"),
                derived("epoch", Unit.NUMBER, "after how many epochs"),
                derived("step", Unit.NUMBER, "after how many steps"),
                derived("samples_count", Unit.COUNT, "after how many samples"),
                derived("value", Unit.NUMBER, "the value"),
            ),
        ),
    ),
    scalars=(
        same("metric", Unit.TEXT, "the metric"),
        same("target", Unit.NUMBER, "the value to reach"),
    ),
)
ABOUT: Final = {
    "accuracy": "time, epochs, steps and samples to the target",
    "speedup": "what more devices gave: time to the target against throughput",
    CURVE_NAME: "the way there",
}
