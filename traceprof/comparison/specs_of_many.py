"""What comparisons of several runs hold: scaling, accuracy, jobs whose ranks come and go, nodes."""

from __future__ import annotations

from typing import Final

from traceprof.comparison.specs import spec_of
from traceprof.model.results import ResultSpec, TableSpec, Unit, derived, key, same
from traceprof.names.ranges import PHASES

_RUN: Final = key("run", "the run")

SCALING: Final = "scaling"
SCALING_SUMMARY: Final = "throughput by number of devices, against ideal"

_GROUP: Final = key("group", "the labels that runs of one group share, as far as groups differ")
_DEVICES: Final = key("devices_count", "GPUs; of runs without any, ranks", Unit.COUNT)
_NODES: Final = key("nodes_count", "machines", Unit.COUNT)
_BATCH: Final = key("global_batch_count", "samples of a step on all devices", Unit.COUNT)
_SIZES: Final = (
    _GROUP,
    _DEVICES,
    _NODES,
    derived("samples_per_s", Unit.PER_S, "throughput of all devices together"),
    derived("tokens_per_s", Unit.PER_S, "the same in tokens"),
    derived("steps_per_s", Unit.PER_S, "the same in steps, where samples are unknown"),
    derived("speedup", Unit.FACTOR, "throughput over that of the base"),
    derived(
        "efficiency_ratio", Unit.RATIO, "of ideal: throughput per device over that of the base"
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
)
_LOSSES: Final = (
    _GROUP,
    _DEVICES,
    _NODES,
    _BATCH,
    key("loss", "what took longer than in the base"),
    derived("lost_ratio", Unit.RATIO, "of ideal; all together 1 - efficiency_ratio"),
    derived("lost_ns", Unit.NS, "own_ns - base_ns"),
    derived("own_ns", Unit.NS, "its time per device and step; all are the step's"),
    derived("base_ns", Unit.NS, "in the base, for as many samples per device"),
)
_LAWS: Final = (
    _GROUP,
    derived("serial_ratio", Unit.RATIO, "the share that fits all sizes best"),
    derived("limit_speedup", Unit.FACTOR, "the speed-up that it allows at most"),
    derived("is_exceeded", Unit.FLAG, "whether more was measured: it does not fit"),
    derived("karp_flatt_first_ratio", Unit.RATIO, "of the smallest size beyond base"),
    derived("karp_flatt_last_ratio", Unit.RATIO, "of the largest size"),
    derived("sizes_count", Unit.COUNT, "how many sizes beyond the base"),
)
_LABELS: Final = (
    _GROUP,
    key("label", "the name of the label"),
    same("value", Unit.TEXT, "its value"),
)
_RUNS: Final = (
    key("run", "its name"),
    same("group", Unit.TEXT, "the group"),
    same("devices_count", Unit.COUNT, "GPUs, or ranks"),
    same("nodes_count", Unit.COUNT, "machines"),
    same("samples_per_s", Unit.PER_S, "throughput"),
    same("tokens_per_s", Unit.PER_S, "the same in tokens"),
    same("steps_per_s", Unit.PER_S, "the same in steps"),
    same("ranks", Unit.TEXT, "one, synchronised, or independent"),
    same("origin", Unit.TEXT, "what it was read from"),
)
SCALING_SPEC: Final = ResultSpec(
    (
        TableSpec(
            "scaling",
            "a row for each group, size and global batch; runs that agree in all of them are "
            "repeats, and averaged",
            _SIZES,
        ),
        TableSpec(
            "losses",
            "where the lost efficiency went, per device and step; the rows of a size add up",
            _LOSSES,
        ),
        TableSpec("laws", "the serial share of each group, by Amdahl's law", _LAWS),
        TableSpec("groups", "the labels of each group", _LABELS),
        TableSpec("runs", "the runs one by one", _RUNS),
    ),
    scalars=(
        same("by", Unit.TEXT, "what the size is: gpus or nodes"),
        same("devices", Unit.TEXT, "what devices are: GPUs, or ranks where there are none"),
        same("base", Unit.TEXT, "the base that was asked for; empty: the smallest of each group"),
    ),
)


CURVE_NAME: Final = "curve"

_REPEATS: Final = key("group", "the run, or the labels of runs that are repeats")
_REACHED: Final = (
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
)
_SPREAD: Final = (
    _REPEATS,
    derived("runs_count", Unit.COUNT, "how many runs"),
    derived("reached_count", Unit.COUNT, "how many of them reached the target"),
    derived("median_ns", Unit.NS, "the time of the median run that reached it"),
    derived("least_ns", Unit.NS, "that of the fastest"),
    derived("most_ns", Unit.NS, "that of the slowest"),
    derived("median_epochs", Unit.NUMBER, "the median of their epochs"),
    derived("least_epochs", Unit.NUMBER, "the fewest"),
    derived("most_epochs", Unit.NUMBER, "the most"),
)
ACCURACY: Final = ResultSpec(
    (
        TableSpec("reached", "a row for each run: when it first reached the target", _REACHED),
        TableSpec(
            "spread",
            "runs that agree in labels, devices and batch are repeats: median, least and most",
            _SPREAD,
        ),
    )
)
SPEEDUP: Final = spec_of(
    "speedup",
    "against the first row: in time to the target, and in throughput",
    _REPEATS,
    derived("devices_count", Unit.COUNT, "GPUs, else ranks"),
    derived("time_speedup", Unit.FACTOR, "how many times as fast as the first"),
    derived("time_efficiency_ratio", Unit.RATIO, "that by how many times the devices"),
    derived("rate_speedup", Unit.FACTOR, "how many times the throughput of the first"),
    derived("rate_efficiency_ratio", Unit.RATIO, "that by how many times the devices"),
    derived("work_factor", Unit.FACTOR, "how many times the samples it needed"),
    derived("remark", Unit.TEXT, "what is printed and its own times rule out"),
    derived("samples_per_s", Unit.PER_S, "throughput, by the run's own times"),
    derived("printed_per_s", Unit.PER_S, "the throughput that the source prints"),
    derived("time_ns", Unit.NS, "the time to the target"),
    derived("global_batch_count", Unit.COUNT, "samples of a step on all devices"),
)
CURVE: Final = spec_of(
    "curve",
    "the metric over time",
    _RUN,
    key("life", "which start of the program", Unit.NUMBER),
    derived("time_ns", Unit.NS, "after the start of training"),
    derived("epoch", Unit.NUMBER, "after how many epochs"),
    derived("step", Unit.NUMBER, "after how many steps"),
    derived("samples_count", Unit.COUNT, "after how many samples"),
    derived("value", Unit.NUMBER, "the value"),
    scalars=(
        same("metric", Unit.TEXT, "the metric"),
        same("target", Unit.NUMBER, "the value to reach"),
    ),
)
ACCURACY_ABOUT: Final = {
    "accuracy": "time, epochs, steps and samples to the target",
    "speedup": "what more devices gave: time to the target against throughput",
    CURVE_NAME: "the way there",
}


TIMELINE_NAME: Final = "job-timeline"
"""What the result is called that the chart is drawn of."""

_JOB: Final = key("run", "the job")

JOB_PARTS: Final = spec_of(
    "parts",
    "what the job's time was, from its first process to its last: adds up to the total",
    key("part", "what"),
    derived("base_ns", Unit.NS, "how long in the base"),
    derived("duration_ns", Unit.NS, "how long"),
    derived("share_ratio", Unit.RATIO, "of the whole job"),
    derived("difference_ns", Unit.NS, "how much longer than in the base"),
)
RESTARTS: Final = spec_of(
    "restarts",
    "each time that training stopped and began again",
    _JOB,
    key("restart", "its number", Unit.NUMBER),
    same("epoch", Unit.NUMBER, "the epoch at which training went on"),
    derived("lost_ns", Unit.NS, "time lost: until training was where it had been"),
    derived("redone_ns", Unit.NS, "of it steps whose work was lost"),
    derived("noticing_ns", Unit.NS, "of it until agents noticed"),
    derived("rendezvous_ns", Unit.NS, "of it until the agents had met"),
    derived("failed_ns", Unit.NS, "of it starts that never trained"),
    derived("initialisation_ns", Unit.NS, "of it initialisation of the workers"),
    derived("loading_ns", Unit.NS, "of it loading checkpoints"),
    derived("setup_ns", Unit.NS, "of it set-up of the program otherwise"),
    derived("unexplained_ns", Unit.NS, "of it nothing explains"),
    derived(
        "beyond_ns",
        Unit.NS,
        "of its epoch, beside the lost time, what a typical one does not take",
    ),
    derived("redone_count", Unit.COUNT, "how many steps were made again"),
    same("life", Unit.NUMBER, "which start of the program went on"),
    same("at_ns", Unit.AT_NS, "up to when work was not lost"),
    same("why", Unit.TEXT, "why, as the agents or the ranks' ends tell"),
    same("ranks_before_count", Unit.COUNT, "ranks before"),
    same("ranks_after_count", Unit.COUNT, "ranks after"),
    scalars=(
        derived("lost_ns", Unit.NS, "time lost at all restarts"),
        derived("explained_ns", Unit.NS, "of it explained"),
        derived("unexplained_ns", Unit.NS, "of it not explained"),
    ),
)
EPOCHS: Final = spec_of(
    "epochs",
    "the epochs whose work was kept, against a typical one beside each",
    key("epoch", "its number", Unit.NUMBER),
    derived("base_ns", Unit.NS, "how long it took in the base"),
    derived("duration_ns", Unit.NS, "how long it took"),
    derived("difference_ns", Unit.NS, "how much longer than in the base"),
    derived("lost_ns", Unit.NS, "time lost at a restart, in it"),
    derived(
        "typical_ns",
        Unit.NS,
        "the median undisturbed epoch after it until the next restart, before it where none "
        "follows",
    ),
    derived("typical_of", Unit.TEXT, "the epochs that are typical for it"),
    derived("beyond_ns", Unit.NS, "what neither of the two explains"),
    derived("accuracy", Unit.NUMBER, "the accuracy after it"),
    derived("base_accuracy", Unit.NUMBER, "that of the base"),
    derived("ranks_count", Unit.COUNT, "ranks"),
    derived("steps_count", Unit.COUNT, "steps"),
    derived("life", Unit.NUMBER, "which start of the program made it"),
)
TIMELINE: Final = spec_of(
    "timeline",
    "what happened, in its order",
    _JOB,
    key("number", "its number", Unit.NUMBER),
    derived("at_ns", Unit.AT_NS, "when"),
    derived("duration_ns", Unit.NS, "how long"),
    derived("what", Unit.TEXT, "what happened"),
    derived("life", Unit.NUMBER, "in which life"),
    derived("epoch", Unit.NUMBER, "in which epoch"),
    derived("rank", Unit.NUMBER, "to which rank"),
    derived("node", Unit.TEXT, "on which node"),
    derived("ranks_count", Unit.COUNT, "ranks after it"),
    derived("text", Unit.TEXT, "what was said of it"),
)
ELASTIC_ABOUT: Final = {
    "parts": "where the job's time went",
    "restarts": "what each restart cost, and why",
    "epochs": "epoch by epoch",
    TIMELINE_NAME: "what happened when",
}


NODES: Final = "nodes"
NODE_LAYERS: Final = "node-layers"
MEAN: Final = "mean"

_RANK: Final = key("rank", "the rank; mean: of independent ranks, which do not wait for others")
_MODE: Final = derived("mode", Unit.TEXT, "forward, or forward+backward")
_RANKS: Final = derived("ranks", Unit.TEXT, "one, synchronised, or independent")

NODES_SPEC: Final = spec_of(
    NODES,
    "a round of each rank: means over the rounds without warm-up",
    _RUN,
    _RANK,
    _MODE,
    _RANKS,
    derived("round_ns", Unit.NS, "a round, from its start to that of the next"),
    *(derived(f"{phase}_ns", Unit.NS, f"of it the host was in {phase}") for phase in PHASES),
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
)
NODE_LAYERS_SPEC: Final = spec_of(
    "layers",
    "a layer in a round: means over the rounds without warm-up",
    key("layer", "the path of the module, or what stands for it"),
    _RUN,
    _RANK,
    derived("type", Unit.TEXT, "the class of the module"),
    _MODE,
    _RANKS,
    derived("forward_ns", Unit.NS, "its forward pass: on the device, else the host"),
    derived("backward_ns", Unit.NS, "its backward pass, where that is told"),
    derived("both_ns", Unit.NS, "both"),
    scalars=(same("clock", Unit.TEXT, "whose time it is: device or host"),),
)
