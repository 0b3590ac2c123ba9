"""Advice fits the devices and the work: no words of NVIDIA on AMD, no batch where weights come."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of
from traceprof import findings
from traceprof.findings.claims import Kind
from traceprof.findings.rules import Finding, in_words_of
from traceprof.measures.workload import Vendor
from traceprof.model.results import Note

MS = 1_000_000

OF_NVIDIA = re.compile(r"(?i)nvidia|cuda|nsys|nsight|\bnccl|nvtx|tensor cores")
SAYS_SO_TOO = re.compile(r"torch\.cuda|cudnn\.benchmark|['\"]nccl['\"]|NCCL_[A-Z_]+")
ONLY_THERE = ("nsys profile", "3 × TF32")
"""What PyTorch and RCCL call so on AMD, too, and advice that depends on the recorder."""


def sentences_of_rules() -> Iterator[str]:
    """Yield the string constants of the rules that are sentences, without docstrings."""
    for path in sorted(Path(findings.__file__).parent.glob("[a-z]*.py")):
        tree = ast.parse(path.read_text())
        told = {id(own.value) for own in ast.walk(tree) if isinstance(own, ast.Expr)}
        for own in ast.walk(tree):
            if isinstance(own, ast.Constant) and id(own) not in told:
                text = own.value if isinstance(own.value, str) else ""
                if text.count(" ") > 1 and not text.startswith(("(", "^")):
                    yield text


def test_no_rule_advises_on_amd_what_only_nvidia_has() -> None:
    note = Note("")
    for text in sentences_of_rules():
        finding = Finding(note, (), Kind.NONE, (), text, "")
        told = SAYS_SO_TOO.sub("", in_words_of(Vendor.AMD, finding).action)
        if not any(words in told for words in ONLY_THERE) and "RCCL" not in text:
            assert not OF_NVIDIA.search(told), told


@pytest.mark.parametrize(("count", "words"), [(2, "the next batch"), (12, "the next layers need")])
def test_weights_that_are_streamed_are_no_batch(count: int, words: str) -> None:
    builder = TraceBuilder()
    for step in range(4):
        start = step * 100 * MS
        builder.step(start, start + 100 * MS, step)
        builder.kernel("at::native::gemm", start, start + 60 * MS)
        for i in range(count):
            at, length = start + 60 * MS + i * 40 * MS // count, 40 * MS // count
            builder.copy("h2d", at, at + length, n_bytes=20 * length, src_kind="pinned")
    (own,) = [own for own in findings_of(builder.build()) if own.rule == "exposed_copies"]
    assert words in own.action
