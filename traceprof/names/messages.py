"""Messages between devices: names of collectives, and classes of message sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.names.parsing import parse_name, pattern

NON_BLOCKING: Final = "mpi, non-blocking"
"""Backend of calls that only start an operation, so that their duration is not its duration."""

_OPS: Final = (
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("alltoallv", "all_to_all_v"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send_recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
_PUNCTUATION: Final = pattern(r"[^a-z0-9]+")
_NCCL: Final = pattern(
    r"(?s)^(?>.*?[nr]ccl).*?(?P<algorithm>nvls_?tree|nvls|collnet_?(?:direct|chain)?|ring|tree|_pat)"
    r"_?(?P<protocol>ll128|ll|simple)?",
    re.IGNORECASE,
)
_CUSTOM: Final = (
    (pattern(r"barrier|device_sync", re.IGNORECASE), "barrier", ""),
    (
        pattern(
            r"(inter|intra)node(_ll)?::|(deep_?|hybrid_)ep|::(dispatch|combine)(_impl)?$", re.I
        ),
        "all_to_all_v",
        "DeepEP",
    ),
    (pattern(r"\bmori::"), "all_to_all_v", "mori"),
    (pattern(r"pplx|a2a_(dispatch|combine)_(send|recv)"), "all_to_all_v", "pplx"),
    (pattern(r"dispatch|combine|a2a|all2all", re.IGNORECASE), "all_to_all_v", ""),
    (pattern(r"kuserbuffers_(push|pull)"), "send_recv", "userbuffers"),
    (pattern(r"userbuffers_\w{0,99}_ag(_|$)"), "all_gather", "userbuffers"),
    (pattern(r"userbuffers_\w{0,99}_rs(_|$)"), "reduce_scatter", "userbuffers"),
    (pattern(r"userbuffers_\w{0,99}sum"), "all_reduce", "userbuffers"),
    (pattern(r"cross_device_reduce_(\w{1,99}?)stage", re.IGNORECASE), "all_reduce", "custom"),
    (pattern(r"multimem", re.IGNORECASE), "", "multimem"),
    (pattern(r"one_?shot", re.IGNORECASE), "", "one-shot"),
    (pattern(r"two_?shot", re.IGNORECASE), "", "two-shot"),
)
ALL_SIZES: Final = "all"
UNKNOWN_SIZE: Final = "unknown"
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_SIZE_LIMITS: Final = np.array([4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB], np.int64)
_SIZE_LABELS: Final = ("< 4K", "4K–64K", "64K–1M", "1M–16M", "16M–256M", "≥ 256M", UNKNOWN_SIZE)


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """Properties in the name of a communication kernel; "" where the name does not show one."""

    op: str = ""
    algorithm: str = ""
    protocol: str = ""


def collective_op(name: str) -> str:
    """Return the standard name of a collective (``all_reduce`` …); "" if it moves no data.

    ``_allgather_base``, ``nccl:_all_gather_base``, ``ncclAllGather``, and ``MPI_Iallgather`` all
    are ``all_gather``.
    """
    plain = _PUNCTUATION.sub("", name.lower())
    return next((op for part, op in _OPS if part in plain), "")


def kernel_kind(name: str) -> CollectiveKind:
    """Return operation, algorithm, and protocol of a communication kernel by its name.

    ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`` is an ``all_reduce`` with RING and LL.
    """
    parsed = parse_name(name)
    plain = f"{parsed.scope}::{parsed.identifier}"
    for expression, op, algorithm in _CUSTOM:
        if expression.search(plain):
            return CollectiveKind(op or collective_op(plain), algorithm)
    found = _NCCL.search(plain)
    if found is None:
        return CollectiveKind(collective_op(plain))
    algorithm = found["algorithm"].strip("_").upper()
    return CollectiveKind(collective_op(plain), algorithm, (found["protocol"] or "").upper())


def classify_sizes(n_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    """Return the size class of each message; a size below 0 is unknown."""
    return labels_of_sizes(places_of_sizes(n_bytes))


def places_of_sizes(n_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the index of the size class of each message."""
    place = np.searchsorted(_SIZE_LIMITS, n_bytes, side="right")
    place[n_bytes < 0] = len(_SIZE_LABELS) - 1
    return place


def labels_of_sizes(places: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    """Return the labels of the size classes ``places``."""
    return np.asarray(np.array(_SIZE_LABELS, object)[places], object)


def order_of_size(label: str) -> int:
    """Return the sort position of a size class, `ALL_SIZES` first."""
    return -1 if label == ALL_SIZES else _SIZE_LABELS.index(label)
