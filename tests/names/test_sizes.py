"""Classes of message sizes."""

from __future__ import annotations

import numpy as np
import pytest

from traceprof.names.messages import classify_sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("n_bytes", "label"),
    [(0, "< 4K"), (4095, "< 4K"), (4096, "4K–64K"), (MIB, "1M–16M"), (1 << 28, "≥ 256M")],
)
def test_size_classes_are_binary_and_hold_their_lower_limit(n_bytes: int, label: str) -> None:
    assert classify_sizes(np.array([n_bytes])).tolist() == [label]


def test_a_size_that_is_not_known_has_a_class_of_its_own() -> None:
    assert classify_sizes(np.array([-1])).tolist() == ["unknown"]
