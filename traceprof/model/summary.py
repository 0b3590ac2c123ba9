"""The stored summary of a run: a few hundred kB, independent of the size of its traces.

Traces, training logs, and tables of rates are all converted to a `Summary`. Comparisons and the
database of runs use nothing else. A missing table, and the values NaN, None, and "", mean unknown,
never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, is_known

SUMMARY: Final = ResultSpec.of("""
    table measures: the run in single numbers
    key measure: name, with its unit at the end: samples_per_s, step_period_ns, time_to_train_ns,
        world_size, global_batch_count …
    same value [number]: value, in the unit of the name
    same unit: unit, as in the columns of results
    same scope: run, rank, device, or node
    same better: higher or lower, whichever is better; empty if neither is
    same low [number]: lower bound of the 95% confidence interval
    same high [number]: upper bound of the 95% confidence interval
    same source: measured, computed, printed, or recorded
    table steps: steps in execution order; for long runs, blocks of consecutive steps
    key attempt [number]: restart number: 0 for the first start, then 1, 2 …
    key rank: rank
    key step: step number; for a block, the number of its first step
    total steps_count: number of steps in the row
    same at_ns: start
    total period_ns: time from the start of the step to the start of the next step
    total between_ns: part of period_ns after the end of the step
    total device_ns: span of the GPU work of the step
    total compute_ns: part of device_ns in compute; this and the next four columns are means over
        GPUs
    total exposed_communication_ns: part of device_ns in exposed communication
    total exposed_transfer_ns: part of device_ns in exposed transfers
    total device_memory_ns: part of device_ns in exposed copies inside the GPU
    total idle_ns: part of device_ns without GPU activity
    total waited_ns: time spent in collectives waiting for the last rank
    total samples_count: number of samples in the batches
    total duration_ns: duration, as counted in the step time
    same is_warmup: whether the step is warm-up
    same is_counted: whether the step counts in the step time
    table makeup: composition of the steady window, summed over GPUs
    key part: one of the five parts
    key kind: kernel, copy, collective, waiting, rest, or the cause of idle time
    key name: name, as in `explain`
    key class: kernel class
    same place_ratio: mean start position within a step, from 0 to 1
    total ns: duration; the rows add up to the window of all GPUs
    total count: number of occurrences that begin in the window; for idle time, the number of gaps
    total n_bytes: bytes moved by copies and collectives
    table metrics: metrics that the program reported
    key metric: name: loss, top1, samples_per_s …
    key attempt [number]: restart number
    key rank: rank; unknown for a metric of the whole run
    key step: number of completed steps; unknown if only epochs are known
    key epoch [number]: number of completed epochs, including fractions
    same at_ns: time of the value
    same samples_count: number of processed samples
    same value [number]: value
    same scope: run, rank, device, or node
    same over: averaging period: step, interval, epoch, run, or ema
    table epochs: one row per epoch
    key attempt [number]: restart number
    key epoch [number]: epoch number, as counted by the program
    same at_ns: start
    same duration_ns: duration
    same steps_count: number of steps
    same samples_count: number of samples
    same ranks_count: number of ranks at the end of the epoch
    table events: events of the run
    key event [number]: event number, in time order
    same kind: start, end, setup, initialization, rendezvous, membership, rescaling, restart,
        failure, checkpoint, evaluation, time_lost …
    same at_ns: time of the event
    same duration_ns: duration
    same attempt [number]: restart number
    same rank: rank of the event
    same node: node of the event
    same epoch [number]: epoch of the event
    same value [number]: value, such as the number of ranks after the event
    same text: message
    table attempts: one row per start of a rank
    key attempt [number]: restart number
    key rank: rank
    key node: node
    same at_ns: start
    same end_ns [at_ns]: end
    same ended: finished, killed, or failed; empty if unknown
    same source: file that contains the data
    table typed: row of the table that the run was entered in
    key place [number]: column number, starting at 0
    same heading: column heading
    same cell: cell text
    """)
UNREAD: Final = "traceprof did not read"
"""The beginning of each note on a part of a text that is not in its runs."""
CONTRADICTS: Final = "the log contradicts itself"
"""Start of a note that says that numbers of a source contradict each other."""
_HIGHER: Final = ("accuracy", "top1", "top5", "bleu", "reward", "/ap", "clip_score")
_LOWER: Final = ("loss", "perplexity", "error")
# Short names must be whole words: "power" contains "wer", but is no word error rate.
_HIGHER_WORDS: Final = frozenset(
    {"acc", "map", "ap", "f", "auc", "auroc", "iou", "miou", "mfu", "dice", "psnr", "ssim"}
    | {"recall", "precision", "rouge"}
)
_LOWER_WORDS: Final = frozenset(
    ["ppl", "wer", "cer", "mae", "mse", "rmse", "mape", "fid", "nll", "ns", "cost", "costs"]
)
_WORD: Final = re.compile(r"[a-z]+")
_ACCURACIES: Final = ("top1", "accuracy", "acc")
_OTHERS: Final = ("loss", "ppl", "perplexity")
_QUALITY: Final = re.compile(r"/ap$|\bdice\b|bleu|error_rate|\bwer\b|\bfid\b")
_OF_TRAINING: Final = ("train", "epoch_", "mean_")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that contains, or contained, data of the run: a trace, a log, or a manifest."""

    path: str
    format: str = ""
    n_bytes: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One run: its environment and its results.

    ``name`` is the user's name of the run. ``origin`` is the kind of source: the trace format,
    "log:<source>", or "table". ``environment`` contains text by name (os, kernel, cpu, ram, gpu,
    driver, cuda, cudnn, nccl, mpi, torch, framework, python, nic, git_commit, git_is_dirty …),
    without secrets. ``labels`` come from the user (cluster, network, data …). ``started_utc_ns`` is
    in ns since 1970. ``window`` names the window of ``results``, the means, and ``makeup``, on
    ``devices_count`` devices. ``steps_count`` is the number of steps per rank behind the mean step
    time. ``tables`` are the known tables of `SUMMARY`, and ``results`` the analysis results by
    name. ``notes`` describe contradictions and doubtful data.
    """

    name: str
    origin: str = ""
    command: str = ""
    workload: str = ""
    started_utc_ns: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[SourceFile, ...] = ()
    window: str = ""
    window_ns: int | None = None
    steps_count: int | None = None
    devices_count: int | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def table(self, name: str) -> Table:
        """Return a table of `SUMMARY`, empty if nothing is known.

        Raises:
            KeyError: there is no such table.
        """
        spec = SUMMARY.table(name)
        return self.tables[name] if name in self.tables else spec.of_rows()

    def measure(self, name: str) -> float | None:
        """Return a measure of the run; None if unknown."""
        rows = self.table("measures")
        values = rows["value"][rows["measure"] == name][:1]
        return float(values[0]) if is_known(values).any() else None

    def labelled(self, **labels: str) -> Summary:
        """Return the run with additional labels."""
        return replace(self, labels={**self.labels, **labels})


def better_of(metric: str) -> str:
    """Return the better direction of a metric by its name: "higher", "lower", or "" if unknown."""
    name = metric.lower()
    words = set(_WORD.findall(name))
    if any(word in name for word in _LOWER) or words & _LOWER_WORDS:
        return "lower"
    is_higher = any(word in name for word in _HIGHER) or words & _HIGHER_WORDS
    return "higher" if is_higher or name.endswith("_per_s") else ""


def is_accuracy(metric: str) -> bool:
    """Return whether a metric is a share of correct answers."""
    name = metric.lower()
    return any(word in name for word in (*_ACCURACIES, "top5"))


def find_quality_metric(metrics: Sequence[str]) -> str | None:
    """Return the metric that best describes model quality: preferably a validation accuracy.

    Otherwise another quality metric, such as a word error rate, or else a loss. None: no metric
    does.
    """
    for words in (_ACCURACIES, _OTHERS):
        others = [name for name in metrics if _QUALITY.search(name.lower())]
        if words is _OTHERS and others:
            return min(others, key=lambda name: (len(name), name))
        for is_of_training in (False, True):
            for word in words:
                found = [
                    name
                    for name in metrics
                    if word in name.lower()
                    and any(mark in name.lower() for mark in _OF_TRAINING) == is_of_training
                ]
                if found:
                    # Prefer the validation loss, then the shortest name.
                    return min(found, key=lambda name: ("val" not in name, len(name), name))
    return None
