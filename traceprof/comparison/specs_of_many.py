"""What comparisons of several runs hold: scaling, accuracy, jobs whose ranks come and go, nodes."""

from __future__ import annotations

from typing import Final

from traceprof.comparison import CURVE_NAME, TIMELINE_NAME
from traceprof.comparison.specs import spec_of
from traceprof.names.ranges import PHASES

SCALING_SUMMARY: Final = "throughput by number of devices, against ideal"
NODES: Final = "nodes"
NODE_LAYERS: Final = "node-layers"
MEAN: Final = "mean"

SCALING_SPEC: Final = spec_of(
    """
    table scaling: a row for each group, size and global batch; runs that agree in all of them are
        repeats, and averaged
    key group: the labels that runs of one group share, as far as groups differ
    key devices_count: GPUs; of runs without any, ranks
    key nodes_count: machines
    derived samples_per_s: throughput of all devices together
    derived tokens_per_s: the same in tokens
    derived steps_per_s: the same in steps, where samples are unknown
    derived speedup [factor]: throughput over that of the base
    derived efficiency_ratio: of ideal: throughput per device over that of the base
    derived lost_to: where most of the rest was lost, in % of ideal
    derived scaling: against the base: weak, strong, mixed, or unknown
    derived printed_ratio: the efficiency that the source prints
    derived printed_is: how that follows from the rates
    derived expected_ratio: throughput over the one that was expected
    derived low_ratio: the lower end of the 95 % interval of it
    derived high_ratio: the upper end
    key global_batch_count: samples of a step on all devices
    derived ranks: one, synchronised, or independent (averaged)
    derived base_count: the size of the base
    derived ideal_per_s: what ideal scaling from the base would give
    derived low_per_s: the lower end of the throughput's interval
    derived high_per_s: the upper end
    derived karp_flatt_ratio: the serial share that explains the speed-up; growing with the size:
        overhead
    derived time_to_train_ns: the time to the target
    derived time_speedup [factor]: that of the base over it
    derived step_ns: the time of a step
    derived mfu_ratio: model FLOPs utilisation, of the dense peak
    derived step_joules [number]: the energy of a step on all devices
    derived sample_joules [number]: of a sample
    derived step_cost [number]: what a step costs on all devices, at the price that was given
    derived million_samples_cost [number]: a million samples
    derived runs_count: how many runs
    table losses: where the lost efficiency went, per device and step; the rows of a size add up
    key group: the labels that runs of one group share, as far as groups differ
    key devices_count: GPUs; of runs without any, ranks
    key nodes_count: machines
    key global_batch_count: samples of a step on all devices
    key loss: what took longer than in the base
    derived lost_ratio: of ideal; all together 1 - efficiency_ratio
    derived lost_ns: own_ns - base_ns
    derived own_ns: its time per device and step; all are the step's
    derived base_ns: in the base, for as many samples per device
    table laws: the serial share of each group, by Amdahl's law
    key group: the labels that runs of one group share, as far as groups differ
    derived serial_ratio: the share that fits all sizes best
    derived limit_speedup [factor]: the speed-up that it allows at most
    derived is_exceeded: whether more was measured: it does not fit
    derived karp_flatt_first_ratio: of the smallest size beyond base
    derived karp_flatt_last_ratio: of the largest size
    derived sizes_count: how many sizes beyond the base
    table groups: the labels of each group
    key group: the labels that runs of one group share, as far as groups differ
    key label: the name of the label
    same value: its value
    table runs: the runs one by one
    key run: its name
    same group: the group
    same devices_count: GPUs, or ranks
    same nodes_count: machines
    same samples_per_s: throughput
    same tokens_per_s: the same in tokens
    same steps_per_s: the same in steps
    same ranks: one, synchronised, or independent
    same origin: what it was read from
    table failures: runs that ended without a throughput
    key run: its name
    same labels: its labels
    same devices_count: GPUs, or ranks
    same nodes_count: machines
    same global_batch_count: samples of a step on all devices
    same why: what it ended for, and where that stands
    scalars
    same by: what the size is: gpus or nodes
    same devices: what devices are: GPUs, or ranks where there are none
    same base: the base that was asked for; empty: the smallest of each group
    """
)
ACCURACY: Final = spec_of(
    """
    table reached: a row for each run: when it first reached the target
    key run: the run
    derived devices_count: GPUs, else ranks
    derived is_reached: whether it reached the target
    derived time_ns: from the start of training to that evaluation
    derived epochs [number]: after how many epochs
    derived steps_count: after how many steps
    derived samples_count: after how many samples
    derived value [number]: the value that reached it
    derived best [number]: the best value of all
    derived time_to_train_ns: what the benchmark's own clock says
    derived evaluations_count: how many values there are
    table spread: runs that agree in labels, devices and batch are repeats: median, least and most
    key group: the run, or the labels of runs that are repeats
    derived runs_count: how many runs
    derived reached_count: how many of them reached the target
    derived median_ns: the time of the median run that reached it
    derived least_ns: that of the fastest
    derived most_ns: that of the slowest
    derived median_epochs [number]: the median of their epochs
    derived least_epochs [number]: the fewest
    derived most_epochs [number]: the most
    """
)
SPEEDUP: Final = spec_of(
    """
    table speedup: against the first row: in time to the target, and in throughput
    key group: the run, or the labels of runs that are repeats
    derived devices_count: GPUs, else ranks
    derived time_speedup [factor]: how many times as fast as the first
    derived time_efficiency_ratio: that by how many times the devices
    derived rate_speedup [factor]: how many times the throughput of the first
    derived rate_efficiency_ratio: that by how many times the devices
    derived work_factor [factor]: how many times the samples it needed
    derived remark: what is printed and its own times rule out
    derived samples_per_s: throughput, by the run's own times
    derived printed_per_s: the throughput that the source prints
    derived time_ns: the time to the target
    derived global_batch_count: samples of a step on all devices
    """
)
CURVE: Final = spec_of(
    """
    table curve: the metric over time
    key run: the run
    key life [number]: which start of the program
    derived time_ns: after the start of training
    derived epoch [number]: after how many epochs
    derived step: after how many steps
    derived samples_count: after how many samples
    derived value [number]: the value
    scalars
    same metric: the metric
    same target [number]: the value to reach
    """
)
ACCURACY_ABOUT: Final = {
    "accuracy": "time, epochs, steps and samples to the target",
    "speedup": "what more devices gave: time to the target against throughput",
    CURVE_NAME: "the way there",
}

JOB_PARTS: Final = spec_of(
    """
    table parts: what the job's time was, from its first process to its last: adds up to the total
    key part: what
    derived base_ns: how long in the base
    derived duration_ns: how long
    derived share_ratio: of the whole job
    derived difference_ns: how much longer than in the base
    """
)
RESTARTS: Final = spec_of(
    """
    table restarts: each time that training stopped and began again
    key run: the job
    key restart [number]: its number
    same epoch [number]: the epoch at which training went on
    derived lost_ns: time lost: until training was where it had been
    derived redone_ns: of it steps whose work was lost
    derived noticing_ns: of it until agents noticed
    derived down_ns: of it nothing of the job ran, until it was started again
    derived rendezvous_ns: of it until the agents had met
    derived failed_ns: of it starts that never trained
    derived initialisation_ns: of it initialisation of the workers
    derived loading_ns: of it loading checkpoints
    derived setup_ns: of it set-up of the program otherwise
    derived unexplained_ns: of it nothing explains
    derived beyond_ns: of its epoch, beside the lost time, what a typical one does not take
    derived redone_count: how many steps were made again
    same life [number]: which start of the program went on
    same at_ns: up to when work was not lost
    same why: why, as the agents or the ranks' ends tell
    same ranks_before_count: ranks before
    same ranks_after_count: ranks after
    scalars
    derived lost_ns: time lost at all restarts
    derived explained_ns: of it explained
    derived unexplained_ns: of it not explained
    """
)
EPOCHS: Final = spec_of(
    """
    table epochs: the epochs whose work was kept, against a typical one beside each
    key epoch [number]: its number
    derived base_ns: how long it took in the base
    derived duration_ns: how long it took
    derived difference_ns: how much longer than in the base
    derived lost_ns: time lost at a restart, in it
    derived typical_ns: the median undisturbed epoch after it until the next restart, before it
        where none follows
    derived typical_of: the epochs that are typical for it
    derived beyond_ns: what neither of the two explains
    derived accuracy [number]: the accuracy after it
    derived base_accuracy [number]: that of the base
    derived top5 [number]: the accuracy of the five likeliest after it
    derived base_top5 [number]: that of the base
    derived ranks_count: ranks
    derived steps_count: steps
    derived life [number]: which start of the program made it
    """
)
TIMELINE: Final = spec_of(
    """
    table timeline: what happened, in its order
    key run: the job
    key number [number]: its number
    derived at_ns: when
    derived duration_ns: how long
    derived what: what happened
    derived life [number]: in which life
    derived epoch [number]: in which epoch
    derived rank: to which rank
    derived node: on which node
    derived ranks_count: ranks after it
    derived text: what was said of it
    """
)
ELASTIC_ABOUT: Final = {
    "parts": "where the job's time went",
    "restarts": "what each restart cost, and why",
    "epochs": "epoch by epoch",
    TIMELINE_NAME: "what happened when",
}

_PHASES: Final = "\n    ".join(
    f"derived {phase}_ns: of it the host was in {phase}" for phase in PHASES
)
NODES_SPEC: Final = spec_of(
    f"""
    table nodes: a round of each rank: means over the rounds without warm-up
    key run: the run
    key rank [text]: the rank; mean: of independent ranks, which do not wait for others
    derived mode: forward, or forward+backward
    derived ranks: one, synchronised, or independent
    derived round_ns: a round, from its start to that of the next
    {_PHASES}
    derived other_ns: of it in no phase
    derived samples_per_s: samples over time
    derived syncs_per_s: collectives per second
    derived sync_bytes: what a rank hands in at each
    derived sync_ns: how long each takes, waiting for others included
    derived sync_bytes_per_s: bytes over that time
    derived waited_ns: waiting in collectives for the last rank to come
    derived rounds_count: how many rounds these are means of
    derived warmup_count: leading rounds that are left out
    same node: the machine
    """
)
NODE_LAYERS_SPEC: Final = spec_of(
    """
    table layers: a layer in a round: means over the rounds without warm-up
    key layer: the path of the module, or what stands for it
    key run: the run
    key rank [text]: the rank; mean: of independent ranks, which do not wait for others
    derived type: the class of the module
    derived mode: forward, or forward+backward
    derived ranks: one, synchronised, or independent
    derived forward_ns: its forward pass: on the device, else the host
    derived backward_ns: its backward pass, where that is told
    derived both_ns: both
    scalars
    same clock: whose time it is: device or host
    """
)
