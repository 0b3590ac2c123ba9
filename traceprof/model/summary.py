"""What is kept of a run once its traces are gone: a few hundred kB, whatever they weighed.

A trace, a training log and a table of rates all become a `Summary`; comparisons and the database
of experiments know nothing else. What was not recorded is not there: a table that is missing or a
value that is NaN, None or "" is not known, never zero.
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
    key measure: its name with the unit at its end: samples_per_s, step_period_ns, time_to_train_ns,
        world_size, global_batch_count …
    same value [number]: how much, in the unit of its name
    same unit: the unit, as columns of results have it
    same scope: whose it is: run, rank, device or node
    same better: higher or lower; empty: neither
    same low [number]: the lower end of the 95 % interval
    same high [number]: the upper end of it
    same source: measured, computed, printed, or recorded
    table steps: steps in the order in which they ran, of long runs blocks of neighbouring steps
    key life [number]: which start of the program: 0, and 1, 2 … after restarts
    key rank: the rank
    key step: the number of the step, of a block that of its first
    total steps_count: how many steps the row stands for
    same at_ns: when it starts
    total period_ns: from its start to that of the next one
    total between_ns: of the period what lies behind the step
    total device_ns: the span of its work on the devices
    total compute_ns: of it compute; the five are means over devices
    total exposed_communication_ns: of it communication, not hidden
    total exposed_transfer_ns: of it copies, not hidden
    total device_memory_ns: of it copies inside the device, not hidden
    total idle_ns: of it idle
    total waited_ns: waiting in collectives for the last rank to come
    total samples_count: the samples of its batches
    total duration_ns: its length, as the step time counts it
    same is_warmup: whether it is warm-up
    same is_counted: whether the step time is the mean over steps such as this one
    table makeup: what the steady window of a device is made of, all devices added up
    key part: one of the five parts
    key kind: kernel, copy, collective, waiting, rest, or the cause of idle time
    key name: its name, as `explain` has it
    key class: of kernels the class
    same place_ratio: where in a step it begins, the mean: 0 … 1
    total ns: how long; all add up to the window of all devices
    total count: how many began in it, of idle time how many gaps
    total n_bytes: how much copies and collectives moved
    table metrics: what the program measured of itself
    key metric: its name: loss, top1, samples_per_s …
    key life [number]: which start of the program
    key rank: whose; not known: of the run
    key step: after how many steps; not known where only epochs are
    key epoch [number]: after how many epochs, fractions too
    same at_ns: when
    same samples_count: after how many samples
    same value [number]: its value
    same scope: run, rank, device or node
    same over: what it is a mean of: step, interval, epoch, run, ema
    table epochs: the epochs
    key life [number]: which start of the program
    key epoch [number]: its number, as the program counts
    same at_ns: when it starts
    same duration_ns: how long it takes
    same steps_count: its steps
    same samples_count: its samples
    same ranks_count: how many ranks trained it, at its end
    table events: what happened to the run
    key event [number]: its number, in the order in which they happened
    same kind: start, end, setup, initialisation, rendezvous, membership, rescaling, restart,
        failure, checkpoint, evaluation, time_lost …
    same at_ns: when
    same duration_ns: how long it took
    same life [number]: which start of the program
    same rank: the rank it happened to
    same node: the node it happened to
    same epoch [number]: in which epoch
    same value [number]: such as the number of ranks after it
    same text: what was said of it
    table lives: every start of every rank, until it ended
    key life [number]: which start of the program
    key rank: the rank
    key node: the node it ran on
    same at_ns: when it started
    same end_ns [at_ns]: when it ended
    same ended: how: finished, killed, failed; empty: not known
    same source: the file that holds it
    table typed: the row of a table that the run was typed in
    key place [number]: the number of the column, from 0
    same heading: what the column is called there
    same cell: what stands in it
    """)
CONTRADICTS: Final = "the log contradicts itself"
"""How a note begins that says that numbers of a source rule one another out."""
_HIGHER: Final = ("accuracy", "top1", "top5", "bleu", "reward", "/ap", "clip_score")
_LOWER: Final = ("loss", "perplexity", "error")
# Short names are found as whole words: "power" is no word error rate.
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
    """Where something of the run lies, or lay: a trace, a log, a manifest."""

    path: str
    format: str = ""
    n_bytes: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One run: what it ran in and gave.

    ``name`` is what the user calls it. ``origin`` says what it was made of: the format of its
    traces, "log:<source>", or "table". ``environment`` has text by name (os, kernel, cpu, ram,
    gpu, driver, cuda, cudnn, nccl, mpi, torch, framework, python, nic, git_commit, git_is_dirty
    …), secrets never. ``labels`` are the user's (cluster, network, data …). ``started_utc_ns`` is
    ns since 1970. ``window`` names what ``results``, the means and ``makeup`` are about, in
    ``devices_count`` devices; ``steps_count`` is how many steps of a rank the step time is the mean
    of. ``tables`` are those of `SUMMARY`, as far as
    they are known, and ``results`` those of the analyses, by name. ``notes`` are contradictions
    and doubts.
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
        """Return a table of `SUMMARY`, empty where nothing is known of it.

        Raises:
            KeyError: there is no such table.
        """
        spec = SUMMARY.table(name)
        return self.tables[name] if name in self.tables else spec.of_rows()

    def measure(self, name: str) -> float | None:
        """Return a measure of the run, None where it is not known."""
        rows = self.table("measures")
        values = rows["value"][rows["measure"] == name][:1]
        return float(values[0]) if is_known(values).any() else None

    def labelled(self, **labels: str) -> Summary:
        """Return the run with more labels."""
        return replace(self, labels={**self.labels, **labels})


def better_of(metric: str) -> str:
    """Return which way a metric gets better by its name: higher, lower; "": not known."""
    name = metric.lower()
    words = set(_WORD.findall(name))
    if any(word in name for word in _LOWER) or words & _LOWER_WORDS:
        return "lower"
    is_higher = any(word in name for word in _HIGHER) or words & _HIGHER_WORDS
    return "higher" if is_higher or name.endswith("_per_s") else ""


def is_accuracy(metric: str) -> bool:
    """Return whether a metric is a share of right answers."""
    name = metric.lower()
    return any(word in name for word in (*_ACCURACIES, "top5"))


def quality_among(metrics: Sequence[str]) -> str | None:
    """Return which of ``metrics`` says best how good a model is: an accuracy, of validation.

    Else another quality, such as a word error rate, else a loss.
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
                    # Of losses that of validation; else the plainest name.
                    return min(found, key=lambda name: ("val" not in name, len(name), name))
    return None
