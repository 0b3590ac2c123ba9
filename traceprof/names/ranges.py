"""Names of ranges and operators: without unique parts, grouped, and as phases.

`emit_nvtx` gives almost every range a unique name ("aten::mm, op_id = 4711"). Functions here
process whole columns of names instead of one name after another.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import places_of
from traceprof.model.names import MOST_SHARED, Texts
from traceprof.model.table import Names, Table, objects
from traceprof.model.timing import TRACEPROF_DOMAIN

_DECORATIONS: Final = re.compile(
    r"(, (seq|op_id) = \d+|, sizes = \[[^=\n]*\]|, input_op_ids = [^=\n]*){1,4}$"
)
_PYPROF_FUNCTION: Final = re.compile(r"^\{'mod': '([^']*)', 'op': '([^']*)', .*\}$")
"""Range name from PyProf and similar tools: a dictionary with all arguments of a function."""
_PYPROF_CALLER: Final = re.compile(r"^\{'traceMarker': \['([^']*)'.*$")
"""Range name from PyProf around it: the call stack, outermost line first, which replaces it."""

_NUMBERED: Final = re.compile(r"(^|(?<=[\s#:=(\[,]))\d+(?=$|[\s#:=)\],])")
_OCCURRENCE_NUMBERS: Final = (
    # A hexadecimal address or number; "#12"; a step number, also "[3/100]".
    (r"\b0[xX][0-9a-fA-F]+\b", ""),
    (r"\s*#\s*\d+", ""),
    (
        r"((?:^|[^a-zA-Z])(?:[a-zA-Z]+_)?(?:[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch|(?:[Mm]icro_?)?"
        r"[Bb]atch))[\s_:=\[(/-]*\d+(?:\s*(?:/|of)\s*\d+)?(?:[\])]|\b)",
        r"\1",
    ),
)
"""Parts of a name that differ between occurrences, and their replacement."""

DECORATED: Final = ", seq = 0"
"""Placeholder for any decoration: no rule about names uses the numbers in it."""

_NUMBERED_ENDS: Final = (", op_id = ", ", seq = ")
_NUMBER_OF_DECORATION: Final = re.compile(r"(, (?:seq|op_id) = )\d+")
_LOOKS_AT_NUMBERS: Final = re.compile(
    r"(?<!(?<!\\)[A-Za-z_])(?<!\{)[0-9](?![0-9]*\})|\[[^\[\]]*[0-9]|\{(?!0,)|\\d(\\d|\{)"
)
"""Patterns that may distinguish numbers; not repetition counts, nor a digit after a letter."""

T = TypeVar("T")
UNCLAIMED: Final = "outside any phase"
PROFILER: Final = "profiler"
"""Stands for a phase if the profiler itself took the time."""
POST_TRAINING_PHASES: Final = (
    *(
        "rollout",
        "generation",
        "environment",
        "reward",
        "logprobs",
        "advantage",
        "weight_sync",
        "sleep_wake",
    ),
)
"""Phases of an iteration of post-training that are not part of an update, except "update".

rollout: a rollout in an environment, outside its steps and outside generation. environment: steps
of an environment. logprobs: forward passes without gradients of the policy or
the reference model. weight_sync: the new weights are sent to the rollout engine. sleep_wake: an
engine or a model frees its GPU memory or takes it back.
"""
UPDATE: Final = "update"
UPDATE_PHASES: Final = (UPDATE, "forward", "backward", "communication", "optimizer")
"""The phases that a summary of post-training adds up to the update."""
PHASES: Final = (
    *("data", "h2d", "forward", "eval", "backward", "communication", "optimizer"),
    *POST_TRAINING_PHASES,
    UPDATE,
    PROFILER,
)
PHASE_WORDS: Final = {
    "logprobs": "log-probabilities",
    "weight_sync": "weight synchronization",
    "sleep_wake": "sleep and wake",
}
"""Phases in words, where the word differs from the name."""
WINDOW: Final = "traceprof.window"
"""The range of the embedded recorder around the recorded part."""
CYCLE: Final = "traceprof.cycle"
"""The range around one of several recordings of a process; nothing is recorded between them."""
PROFILER_RANGES: Final = ("traceprof.window.start", "traceprof.window.stop")
"""Ranges in which the embedded recorder opens and closes its windows."""
_PHASE_OF_TRACEPROF_RANGE: Final = {
    "data": "data",
    "h2d": "h2d",
    "forward": "forward",
    "eval": "eval",
    "backward": "backward",
    "optimizer": "optimizer",
    "zero_grad": "optimizer",
    **dict(zip((*POST_TRAINING_PHASES, UPDATE), (*POST_TRAINING_PHASES, UPDATE), strict=True)),
    **dict.fromkeys(PROFILER_RANGES, PROFILER),
}
_POST_TRAINING_PATTERNS: Final = (
    (
        "generation",
        r"(\w+\.)?(transformers|vllm|sglang)[._]generate|rollout([ _](generat(e|ion)|step|phase))?"
        r"|rollouts|(generate|collect|sample)[ _](rollouts?|sequences|samples|completions"
        r"|trajectories|experience)|generation([ _](step|phase))?|make[ _]experience",
    ),
    ("environment", r"env(ironment)?[ _.]?step(s)?|step[ _](the[ _])?env(ironment)?s?"),
    (
        "reward",
        r"(\w+\.)?_?(compute|calculate|calc|get)[ _]rewards?|rewards?([ _](model|calculation"
        r"|computation|fn|func|function|processing|scoring))?|(compute[ _])?rm[ _]scores?",
    ),
    (
        "logprobs",
        r"((actor|ref(erence)?|old|policy|rollout)[ _])?(compute[ _]|forward[ _]|calculate[ _])?"
        r"((old|ref(erence)?|policy)[ _])?log[ _]?prob(s|abilities)?([ _]inference)?"
        r"|policy[ _]and[ _]reference[ _]logprobs|fwd[ _]logprobs[ _]values[ _]reward"
        r"|compute[ _]values|ref(erence)?[ _]forward",
    ),
    (
        "advantage",
        r"((compute|calculate|calc)[ _])?advantages?([ _](calculation|computation|estimation))?"
        r"|(compute|calc)[ _]advantages?[ _]and[ _]returns",
    ),
)
_PATTERNS_BESIDE_ROLLOUTS: Final = (
    ("generation", r"gen|generate"),
    ("eval", r"testing"),
    ("logprobs", r"ref|values"),
    ("advantage", r"adv"),
    (
        "weight_sync",
        r"(sync(hronize)?|transfer|broadcast|refit|send|push|update|load)[ _](and[ _]update[ _])?"
        r"((policy|model|actor|vllm|rollout)[ _])?(weights|params|parameters)"
        r"([ _]to[ _](vllm|rollout|sglang|inference)([ _]engines?)?)?"
        r"|weights?[ _](sync(hronization)?|transfer|broadcast|refit|update)"
        r"|prepare_for_generation/transfer_and_update_weights|update_weights_implementation"
        r"|broadcast_to_(vllm|inference_engines)",
    ),
    (
        "sleep_wake",
        r"(sleep|wake[ _]?up|(on|off|back)load)([ _](engine|rollout|actor|model|vllm))?"
        r"|(off|back)load_\w+_model_to_(cpu|gpu)",
    ),
    (
        "update",
        r"(update|train)[ _](the[ _])?(actor|critic|policy)|(actor|critic|policy)[ _](update|train"
        r"(ing)?)|train[ _]critic[ _]and[ _]policy|policy_critic_overlap_train"
        r"|(ppo|grpo)[ _](update|train(ing)?)",
    ),
)
"""Names that denote these phases only if other ranges name rollouts or log-probabilities.

Elsewhere, "gen" is the generator of a GAN, and "update weights" is the optimizer.
"""
_PHASE_PATTERNS: Final = (
    (
        "data",
        # "batch" by itself denotes a step.
        r"((get|load(ing)?|fetch(ing)?|read(ing)?|next|wait(ing)?( for)?)[ _]?(the[ _])?"
        r"(next[ _])?(data|batch|inputs?)|data"
        r"|(data|batch|input)[ _]?(load(ing|er)?|fetch(ing)?|wait(ing)?)"
        r"([ _.](wait|next|iter(ation)?))?)"
        r"|enumerate\(DataLoader\)#.*",
    ),
    (
        "h2d",
        r"(cuda)?(memcpy|copy|copies|transfer)?[ _]?(h2d|htod|host[ _]?(to|2)[ _]?device)"
        r"([ _]?(memcpy|copy|copies|transfers?))?"
        r"|((copy|copying|move|moving|transfer|send)[ _])?((the[ _])?(data|batch|inputs?)[ _])?"
        r"to[ _](the[ _])?(gpu|device|cuda)"
        r"|(data|batch|inputs?)[ _](copy|copies|copying|transfers?|move)"
        r"([ _]to[ _](gpu|device|cuda))?"
        r"|(copy|copying|transfer|move)[ _](the[ _])?(data|batch|inputs?)",
    ),
    ("forward", r"(model[ _.])?(forward|fwd)([ _]?(pass|step))?|(Distributed|Fully)\w+\.forward"),
    ("eval", r"(eval(uat(e|ion))?|validat(e|ion))([ _]?(step|loop|epoch|pass))?"),
    ("backward", r"(loss[ _.])?(backward|bwd)([ _]?(pass|step))?"),
    (
        "communication",
        r"(nccl:|gloo:)?(all[ _]?reduce|reduce[ _]?scatter|all[ _]?gather"
        r"|comms?([ _.:-].*)?|communicat(e|ion|ions|ing)([ _.:-].*)?)",
    ),
    (
        "optimizer",
        r"(optimi[sz]er?|opt)([ _.]?step)?|(weight|param(eter)?)s?[ _]update"
        r"|update[ _](the[ _])?(weight|param(eter)?)s"
        r"|((optimi[sz]er|opt)[ _.])?zero[ _]?grad(#.*)?|Optimizer\.(step|zero_grad)#.*",
    ),
    *_POST_TRAINING_PATTERNS,
)
_METHOD_OF_WORKER: Final = re.compile(
    r"(?:\w*worker(?:_v\d+)?(?:_extension|_impl)?/|(?P<is_class>\w*(?:Trainer|Maker|SamplesGenerator)"
    r"\.))(?P<method>\w+)",
    re.IGNORECASE,
)
"""Names of methods of workers in post-training: NeMo RL's "policy_worker/train", TRL's classes."""
_OF_WORKERS: Final = (
    ("generation", r"_generate(_\w+)?|generate_samples|make_experience\w*"),
    ("logprobs", r"(get|compute)_\w*log_?prob(s|abilities)?|_?get_per_token_logps\w*"),
    ("reward", r"_calculate_rewards"),
    (
        "weight_sync",
        r"update_weights(_from|_via|_by)?_\w+|broadcast_(weights|to)_\w+|sync_weights"
        r"|stream_weights_\w+",
    ),
    ("sleep_wake", r"(off|on)load_\w+|sleep|wake_up"),
)
_OF_NAMED_WORKERS: Final = (
    ("generation", r"generate(_\w+)?"),
    ("update", r"train(_presharded|_\w*batch)?"),
)
_beside_rollouts: Final = cache(
    lambda: [(p, re.compile(text, re.IGNORECASE)) for p, text in _PATTERNS_BESIDE_ROLLOUTS]
)
_OF_ROLLOUTS: Final = frozenset(("generation", "logprobs", "reward"))
_NAMED_BY_PROGRAMS: Final = frozenset((*POST_TRAINING_PHASES, UPDATE))
_phase_patterns: Final = cache(  # compiling takes long
    lambda: [(phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in _PHASE_PATTERNS]
)


@dataclass(eq=False)
class _PerNames(Generic[T]):
    """Cache a function of an array of names for the lifetime of that array.

    The ranks of a run share these arrays (`traceprof.model.names`).
    """

    function: Callable[..., T]
    known: dict[tuple[Any, ...], tuple[weakref.ref[Texts], T]] = field(default_factory=dict)

    def __call__(self, names: Texts, *more: Hashable) -> T:
        key = id(names), *more
        found = self.known.get(key)
        if found is not None and found[0]() is names:
            return found[1]
        result = self.function(names, *more)
        self.known[key] = weakref.ref(names, lambda _: self.known.pop(key, None)), result
        return result


@lru_cache(maxsize=1 << 12)
def plain_name(name: str) -> str:
    """Return a name without the additions of `emit_nvtx`: sequence and operator numbers, shapes.

    A PyProf dictionary becomes its function ("torch.nn.functional.linear"), a PyProf stack its
    outermost line of the program ("train.py:34").
    """
    plain = _DECORATIONS.sub("", name) if ", " in name else name
    if not plain.startswith("{'"):
        return plain
    return _PYPROF_CALLER.sub(r"\1", _PYPROF_FUNCTION.sub(r"\1.\2", plain))


def plain_names(names: Names) -> Names:
    """Return the plain names of a column, with a sorted dictionary; parses distinct names only."""
    distinct, codes = plain_categories(names.texts)
    place = names.by_text(codes)
    if len(names) < len(codes):
        is_used = np.bincount(place, minlength=len(distinct)) > 0
        distinct, place = distinct[is_used], (np.cumsum(is_used) - 1)[place]
    return Names(place, distinct)


def unnumbered_names(names: Names) -> Names:
    """Return the plain names of a column without standalone numbers.

    "step 12" and "step 13" both become "step *". Numbers in words stay: "layer_3", "conv2d".
    """
    plain = plain_names(names)
    texts = [_NUMBERED.sub("*", name) for name in plain.texts.tolist()]
    return Names.coded(texts, plain.packed, is_sorted=True)


def plain_categories(names: Texts) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Return the sorted distinct plain names among ``names``, and each name's index in them."""
    distinct, codes, _ = _plain(names)
    return distinct, codes


@_PerNames
def _plain(names: Texts) -> tuple[Texts, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the sorted distinct plain names, each name's index, and whether the two differ."""
    merged = _with_last_number_zeroed(names)
    plain = objects(map(plain_name, merged.texts))
    distinct, differs = Names.of(plain), np.asarray(merged.texts != plain, np.bool_)
    return distinct.texts, merged.by_text(distinct.codes), merged.by_text(differs)


@_PerNames
def common_categories(names: Texts) -> tuple[Texts, npt.NDArray[np.int64]]:
    """Return the sorted distinct common names among ``names``, and each name's index in them.

    A common name is a plain name without step numbers, occurrence numbers, and addresses: "step 12"
    and "step 13" both become "step". Numbers of layers and similar things stay.
    """
    plain, place = plain_categories(names)
    plain_texts = plain
    for pattern, instead in _OCCURRENCE_NUMBERS:
        plain = objects(map(partial(re.compile(pattern).sub, instead), plain))
    # A name that consists only of a number becomes "#".
    bare = objects(name.strip() for name in plain)
    distinct = Names.of(np.where((bare == "") & (plain_texts != ""), "#", bare))
    return distinct.texts, distinct.codes[place]


def codes_containing(names: Texts, words: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return which of ``names`` contain one of ``words``, ignoring case."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    return np.flatnonzero(are_matched(names, pattern))


def are_matched(names: Texts, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return which of ``names`` contain a match of ``pattern``.

    Names that differ only in decorations are searched once.
    """
    return _are_matched(names, pattern) if len(names) <= MOST_SHARED else _matches(names, pattern)


def _matches(names: Texts, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    if _LOOKS_AT_NUMBERS.search(pattern.pattern):
        found = (pattern.search(name) is not None for name in names)
        return np.fromiter(found, np.bool_, len(names))
    merged = _with_numbers_zeroed(names)
    of_each = [pattern.search(name) is not None for name in merged.texts]
    return merged.by_text(np.array(of_each, np.bool_))


_are_matched: Final = _PerNames(_matches)


def numbers_in(names: Texts, pattern: re.Pattern[str]) -> npt.NDArray[np.int64]:
    """Return the number in the group "number" of ``pattern`` for each name; -1 without a match.

    The group must match integers of at most 18 digits.
    """
    numbers = (int(match["number"]) if match else -1 for match in map(pattern.search, names))
    return np.fromiter(numbers, np.int64, len(names))


@_PerNames
def _with_last_number_zeroed(names: Texts) -> Names:
    """Return the names with 0 as the number of a decoration at the end."""
    place, numbered = dict[str, int](), dict[str, int]()
    codes = []
    for text in names:
        bare = text.rstrip("0123456789")
        if text is bare or (code := numbered.get(bare)) is None:
            is_numbered = text is not bare and bare.endswith(_NUMBERED_ENDS)
            code = place.setdefault(f"{bare}0" if is_numbered else text, len(place))
            if is_numbered:
                numbered[bare] = code
        codes.append(code)
    return Names(np.array(codes, np.int64), place)


@_PerNames
def _with_numbers_zeroed(names: Texts) -> Names:
    """Return the names with 0 for all numbers in decorations: see `DECORATED`."""
    at_end = _with_last_number_zeroed(names)
    merged = (_NUMBER_OF_DECORATION.sub(r"\g<1>0", name) for name in at_end.texts)
    return Names.coded(merged, at_end.packed)


@lru_cache(maxsize=1 << 16)  # the files of a run share their names
def phase_of(name: str, domain: str) -> str | None:
    """Return the phase of a range with this name; None if it denotes no phase."""
    is_by_traceprof, plain = domain == TRACEPROF_DOMAIN, name.strip(" #")
    if is_by_traceprof:
        # Optimizers after the first have a number.
        plain = name.partition("#")[0]
        if name.startswith("comm:"):
            return "communication"
        if plain in _PHASE_OF_TRACEPROF_RANGE:
            return _PHASE_OF_TRACEPROF_RANGE[plain]
    method = _METHOD_OF_WORKER.fullmatch(plain)
    found = _phase_of_worker(method) if method is not None else None
    found = found or next(
        (phase for phase, pattern in _phase_patterns() if pattern.fullmatch(plain)), None
    )
    # A program may name its phases of post-training with traceprof.range().
    return found if not is_by_traceprof or found in _NAMED_BY_PROGRAMS else None


def _phase_of_worker(match: re.Match[str]) -> str | None:
    """Return the phase of a method of a worker of post-training; None for other methods."""
    patterns = _OF_WORKERS if match["is_class"] else (*_OF_WORKERS, *_OF_NAMED_WORKERS)
    return next((phase for phase, text in patterns if re.fullmatch(text, match["method"])), None)


def phases_of_ranges(ranges: Table) -> npt.NDArray[np.int64]:
    """Return, for each range, the index of its phase in `PHASES`; -1 if it denotes none."""
    names, domains = ranges["name"], ranges["domain"]
    plain, code, is_decorated = _plain(names.texts)
    # The kind of a name: its plain name, and whether it has decorations.
    kind = names.by_text(2 * code + is_decorated)
    n_domains = max(len(domains.texts), 1)
    place, distinct = places_of(kind * n_domains + domains.codes)
    pairs = [divmod(pair, n_domains) for pair in distinct]
    texts = [plain[kind_of // 2] + (DECORATED if kind_of % 2 else "") for kind_of, _ in pairs]
    phases = [
        phase_of(name, domains.texts[domain])
        for name, (_, domain) in zip(texts, pairs, strict=True)
    ]
    if not _OF_ROLLOUTS.isdisjoint(phases):
        for i, name in enumerate(texts):
            matches = (
                p for p, pattern in _beside_rollouts() if pattern.fullmatch(name.strip(" #"))
            )
            phases[i] = next(matches, phases[i])
    found = np.array([-1 if phase is None else PHASES.index(phase) for phase in phases], np.int64)
    return place.pick(found)


def in_phase(phase: str) -> str:
    """Return the words for the place {phase} of a note: "in forward", but "outside any phase"."""
    return "{phase}" if phase.startswith(UNCLAIMED) else "in {phase}"
