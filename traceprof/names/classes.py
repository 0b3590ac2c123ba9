"""The class of each kernel, by its name: the user's rules, its identifier, its functor, its scope.

In this order, the first that tells it:

1. the user's rules, sought in the whole name as it is shown;
2. of a wrapper (`WRAPPERS`) the functors, outermost first, else the class of the wrapper;
3. the few namespaces that decide whatever the identifier says (`DECIDING_SCOPES`);
4. the words of the identifier (`IDENTIFIERS`: ``RMSNormKernel`` is ``rms norm kernel``, so that
   ``eigen meta kernel`` holds no ``take`` and ``tensor transform`` no ``sort``);
5. the namespaces that decide where it does not (`SCOPES`);
6. ``other``.

A pattern names a family of kernels, never one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.errors import UsageError
from traceprof.files import parse_toml
from traceprof.model.activity import Activity
from traceprof.names.parsing import KernelName, parse_name, pattern, words_of


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names in which ``expression`` is found are of the class ``activity``."""

    activity: Activity
    expression: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Identifiers, with scope, of kernels that apply a functor, which decides among ``classes``.

    Where it does not the kernel is of the class ``otherwise``.
    """

    expression: re.Pattern[str]
    otherwise: Activity
    classes: frozenset[Activity]


def _words(activity: Activity, *alternatives: str) -> Pattern:
    return Pattern(activity, pattern("|".join(alternatives)))


def _wrapper(expression: str, otherwise: Activity, *classes: Activity) -> Wrapper:
    return Wrapper(pattern(expression), otherwise, frozenset(classes))


_A = Activity

_COMPILED: Final = (
    # Inductor lists all operators of the piece of graph, also those that ran elsewhere.
    _words(_A.ATTENTION, r"^triton tem fused .*attention"),
    _words(_A.CONVOLUTION, r"^triton tem fused .*convolution"),
    _words(_A.GEMM, r"^triton tem fused"),
    _words(_A.SOFTMAX, r"^triton (red|per) fused .*softmax"),
    _words(_A.LOSS, r"^triton (red|per) fused .*(nll loss|cross entropy)"),
    _words(
        _A.NORMALISATION,
        r"^triton (red|per) fused .*(layer|group|batch|instance|rms) norm",
        r"^triton (red|per) fused .*(var mean|mean .*pow)",
    ),
    _words(_A.REDUCTION, r"^triton (red|per) ", r"^nvfuser (reduction|\w+ persistent)"),
    _words(
        _A.LAYOUT,
        r"^triton poi fused( (to copy|copy|cat|slice|select|view|reshape|unsafe view|clone|split"
        r"|permute|transpose|t|expand|stack|unbind|unsqueeze|squeeze|as strided|constant pad nd"
        r"|repeat|flip|roll))+( \d+)?$",
    ),
    _words(_A.OPTIMIZER, r"^triton for fused"),
    _words(_A.ELEMENTWISE, r"^triton poi ", r"^nvfuser pointwise"),
)

_MOVING: Final = (
    _words(
        _A.MEMORY,
        r"^mem(cpy|set)",
        r"^(hip|amd) ?mem(cpy|set)",
        r"rocclr (copy|fill) buffer",
        r"^copy (host|device) to (host|device)",
        r"^(clean|clear|zero|reset) .*buffer",
    ),
    _words(_A.MOE, r"dispatch layout", r"(dispatch|combine) .*epilogue"),
    _words(
        _A.COMMUNICATION,
        r"^(nccl|rccl|hccl|msccl)",
        r"\ball ?reduce|\ball ?gather|\breduce ?scatter|\ball ?to ?all",
        r"cross device reduce|\b(one|two) ?shot\b|multimem|lamport|symm(etric)? ?mem",
        r"nvshmem|rocshmem|userbuffers",
        r"\bsend ?recv|\b(push|pull) ?(send|recv)|\bpush pull|\b(put|wait) signal",
        r"^barrier|\bdevice sync\b|^(producer|consumer)( batch)? kernel",
        r"^(cached )?notify (dispatch|combine)|^(dispatch|combine)( kernel)?$",
        r"\b(dispatch|combine) impl$",
    ),
)

_OUTSIDE: Final = (
    # No work of a network, or of none of the classes: before what their names also mention.
    _words(
        _A.OTHER,
        r"upsampl|\bresize|grid sampl|interpolat|roi align|\bnms\b",
        r"trsm|trsv|trtri|triangular|getr[fs]|potr[fs]|geqr|larf|syev|gesv|ipiv|laswp",
        r"\bchunk (scan|state|cumsum)|selective scan|state passing",
        r"tensor ?maps",
    ),
)

_NETWORK: Final = (
    _words(_A.FFT, r"\bi?fft|fft\b|fft\d"),
    _words(_A.RECURRENT, r"\b(rnn|lstm|gru)\b|persist rnn"),
    _words(
        _A.MOE,
        r"\bf?moe|\bexperts?\b|\brout(ing|er)\b",
        r"\btop ?k (gating|softmax|with|sum|and)\b|\b(grouped|deepseek \w+) top ?k|\bno ?aux",
        r"^finalize (kernel|moe|mat ?mul)|expand input|row id map",
    ),
    _words(_A.ELEMENTWISE, r"\brope\b|\brotary"),
    _words(
        _A.LAYOUT,
        r"\b(append|reshape|concat|copy|store|set|write)\b.*\b(kv ?)?cache",
        r"\b(update|reindex|swap|gather)\b.*\b(kv ?)?cache|\bcopy blocks|\btoken pool",
        r"\bnchw to nhwc|\bnhwc to nchw|\btensor transform|^permut",
    ),
    _words(_A.RNG_DROPOUT, r"\brng\b|\bseed\b"),
    _words(
        _A.LOSS,
        r"entropy|\bxent|\bloss\b|\bnll\b|\bcriterion|^mse |\bsmooth l1|\bhuber|\bkl ?div|\bbce\b",
    ),
    _words(_A.SOFTMAX, r"soft ?max|normalized prob"),
    _words(
        _A.ATTENTION,
        r"flash|fmha|attention|attn|\bmha\b|\bmla\b|\bsdpa|\bmqa\b",
        r"kv ?cache|\bpaged|\bprefill|\bmerge states?|^sage|^thd ",
        r"^pa (fwd|bf16|fp8)|\bdelta (rule|net)|^fused recurrent",
        r"^chunk (fwd|bwd|gla|scaled dot|retention)",
    ),
    _words(
        _A.CONVOLUTION,
        r"\bconv(\dd?|\b|ol)|winograd|\bim\d?d?2 ?col|col2 ?im|depthwise|[a-z0-9]cudnn\b",
        r"implicit gemm|xmma fprop|\d(fprop|dgrad|wgrad)|\b(dgrad|wgrad)",
        r"^igemm (fwd|bwd|wrw)|gemm .*bwd (weight|data)|^mi ?open (conv|cv|sp3|gcn)",
        r"^compute .*(offsets kernel|pointers)",
    ),
    _words(
        _A.NORMALISATION,
        r"(batch|layer|group|instance|rms|spatial|qk|ada) ?norm",
        r"^ln |\bln (fwd|bwd)|\b[bg]n\b|gamma beta|welford|\blrn\b|^rowwise moments",
        r"internal gradients|\bfused params",
        r"(?<!lp )(?<!l2 )(?<!l1 )(?<!grad )\bnorm (fwd|bwd|forward|backward|kernel|quant|f\d)",
        r"compute grad input",
    ),
    _words(
        _A.QUANTISE,
        r"quant|\bamax|hadamard|\bcast (transpose|to fp|fp8|mxfp|nvfp|dbias|gated)",
        r"\b(token|channel|block|group) cast|swizzle .*scal|row ?scaling",
        r"(fp8|8bit|4bit|2bit)rowwise|(to|from) h?(fp8|int8|fp4|mxfp\d|nvfp4)\b|\bh?fp8 to",
        r"\bscales? (interleave|swizzle)",
    ),
    _words(
        _A.EMBEDDING,
        r"embedding|\bembs?\b|partials? .*segment|grad weight|sum and scatter",
        r"\blxu|bounds check indices|linearize|\bindice weights|lookup ?table",
    ),
    _words(
        _A.OPTIMIZER,
        r"adam|\bsgd|\blamb\b|adagrad|rms ?prop|\blars\b|novograd|\blion\b|optimi[sz]er|momentum",
        r"non finite|amp update scale|check finite",
    ),
    _words(
        _A.GEMM,
        r"gemm|gemv|mat ?mul|\bmm\b|\bbmm\b|\bmul mat|nvjet|\bcijk|split ?k ?reduce|xmma|tensorop",
        r"\bdot kernel|^reduce 1 ?block kernel|marlin|w8a8|wv ?split ?k|spm[mv]|csrm[mv]",
        r"\bsyrk|\bher2?k|\bger\b",
    ),
    _words(
        _A.RNG_DROPOUT,
        r"dropout|philox|random|bernoulli|distribution|curand|masked scale|multinomial|\brand\b",
        r"(uniform|normal|exponential) (and transform|kernel)|sampling|gen sequenced",
    ),
    _words(_A.ELEMENTWISE, r"^(\w+ )?elementwise kernel with index"),
    _words(
        _A.SORT_INDEX,
        r"\b(radix|bitonic|merge|block|key|arg|seg(mented)?|device|kv)? ?sort(?!ed)|search ?sorted",
        r"\bradix|top ?k|\bgather|\bscatter|\bindex|get rows",
        r"\bdevice (select|compact|partition|unique|run)",
        r"nonzero|\bunique|histogram|bucketize|masked select|\bpartition|\btake\b|merge ?path",
        r"\bblock merge|odd ?even",
    ),
    _words(_A.POOLING, r"pool(ing)?(\dd)?\b"),
    _words(
        _A.LAYOUT,
        r"transpose|permut|concat|\bcat\b|^split (?!k )|\bsplit (tensor|with)",
        r"\b(copy|copies|cpy)\b",
        r"shuffl|\bswap|convert \w+ to (thd|bshd|sbhd)|to (nchw|nhwc)|cnhw|\bpadding|unpad|padded",
        r"\bpad\b|\bpad\dd|dense to|\bslic|\bflip|\broll\b|reorder|flatten|\bstack|\brepeat",
        r"^tile\b",
    ),
    _words(
        _A.REDUCTION,
        r"reduc|\bsum\b|\bmean\b|\bscan|cumsum|cumprod|arg ?(max|min)|\bdbias|bias ?(grad|diff)",
        r"norm\b|log ?sum ?exp|segments?\b|\basum|\bnrm2|\biam(ax|in)|aminmax|lp norm",
        r"\bdevice scan",
    ),
    _words(
        _A.ELEMENTWISE,
        r"el(ement|t) ?wise|point ?wise|unary|binary|\bact\b|activation|vectorized|\bcwise",
        r"re ?lu\b|ge ?lu\b|si ?lu\b|\belu\b|relu|gelu|silu|swish|neuron|\w*glu\b|sigmoid|tanh",
        r"\bbias|\badd\b|\bmul\b|\bdiv\b|\bsub\b|\bpow\b",
        r"\bexp\b|\blog\b|\bsqrt|\babs\b|\bneg\b|fill|arange|\bwhere\b|clamp|\bscal\b|\bscale\b",
        r"\baxpb?y|\bop(\dd)? (generic )?tensor|tensor op\b|broadcast|bcast|\bmap plan|\btril",
        r"\btriu|convert|conversion",
        r"\bcast\b|\btransform\b|parallel for|\bfusion\b|\bzero|\bset\b|^(wrapped|loop) ",
        r"scale packed",
    ),
)

DECIDING_SCOPES: Final = (
    Pattern(_A.MOE, pattern(r"(^|::)moe::dev(::|$)")),
    Pattern(_A.CONVOLUTION, pattern(r"^xmma_cudnn(::|$)|^xmma\w*::.*implicit_gemm(::|$)")),
    Pattern(_A.GEMM, pattern(r"^xmma\w*(::|$)")),
)

IDENTIFIERS: Final = (*_COMPILED, *_MOVING, *_OUTSIDE, *_NETWORK)

SCOPES: Final = (
    Pattern(
        _A.COMMUNICATION,
        pattern(r"(^|::)(deep_ep|hybrid_ep|ep::)|(^|::)(inter|intra)node|nvshmem|rocshmem"),
    ),
    Pattern(_A.MOE, pattern(r"(^|::)moe(::|$)")),
    Pattern(_A.FFT, pattern(r"(^|::)([sd]p)?(Radix|Vector|VectorFFT)\d|(^|::)\w*fft\b")),
    Pattern(_A.CONVOLUTION, pattern(r"cudnn::(cnn|winograd|\w*::?gemm|gemm)")),
    Pattern(_A.GEMM, pattern(r"(^|::)(gemvx|gemv|epilogue|cublas\w*)(::|$)")),
)

_OF_ELEMENTS: Final = (
    _A.LAYOUT,
    _A.LOSS,
    _A.NORMALISATION,
    _A.RNG_DROPOUT,
    _A.SOFTMAX,
    _A.QUANTISE,
    _A.EMBEDDING,
)
_OF_ALGORITHMS: Final = (_A.REDUCTION, _A.SORT_INDEX, _A.LAYOUT, _A.ELEMENTWISE, _A.RNG_DROPOUT)

WRAPPERS: Final = (
    _wrapper(
        r"(^|::)(vectorized_|unrolled_|legacy_)*elementwise_kernel(_manual_unroll\w*"
        r"|_for_multi_outputs)?$|(^|::)kernelPointwiseApply\d$",
        _A.ELEMENTWISE,
        *_OF_ELEMENTS,
    ),
    _wrapper(r"(^|::)multi_tensor_apply_kernel$", _A.OPTIMIZER, _A.REDUCTION, _A.QUANTISE),
    _wrapper(r"^cutlass\w*cudnn\w*::(Kernel2?|device_kernel)$", _A.CONVOLUTION, _A.ATTENTION),
    _wrapper(
        r"^(cutlass\w*::)?(Kernel2?|device_kernel)$", _A.GEMM, _A.ATTENTION, _A.CONVOLUTION, _A.GEMM
    ),
    _wrapper(r"(^|::)kentry$", _A.OTHER, *(set(Activity) - {_A.OTHER, _A.ELEMENTWISE})),
    _wrapper(r"(^|::)mxnet_generic_kernel(_ex)?$", _A.ELEMENTWISE, *_OF_ELEMENTS),
    _wrapper(
        r"(^|::)EigenMetaKernel(_\w+)?$",
        _A.ELEMENTWISE,
        _A.ELEMENTWISE,
        _A.REDUCTION,
        _A.LAYOUT,
        _A.CONVOLUTION,
        _A.RNG_DROPOUT,
    ),
    _wrapper(
        r"(^|::)(trampoline_kernel|_kernel_agent|static_kernel|transform_kernel)$",
        _A.OTHER,
        *_OF_ALGORITHMS,
    ),
)


_FORMER: Final = {
    "indexing": Activity.SORT_INDEX,
    "sorting": Activity.SORT_INDEX,
    "random": Activity.RNG_DROPOUT,
    "other_compute": Activity.OTHER,
    "device_memory": Activity.MEMORY,
}
"""What classes were called before: rules that name them still hold."""


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernels whose name contains ``pattern`` do ``activity``."""

    activity: Activity
    pattern: re.Pattern[str]


def parse_rules(text: str) -> tuple[KernelRule, ...]:
    """Return the user's rules in the TOML ``text``, in the order in which they stand there.

    The file holds, in the order of precedence::

        [[rule]]
        activity = "communication"
        pattern = "my_ring_kernel"

    Raises:
        UsageError: not TOML, an activity that does not exist, or a pattern that is not valid.
    """
    tables = parse_toml(text, "rules").get("rule", [])
    if not isinstance(tables, list):
        raise UsageError("rules: expected [[rule]] tables")
    return tuple(_parse_rule(table) for table in tables)


def _parse_rule(table: object) -> KernelRule:
    told = table if isinstance(table, dict) else {}
    if not all(isinstance(told.get(name), str) for name in ("activity", "pattern")):
        raise UsageError("rules: every [[rule]] needs an activity and a pattern")
    try:
        activity = _FORMER.get(told["activity"]) or Activity(told["activity"])
    except ValueError as error:
        known = ", ".join(activity.value for activity in Activity)
        raise UsageError(
            f"rules: unknown activity {told['activity']!r}: expected one of {known}"
        ) from error
    try:
        pattern = re.compile(told["pattern"], re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"rules: pattern {told['pattern']!r}: {error}") from error
    return KernelRule(activity, pattern)


def classify(names: pd.Categorical, rules: Sequence[KernelRule] = ()) -> pd.Categorical:
    """Return the activity of each kernel, ``rules`` first; one look per distinct name."""
    found = [class_of(str(name), rules).value for name in names.categories]
    distinct = sorted(set(found))
    place = {activity: code for code, activity in enumerate(distinct)}
    codes = np.array([place[activity] for activity in found], np.int64)
    return pd.Categorical.from_codes(
        codes[names.codes] if len(codes) else names.codes, pd.Index(distinct, dtype=object)
    )


def class_of(name: str, rules: Iterable[KernelRule] = ()) -> Activity:
    """Return what a kernel of this name does."""
    for rule in rules:
        if rule.pattern.search(name):
            return rule.activity
    return _class_of(parse_name(name))


def _class_of(name: KernelName) -> Activity:
    whole = f"{name.scope}::{name.identifier}" if name.scope else name.identifier
    for wrapper in WRAPPERS:
        if wrapper.expression.search(whole):
            return _applied(wrapper, name.functors)
    return (
        _first(DECIDING_SCOPES, name.scope)
        or _first(IDENTIFIERS, name.words)
        or _first(SCOPES, name.scope)
        or Activity.OTHER
    )


def _applied(wrapper: Wrapper, functors: Iterable[str]) -> Activity:
    patterns = [pattern for pattern in IDENTIFIERS if pattern.activity in wrapper.classes]
    words = (words_of(functor.rpartition("::")[2]) for functor in functors)
    return next(filter(None, (_first(patterns, own) for own in words)), wrapper.otherwise)


def _first(patterns: Iterable[Pattern], text: str) -> Activity | None:
    return next((p.activity for p in patterns if p.expression.search(text)), None)
