"""Metrics of quality: what they are called, and which way they get better."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

CONTRADICTS: Final = "the log contradicts itself"
"""How a note begins that says that numbers of a source rule one another out."""

__all__ = ["CONTRADICTS", "better_of", "is_accuracy", "quality_among"]

_HIGHER: Final = ("accuracy", "top1", "top5", "bleu", "reward", "/ap")
_LOWER: Final = ("loss", "perplexity", "error")
# Short names are found as whole words: "power" is no word error rate.
_HIGHER_WORDS: Final = frozenset(
    [
        "acc",
        "map",
        "ap",
        "f",
        "auc",
        "auroc",
        "iou",
        "miou",
        "mfu",
        "dice",
        "psnr",
        "ssim",
        "recall",
        "precision",
        "rouge",
    ]
)
_LOWER_WORDS: Final = frozenset(
    ["ppl", "wer", "cer", "mae", "mse", "rmse", "mape", "fid", "nll", "ns", "cost", "costs"]
)
_WORD: Final = re.compile(r"[a-z]+")
_ACCURACIES: Final = ("top1", "accuracy", "acc")
_OTHERS: Final = ("loss", "ppl", "perplexity")
_OF_TRAINING: Final = ("train", "epoch_", "mean_")


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
    """Return which of ``metrics`` says best how good a model is: an accuracy, of validation."""
    for words in (_ACCURACIES, _OTHERS):
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
