"""Whether a kernel's name says that it belongs to the forward or to the backward pass."""

from __future__ import annotations

from typing import Final

from traceprof.model.kernel_names.parsing import parse_name, words_of
from traceprof.model.patterns import pattern

__all__ = ["direction_of"]

_BACKWARD: Final = pattern(
    r"\b(bwd|backward|bw|bprop|bp\d?|wrw|wr w)\b|[dw]grad|\bd?grad\b|gamma beta|\bdbias"
    r"|internal gradients|masked scale|bias ?grad|\bgrad (input|weight)|gradient|^reduce bn"
)
_FORWARD: Final = pattern(
    r"\b(fwd|forward|fw|fprop|fp)\b|update output|\d(fprop)\b|convolve|winograd forward"
    r"|^(cu apply|vectorized) \w+ norm|collect statistics|^welford|^rowwise moments"
    r"|^general layer norm|rms ?norm (quant )?kernel|cudnn .*relu|conv\dd grouped direct"
    r"|\bprefill|\bdecode with|^pod with kv|^fmha sm"
)


def direction_of(name: str) -> str:
    """Return "forward", "backward", or "" where the name does not tell."""
    taken = parse_name(name)
    first = [words_of(functor.replace("::", "_")) for functor in taken.functors[:2]]
    for words in (taken.words, *first):
        if _BACKWARD.search(words):
            return "backward"
        if _FORWARD.search(words):
            return "forward"
    return ""
