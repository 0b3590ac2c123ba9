"""The class of each kernel, derived from its name.

The first rule that matches decides, in this order:

1. the user's rules, searched in the whole name as shown;
2. for a wrapper (`WRAPPERS`), its functors, outermost first, otherwise the wrapper's own class;
3. the few namespaces that decide regardless of the identifier (`DECIDING_SCOPES`);
4. the words of the identifier (`IDENTIFIERS`: ``RMSNormKernel`` is ``rms norm kernel``, so that
   ``eigen meta kernel`` contains no ``take`` and ``tensor transform`` no ``sort``);
5. the namespaces that decide if the identifier does not (`SCOPES`);
6. ``other``.

A pattern describes a family of kernels, never a single kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from traceprof.errors import UsageError
from traceprof.files import parse_toml
from traceprof.model.activity import Activity
from traceprof.model.table import Names, objects
from traceprof.names.parsing import parse_name, pattern, shortened_numbers, words_of
from traceprof.names.user_patterns import UserPattern, user_pattern


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernels whose name matches ``pattern`` have the class ``activity``."""

    activity: Activity
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class UserRule:
    """A rule of the user: kernels whose name matches ``pattern`` have the class ``activity``."""

    activity: Activity
    pattern: UserPattern


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Kernels (identifier with scope) that apply a functor, which decides among ``classes``.

    If the functor does not decide, the kernel has the class ``otherwise``.
    """

    pattern: re.Pattern[str]
    otherwise: Activity
    classes: frozenset[Activity]


def _rules(text: str) -> tuple[KernelRule, ...]:
    """Return the rules in ``text``, one per line; a line that begins with | continues the last."""
    lines = re.sub(r"(?m)^#.*\n", "", text).replace("\n    |", "|").strip().splitlines()
    named = (line.partition(": ") for line in lines)
    return tuple(KernelRule(Activity(activity), pattern(words)) for activity, _, words in named)


IDENTIFIERS: Final = _rules(
    r"""
# Inductor lists all operators of the graph piece, even those that ran elsewhere.
attention: ^triton tem fused .*attention
convolution: ^triton tem fused .*convolution
gemm: ^triton tem fused
softmax: ^triton (red|per) fused .*softmax
loss: ^triton (red|per) fused .*(nll loss|cross entropy)
normalization: ^triton (red|per) fused .*(layer|group|batch|instance|rms) norm
    |^triton (red|per) fused .*(var mean|mean .{0,99}pow)
reduction: ^triton (red|per)[ ]|^nvfuser (reduction|\w+ persistent)
layout: ^triton poi fused( (to copy|copy|cat|slice|select|view|reshape|unsafe view|clone|split
    |permute|transpose|t|expand|stack|unbind|unsqueeze|squeeze|as strided|constant pad nd
    |repeat|flip|roll))+( \d+)?$
optimizer: ^triton for fused
elementwise: ^triton poi[ ]|^nvfuser pointwise
memory: ^mem(cpy|set)|^(hip|amd) ?mem(cpy|set)|rocclr (copy|fill) buffer
    |^copy (host|device) to (host|device)|^(clean|clear|zero|reset) .*buffer
moe: dispatch layout|(dispatch|combine) .{0,99}epilogue
communication: ^(nccl|rccl|hccl|msccl)|\ball ?reduce|\ball ?gather|\breduce ?scatter|\ball ?to ?all
    |cross device reduce|\b(one|two) ?shot\b|multimem|lamport|symm(etric)? ?mem
    |nvshmem|rocshmem|userbuffers
    |\bsend ?recv|\b(push|pull) ?(send|recv)|\bpush pull|^(put|wait) signal
    |^barrier|\bdevice sync\b|^(producer|consumer)( batch)? kernel
    |^(cached )?notify (dispatch|combine)|^(dispatch|combine)( kernel)?$|\b(dispatch|combine) impl$
    |\ba2 ?a\b.{0,99}\b(dispatch|combine|send|recv)|\bep (dispatch|combine)|\bmoe comm\b|\ballto all
    |\ba2 ?av\b|\ball2 ?all|\b(dispatch|combine) token|\bdeep ?ep\b.{0,99} (dispatch|combine)
    |^exchange split|^stream write value
# Not network work, or no class. Must precede the rules that also match these names.
other: upsampl|\bresize|grid sampl|interpolat|roi align|\bnms\b
    |trsm|trsv|trtri|triangular|getr[fs]|potr[fs]|geqr|larf|syev|gesv|ipiv|laswp
    |\bchunk (scan|state|cumsum)|selective scan|state passing|tensor ?maps
fft: \bi?fft|fft\b|fft\d
recurrent: \b(rnn|lstm|gru)\b|persist rnn
moe: \bf?moe|\bexperts?\b|\brout(ing|er)\b
    |\btop ?k (gating|softmax|with|sum|and)\b|\b(grouped|deepseek \w+) top ?k|\bno ?aux
    |^finalize (kernel|moe|mat ?mul)|expand input|row id map
elementwise: \brope\b|\brotary
layout: \b(append|reshape|concat|copy|store|set|write)\b.{0,99}\b(kv ?)?cache
    |\b(update|reindex|swap|gather)\b.{0,99}\b(kv ?)?cache|\bcopy blocks|\btoken pool
    |\bnchw to nhwc|\bnhwc to nchw|\btensor transform|^permut
rng_dropout: \brng\b|\bseed\b
loss: entropy|\bxent|\bloss\b|\bnll\b|\bcriterion|^mse |\bsmooth l1|\bhuber|\bkl ?div|\bbce\b
softmax: soft ?max|normalized prob
attention: flash|fmha|attention|attn|\bmha\b|\bmla\b|\bsdpa|\bmqa\b
    |kv ?cache|\bpaged|\bprefill|\bmerge states?|^sage|^thd[ ]
    |^pa (fwd|bf16|fp8)|\bdelta (rule|net)|^fused recurrent
    |^chunk (fwd|bwd|gla|scaled dot|retention)
convolution: \bconv(\dd?|\b|ol)|winograd|\bim\d?d?2 ?col|col2 ?im|depthwise|[a-z0-9]cudnn\b
    |implicit gemm|xmma fprop|\d(fprop|dgrad|wgrad)|\b(dgrad|wgrad)
    |^igemm (fwd|bwd|wrw)|gemm .{0,99}bwd (weight|data)|^mi ?open (conv|cv|sp3|gcn)
    |^compute .*(offsets kernel|pointers)
normalization: (batch|layer|group|instance|rms|spatial|qk|ada) ?norm
    |^ln |\bln (fwd|bwd)|\b[bg]n\b|gamma beta|welford|\blrn\b|^rowwise moments
    |internal gradients|\bfused params
    |(?<!lp )(?<!l2 )(?<!l1 )(?<!grad )\bnorm (fwd|bwd|forward|backward|kernel|quant|f\d)
    |compute grad input
quantize: quant|\bamax|hadamard|\bcast (transpose|to fp|fp8|mxfp|nvfp|dbias|gated)
    |\b(token|channel|block|group) cast|swizzle .{0,99}scal|row ?scaling
    |(fp8|8bit|4bit|2bit)rowwise|(to|from) h?(fp8|int8|fp4|mxfp\d|nvfp4)\b|\bh?fp8 to
    |\bscales? (interleave|swizzle)
embedding: embedding|\bembs?\b|partials? .{0,99}segment|grad weight|sum and scatter
    |\blxu|bounds check indices|linearize|\bindice weights|lookup ?table
optimizer: adam|\bsgd|\blamb\b|adagrad|rms ?prop|\blars\b|novograd|\blion\b|optimi[sz]er|momentum
    |non finite|amp update scale|check finite
gemm: gemm|gemv|mat ?mul|\bmm\b|\bbmm\b|\bmul mat|nvjet|\bcijk|split ?k ?reduce|xmma|tensorop
    |\bdot kernel|^reduce 1 ?block kernel|marlin|w8a8|wv ?split ?k|spm[mv]|csrm[mv]
    |\bsyrk|\bher2?k|\bger\b
rng_dropout: dropout|philox|random|bernoulli|distribution|curand|masked scale|multinomial|\brand\b
    |(uniform|normal|exponential) (and transform|kernel)|sampling|gen sequenced
elementwise: ^(\w+ )?elementwise kernel with index
sort_index: \b(radix|bitonic|merge|block|key|arg|seg(mented)?|device|kv)? ?sort(?!ed)|search ?sorted
    |\bradix|top ?k|\bgather|\bscatter|\bindex|get rows
    |\bdevice (select|compact|partition|unique|run)
    |nonzero|\bunique|histogram|bucketize|masked select|\bpartition|\btake\b|merge ?path
    |\bblock merge|odd ?even
pooling: pool(ing)?(\dd)?\b
layout: transpose|permut|concat|\bcat\b|^split (?!k )|\bsplit (tensor|with)|\b(copy|copies|cpy)\b
    |shuffl|\bswap|convert \w+ to (thd|bshd|sbhd)|to (nchw|nhwc)|cnhw|\bpadding|unpad|padded
    |\bpad\b|\bpad\dd|dense to|\bslic|\bflip|\broll\b|reorder|flatten|\bstack|\brepeat|^tile\b
reduction: reduc|\bsum\b|\bmean\b|\bscan|cumsum|cumprod|arg ?(max|min)|\bdbias|bias ?(grad|diff)
    |norm\b|log ?sum ?exp|segments?\b|\basum|\bnrm2|\biam(ax|in)|aminmax|lp norm|\bdevice scan
elementwise: el(ement|t) ?wise|point ?wise|unary|binary|\bact\b|activation|vectorized|\bcwise
    |re ?lu\b|ge ?lu\b|si ?lu\b|\belu\b|relu|gelu|silu|swish|neuron|glu\b|sigmoid|tanh
    |\bbias|\badd\b|\bmul\b|\bdiv\b|\bsub\b|\bpow\b
    |\bexp\b|\blog\b|\bsqrt|\babs\b|\bneg\b|fill|arange|\bwhere\b|clamp|\bscal\b|\bscale\b
    |\baxpb?y|\bop(\dd)? (generic )?tensor|tensor op\b|broadcast|bcast|\bmap plan|\btril
    |\btriu|convert|conversion
    |\bcast\b|\btransform\b|parallel for|\bfusion\b|\bzero|\bset\b|^(wrapped|loop)[ ]|scale packed
"""
)

DECIDING_SCOPES: Final = _rules(
    r"""
communication: nvshmem|rocshmem
moe: (^|::)moe::dev(::|$)
convolution: ^xmma_cudnn(::|$)|^xmma\w*::.*implicit_gemm(::|$)
gemm: ^xmma\w*(::|$)
"""
)

SCOPES: Final = _rules(
    r"""
communication: (^|::)(deep_ep|hybrid_ep|ep::)|(^|::)(inter|intra)node
moe: (^|::)moe(::|$)
fft: (^|::)([sd]p)?(Radix|Vector|VectorFFT)\d|(^|::)\w*fft\b
convolution: cudnn::(cnn|winograd|\w*::?gemm|gemm)
gemm: (^|::)(gemvx|gemv|epilogue|cublas\w*)(::|$)
"""
)

_ELEMENTWISE_CLASSES: Final = "layout loss normalization rng_dropout softmax quantize embedding"
_ALGORITHM_CLASSES: Final = "reduction sort_index layout elementwise rng_dropout"
_ANY_CLASSES: Final = " ".join({*Activity} - {Activity.OTHER, Activity.ELEMENTWISE})

WRAPPERS: Final = tuple(
    Wrapper(pattern(expression), Activity(otherwise), frozenset(map(Activity, classes.split())))
    for expression, otherwise, classes in (
        (
            r"(^|::)(vectorized_|unrolled_|legacy_)*elementwise_kernel(_manual_unroll\w*"
            r"|_for_multi_outputs)?$|(^|::)kernelPointwiseApply\d$",
            "elementwise",
            _ELEMENTWISE_CLASSES,
        ),
        (r"(^|::)multi_tensor_apply_kernel$", "optimizer", "reduction quantize layout"),
        (r"^cutlass\w*cudnn\w{0,99}::(Kernel2?|device_kernel)$", "convolution", "attention"),
        (r"^(cutlass\w*::)?(Kernel2?|device_kernel)$", "gemm", "attention convolution gemm"),
        (r"(^|::)kentry$", "other", _ANY_CLASSES),
        (r"(^|::)mxnet_generic_kernel(_ex)?$", "elementwise", _ELEMENTWISE_CLASSES),
        (
            r"(^|::)EigenMetaKernel(_\w+)?$",
            "elementwise",
            "elementwise reduction layout convolution rng_dropout",
        ),
        (
            r"(^|::)(trampoline_kernel|_kernel_agent|static_kernel|transform_kernel)$",
            "other",
            _ALGORITHM_CLASSES,
        ),
    )
)

_FORMER_NAMES: Final = {
    "indexing": Activity.SORT_INDEX,
    "sorting": Activity.SORT_INDEX,
    "random": Activity.RNG_DROPOUT,
    "other_compute": Activity.OTHER,
    "device_memory": Activity.MEMORY,
}
"""Former class names, which are still valid in rules."""


def parse_rules(text: str) -> tuple[UserRule, ...]:
    """Return the user's rules in the TOML ``text``, in order of precedence.

    The format of the file::

        [[rule]]
        activity = "communication"
        pattern = "my_ring_kernel"

    Raises:
        UsageError: the text is not TOML, an activity does not exist, or a pattern is invalid.
    """
    tables = parse_toml(text, "rules").get("rule", [])
    if not isinstance(tables, list):
        raise UsageError("rules file: expected [[rule]] tables")
    return tuple(_parse_rule(table) for table in tables)


def _parse_rule(table: object) -> UserRule:
    fields = table if isinstance(table, dict) else {}
    if not all(isinstance(fields.get(name), str) for name in ("activity", "pattern")):
        raise UsageError("rules file: every [[rule]] table requires activity and pattern")
    try:
        activity = _FORMER_NAMES.get(fields["activity"]) or Activity(fields["activity"])
    except ValueError as error:
        known = ", ".join(activity.value for activity in Activity)
        raise UsageError(
            f"rules file: unknown activity {fields['activity']!r}: expected one of {known}"
        ) from error
    return UserRule(
        activity, user_pattern(fields["pattern"], "rules file: pattern", ignore_case=True)
    )


TRACED_GRAPH: Final = re.compile(r"CUDA graph \d+")
"""Name that readers give to a CUDA graph that was traced as a whole."""


def classify(names: Names, rules: Sequence[UserRule] = ()) -> Names:
    """Return the activity of each kernel, ``rules`` first. Each distinct name is examined once."""
    texts = names.texts.tolist()
    found = objects(class_of(name).value for name in texts)
    for rule in reversed(rules):
        found[rule.pattern.found_in(texts)] = rule.activity.value
    return Names.coded(found.tolist(), names.packed, is_sorted=True)


def class_of(name: str) -> Activity:
    """Return the class of a kernel by its name."""
    return _class_of(shortened_numbers(name))


@lru_cache(maxsize=1 << 14)  # the files of a run share their names
def _class_of(name: str) -> Activity:
    if TRACED_GRAPH.fullmatch(name):
        return Activity.CUDA_GRAPH
    parsed = parse_name(name)
    whole = f"{parsed.scope}::{parsed.identifier}" if parsed.scope else parsed.identifier
    for wrapper in WRAPPERS:
        if wrapper.pattern.search(whole):
            rules = [rule for rule in IDENTIFIERS if rule.activity in wrapper.classes]
            applied = (words_of(functor.rpartition("::")[2]) for functor in parsed.functors)
            classes = (_first_match(rules, words) for words in applied)
            return next(filter(None, classes), wrapper.otherwise)
    return (
        _first_match(DECIDING_SCOPES, parsed.scope)
        or _first_match(IDENTIFIERS, parsed.words)
        or _first_match(SCOPES, parsed.scope)
        or Activity.OTHER
    )


def _first_match(rules: Iterable[KernelRule], text: str) -> Activity | None:
    return next((rule.activity for rule in rules if rule.pattern.search(text)), None)
