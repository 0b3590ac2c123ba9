"""The tables of comparisons of many runs: scaling, accuracy, elastic jobs, nodes."""

from __future__ import annotations

from typing import Final

from traceprof.comparison import CURVE_NAME, TIMELINE_NAME
from traceprof.comparison.specs import spec_of
from traceprof.names.ranges import PHASES

SCALING_SUMMARY: Final = "throughput by number of GPUs, compared with ideal scaling"
NODES: Final = "nodes"
NODE_LAYERS: Final = "node-layers"
MEAN: Final = "mean"

SCALING_SPEC: Final = spec_of(
    """
    table scaling: one row per group, size and global batch; traceprof averages repeats, which are
        runs that agree in all three
    key group: labels that the runs of a group share and that differ between groups
    key devices_count: number of GPUs, or of ranks if a run has no GPUs
    key nodes_count: number of machines
    derived samples_per_s: total throughput of all GPUs
    derived tokens_per_s: total throughput in tokens
    derived steps_per_s: total throughput in steps, if samples are unknown
    derived speedup [factor]: throughput divided by the throughput of the base
    derived efficiency_ratio: scaling efficiency: throughput per GPU divided by that of the base
    derived lost_to: largest efficiency losses, in % of ideal
    derived scaling: scaling relative to the base: weak, strong, mixed, or unknown
    derived printed_ratio: efficiency printed by the source
    derived printed_is: how the printed efficiency agrees with the rates
    derived expected_ratio: throughput divided by the expected throughput
    derived low_ratio: lower end of the 95% confidence interval of the efficiency
    derived high_ratio: upper end of the 95% confidence interval of the efficiency
    key global_batch_count: samples per step on all GPUs
    derived ranks: one, synchronized, or independent (averaged)
    derived base_count: size of the base
    derived ideal_per_s: throughput of ideal scaling from the base
    derived low_per_s: lower end of the 95% confidence interval of the throughput
    derived high_per_s: upper end of the 95% confidence interval of the throughput
    derived karp_flatt_ratio: Karp–Flatt metric, the serial share implied by the speedup; a value
        that grows with the size indicates overhead
    derived time_to_train_ns: time to reach the target
    derived time_speedup [factor]: time of the base to reach the target divided by time_to_train_ns
    derived step_ns: step time
    derived mfu_ratio: model FLOPs utilization, relative to the dense peak
    derived step_joules [number]: energy per step on all GPUs
    derived sample_joules [number]: energy per sample
    derived step_cost [number]: cost per step on all GPUs at the given price
    derived million_samples_cost [number]: cost per million samples
    derived runs_count: number of runs
    table losses: efficiency losses per GPU and step; the rows of a size add up
    key group: labels that the runs of a group share and that differ between groups
    key devices_count: number of GPUs, or of ranks if a run has no GPUs
    key nodes_count: number of machines
    key global_batch_count: samples per step on all GPUs
    key loss: activity that takes longer than in the base
    derived lost_ratio: loss as a share of ideal; the losses of a size add up to 1 -
        efficiency_ratio
    derived lost_ns: actual_ns - base_ns
    derived actual_ns: time per GPU and step; the rows add up to the step time
    derived base_ns: time in the base for the same number of samples per GPU
    table laws: serial share of each group, from Amdahl's law
    key group: labels that the runs of a group share and that differ between groups
    derived serial_ratio: serial share that fits all sizes best
    derived limit_speedup [factor]: largest speedup that the serial share allows
    derived is_exceeded: whether a measured speedup exceeds limit_speedup, so that the law does not
        fit
    derived karp_flatt_first_ratio: Karp–Flatt metric of the smallest size above the base
    derived karp_flatt_last_ratio: Karp–Flatt metric of the largest size
    derived sizes_count: number of sizes above the base
    table groups: labels of each group
    key group: labels that the runs of a group share and that differ between groups
    key label: name of the label
    same value: value of the label
    table runs: runs
    key run: name of the run
    same group: group of the run
    same devices_count: number of GPUs or ranks
    same nodes_count: number of machines
    same samples_per_s: throughput in samples
    same tokens_per_s: throughput in tokens
    same steps_per_s: throughput in steps
    same ranks: one, synchronized, or independent
    same origin: source of the run
    table failures: runs that ended without a throughput
    key run: name of the run
    same labels: labels of the run
    same devices_count: number of GPUs or ranks
    same nodes_count: number of machines
    same global_batch_count: samples per step on all GPUs
    same why: why the run ended, and where the source reports it
    scalars
    same by: unit of the size: gpus or nodes
    same devices: unit of devices_count: GPUs, or ranks if no run has GPUs
    same base: requested base; empty: smallest size of each group
    """
)
ACCURACY: Final = spec_of(
    """
    table reached: one row per run: when the run first reached the target
    key run: name of the run
    derived devices_count: number of GPUs, or of ranks if a run has no GPUs
    derived is_reached: whether the run reached the target
    derived time_ns: time from the start of training to the evaluation that reached the target
    derived epochs [number]: epochs until the target
    derived steps_count: steps until the target
    derived samples_count: samples until the target
    derived value [number]: value that reached the target
    derived best [number]: best value of the run
    derived time_to_train_ns: time to train reported by the benchmark
    derived evaluations_count: number of recorded values
    table spread: spread over repeats, which are runs that agree in labels, GPUs and batch
    key group: name of the run, or the labels that the repeats share
    derived runs_count: number of runs
    derived reached_count: number of runs that reached the target
    derived median_ns: median time to the target
    derived least_ns: shortest time to the target
    derived most_ns: longest time to the target
    derived median_epochs [number]: median number of epochs to the target
    derived least_epochs [number]: fewest epochs to the target
    derived most_epochs [number]: most epochs to the target
    """
)
SPEEDUP: Final = spec_of(
    """
    table speedup: speedup relative to the first row, in time to the target and in throughput
    key group: name of the run, or the labels that the repeats share
    derived devices_count: number of GPUs, or of ranks if a run has no GPUs
    derived time_speedup [factor]: time of the first row to the target divided by time_ns
    derived time_efficiency_ratio: time_speedup divided by the factor in GPUs
    derived rate_speedup [factor]: throughput divided by the throughput of the first row
    derived rate_efficiency_ratio: rate_speedup divided by the factor in GPUs
    derived work_factor [factor]: samples to the target divided by those of the first row
    derived remark: contradiction between printed values and the times of the run
    derived samples_per_s: throughput from the times of the run
    derived printed_per_s: throughput printed by the source
    derived time_ns: time to the target
    derived global_batch_count: samples per step on all GPUs
    """
)
CURVE: Final = spec_of(
    """
    table curve: the metric over time
    key run: name of the run
    key attempt [number]: attempt of the program, counted from 0
    derived time_ns: time after the start of training
    derived epoch [number]: epochs completed
    derived step: steps completed
    derived samples_count: samples processed
    derived value [number]: value of the metric
    scalars
    same metric: name of the metric
    same target [number]: target value
    """
)
ACCURACY_ABOUT: Final = {
    "accuracy": "time, epochs, steps and samples to the target",
    "speedup": "speedup from more GPUs: time to the target and throughput",
    CURVE_NAME: "the metric over time",
}

JOB_PARTS: Final = spec_of(
    """
    table parts: time of the job from its first process to its last, by part; adds up to the total
    key part: part of the time
    derived base_ns: time in the base
    derived duration_ns: time
    derived share_ratio: share of the time of the job
    derived difference_ns: duration_ns minus base_ns
    """
)
RESTARTS: Final = spec_of(
    """
    table restarts: restarts, each with the time lost
    key run: name of the job
    key restart [number]: number of the restart
    same epoch [number]: epoch in which training resumed
    derived lost_ns: time lost until training was back at the point of the interruption
    derived redone_ns: part of lost_ns spent repeating steps
    derived noticing_ns: part of lost_ns until the agents detected the failure
    derived down_ns: part of lost_ns with no process running
    derived rendezvous_ns: part of lost_ns spent in the rendezvous of the agents
    derived failed_ns: part of lost_ns spent in starts that never trained
    derived initialization_ns: part of lost_ns spent in worker initialization
    derived loading_ns: part of lost_ns spent loading checkpoints
    derived setup_ns: part of lost_ns spent in other program setup
    derived unexplained_ns: part of lost_ns without a known cause
    derived beyond_ns: time of the epoch above a typical epoch, without lost_ns
    derived redone_count: number of repeated steps
    same attempt [number]: attempt that resumed training, counted from 0
    same at_ns: time of the last work that was kept
    same why: cause, from the agents or from how the ranks ended
    same ranks_before_count: number of ranks before the restart
    same ranks_after_count: number of ranks after the restart
    scalars
    derived lost_ns: time lost in all restarts
    derived explained_ns: part of lost_ns with a known cause
    derived unexplained_ns: part of lost_ns without a known cause
    """
)
EPOCHS: Final = spec_of(
    """
    table epochs: epochs whose work was kept, each compared with a typical epoch
    key epoch [number]: number of the epoch
    derived base_ns: duration in the base
    derived duration_ns: duration
    derived difference_ns: duration_ns minus base_ns
    derived lost_ns: time lost in a restart during the epoch
    derived typical_ns: median of the undisturbed epochs from this one until the next restart, or of
        those before it if none follow
    derived typical_of: epochs that traceprof uses as typical for this epoch
    derived beyond_ns: duration_ns minus lost_ns and typical_ns
    derived accuracy [number]: accuracy after the epoch
    derived base_accuracy [number]: accuracy of the base
    derived top5 [number]: top-5 accuracy after the epoch
    derived base_top5 [number]: top-5 accuracy of the base
    derived ranks_count: number of ranks
    derived steps_count: number of steps
    derived attempt [number]: attempt that ran the epoch, counted from 0
    """
)
TIMELINE: Final = spec_of(
    """
    table timeline: events in chronological order
    key run: name of the job
    key number [number]: number of the event
    derived at_ns: time of the event
    derived duration_ns: duration
    derived what: kind of event
    derived attempt [number]: attempt, counted from 0
    derived epoch [number]: epoch
    derived rank: rank
    derived node: node
    derived ranks_count: number of ranks after the event
    derived text: details
    """
)
ELASTIC_ABOUT: Final = {
    "parts": "job time by part",
    "restarts": "restarts: time lost and cause",
    "epochs": "epochs",
    TIMELINE_NAME: "event timeline",
}

_PHASES: Final = "\n    ".join(
    f"derived {phase}_ns: part of the round that the host spends in {phase}" for phase in PHASES
)
NODES_SPEC: Final = spec_of(
    f"""
    table nodes: rounds by rank: means over the rounds after warm-up
    key run: name of the run
    key rank [text]: rank, or "mean" for independent ranks, which do not wait for each other
    derived mode: forward, or forward+backward
    derived ranks: one, synchronized, or independent
    derived round_ns: round time, from the start of a round to the start of the next round
    {_PHASES}
    derived other_ns: part of the round outside all phases
    derived samples_per_s: throughput in samples
    derived syncs_per_s: collectives per second
    derived sync_bytes: input bytes of a rank per collective
    derived sync_ns: time per collective, including the wait for other ranks
    derived sync_bytes_per_s: sync_bytes divided by sync_ns
    derived waited_ns: time in collectives waiting for the last rank
    derived rounds_count: number of rounds averaged
    derived warmup_count: number of warm-up rounds, which are excluded
    same node: name of the machine
    """
)
NODE_LAYERS_SPEC: Final = spec_of(
    """
    table layers: layers by rank: means per round, over the rounds after warm-up
    key layer: path of the module, or the name of a range or operator
    key run: name of the run
    key rank [text]: rank, or "mean" for independent ranks, which do not wait for each other
    derived type: class of the module
    derived mode: forward, or forward+backward
    derived ranks: one, synchronized, or independent
    derived forward_ns: time of the forward pass: GPU time if recorded, else host time
    derived backward_ns: time of the backward pass, if recorded for each layer
    derived both_ns: forward_ns plus backward_ns
    scalars
    same clock: source of the times: device or host
    """
)
