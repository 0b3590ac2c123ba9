"""What a kernel does, decided once, by name, from an ordered table of rules.

The first rule whose pattern is found in the name wins (regular expressions, case ignored), so
communication stands before everything that a name may also mention. A user's own rules go in
front of these (`parse_rules`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pandas as pd

from traceprof.errors import UsageError

__all__ = ["RULES", "Activity", "Part", "Rule", "classify", "parse_rules"]


class Part(StrEnum):
    """The part of a device's time that an activity belongs to."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    DEVICE_MEMORY = "device_memory"


class Activity(StrEnum):
    """The kind of work that a kernel does."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    POOLING = "pooling"
    EMBEDDING = "embedding"
    INDEXING = "indexing"
    SORTING = "sorting"
    LAYOUT = "layout"
    OPTIMIZER = "optimizer"
    RANDOM = "random"
    CUDA_GRAPH = "cuda_graph"
    OTHER_COMPUTE = "other_compute"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    DEVICE_MEMORY = "device_memory"

    @property
    def part(self) -> Part:
        """The part of the breakdown that it counts towards."""
        return _PARTS.get(self, Part.COMPUTE)


_PARTS: Final = {
    Activity.COMMUNICATION: Part.COMMUNICATION,
    Activity.TRANSFER: Part.TRANSFER,
    Activity.DEVICE_MEMORY: Part.DEVICE_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Kernels whose name contains ``pattern`` do ``activity``."""

    activity: Activity
    pattern: re.Pattern[str]


def _rule(activity: Activity, *patterns: str) -> Rule:
    return Rule(activity, re.compile("|".join(patterns), re.IGNORECASE))


RULES: Final[tuple[Rule, ...]] = (
    _rule(
        Activity.COMMUNICATION,
        r"nccl|rccl|hccl",
        r"nvshmem|rocshmem|deep_?ep\b|internode::|intranode::",
        r"cross_device_reduce|custom_?all_?reduce|one_?shot_?all_?reduce|two_?shot_?all_?reduce",
        r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
        r"multimem|symm(etric)?_?mem",
    ),
    _rule(Activity.TRANSFER, r"^memcpy|^hipmemcpy|rocclr_copybuffer|__amd_rocclr_copy"),
    _rule(Activity.DEVICE_MEMORY, r"^memset|^hipmemset|rocclr_fillbuffer"),
    _rule(
        Activity.OPTIMIZER,
        r"multi_?tensor|optimi[sz]er|\badam|fused_?adam|sgd_|lamb_?(stage|kernel)|foreach_",
    ),
    _rule(
        Activity.ATTENTION,
        r"flash|fmha|attention|attn|\bmha\b|paged_?kv|scaled_dot_product",
    ),
    _rule(
        Activity.CONVOLUTION,
        r"conv(?!ert)|wgrad|dgrad|fprop|winograd|implicit_gemm|cudnn::cnn|im2col|col2im|miopen",
    ),
    _rule(
        Activity.GEMM,
        r"gemm|gemv|cublas|cutlass|matmul|splitk|\bcijk_|tensile|xmma|ampere_.*s?s?gemm|nvjet",
        r"\bdot_kernel|wgmma|mma_",
    ),
    _rule(
        Activity.NORMALISATION,
        r"batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm|\bbn_|_bn_",
        r"cuComputePartGrad|GammaBeta",
    ),
    _rule(Activity.SOFTMAX, r"soft_?max"),
    _rule(Activity.POOLING, r"pool"),
    _rule(Activity.EMBEDDING, r"embedding"),
    _rule(Activity.RANDOM, r"dropout|philox|distribution_|random|curand"),
    _rule(Activity.SORTING, r"sort|top_?k|radix|merge_path"),
    _rule(
        Activity.LAYOUT,
        r"nchw|nhwc|transpose|permute|CatArray|copy_kernel|direct_copy|to_copy|convert",
    ),
    _rule(Activity.INDEXING, r"gather|scatter|index|take|masked|nonzero|where"),
    _rule(Activity.REDUCTION, r"reduce|reduction|\bsum_|mean_|argmax|argmin|scan|cumsum|norm"),
    _rule(
        Activity.ELEMENTWISE,
        r"elementwise|pointwise|vectorized|triton_poi|FillFunctor|unrolled|fused_|relu|gelu|silu",
    ),
)


def classify(names: pd.Categorical, rules: Sequence[Rule] = RULES) -> pd.Categorical:
    """Return the activity of each kernel; one look per distinct name."""
    found = [_activity_of(str(name), rules) for name in names.categories]
    distinct = sorted(set(found))
    place = {activity: code for code, activity in enumerate(distinct)}
    codes = pd.Series([place[activity] for activity in found], dtype="int64").to_numpy()
    return pd.Categorical.from_codes(
        codes[names.codes] if len(codes) else names.codes, pd.Index(distinct, dtype=object)
    )


def _activity_of(name: str, rules: Iterable[Rule]) -> str:
    for rule in rules:
        if rule.pattern.search(name):
            return rule.activity.value
    return Activity.OTHER_COMPUTE.value


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Return the user's rules in the TOML ``text``, followed by the built-in ones.

    The file holds, in the order of precedence::

        [[rule]]
        activity = "communication"
        pattern = "my_ring_kernel"

    Raises:
        UsageError: not TOML, an activity that does not exist, or a pattern that is not valid.
    """
    try:
        tables = tomllib.loads(text).get("rule", [])
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"rules: not a TOML file: {error}") from error
    return (*(_parse_rule(table) for table in tables), *RULES)


def _parse_rule(table: object) -> Rule:
    if not isinstance(table, dict) or {"activity", "pattern"} - set(table):
        raise UsageError("rules: every [[rule]] needs an activity and a pattern")
    try:
        activity = Activity(table["activity"])
    except ValueError as error:
        known = ", ".join(activity.value for activity in Activity)
        raise UsageError(
            f"rules: unknown activity {table['activity']!r}: expected one of {known}"
        ) from error
    try:
        pattern = re.compile(str(table["pattern"]), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"rules: pattern {table['pattern']!r}: {error}") from error
    return Rule(activity, pattern)
