"""Rules and findings: runs rules in order, settles their claims, and sums claims by loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import WORK, AbsentError, NotApplicableError, count_of
from traceprof.findings.claims import Claim, ClaimKind, Kind, Times
from traceprof.findings.context import Context
from traceprof.measures.idle.losses import LOSSES, find_losses, within
from traceprof.measures.steps.base import ITERATION, STEP, WINDOW
from traceprof.measures.workload import Vendor
from traceprof.model.results import Note
from traceprof.model.trace import RecordingCost
from traceprof.processes import PROGRESS

MINOR_RATIO: Final = 0.01
_MIN_LARGE_LOSS_RATIO: Final = 0.05
_WAITS: Final = "synchronizing"
_HOST_RULES: Final = (
    *("cpu_shortage", "host_memory_growth", "profiler_overhead", "slow_steps", "slower_steps"),
    "warmup",
)
"""Rules that analyze the host, so they do not need complete GPU activity."""
_CPU_RULES: Final = ("host_code", "launch_bound")
"""Rules on the CPU whose savings the cost of recording inflates."""
_INCOMPLETE: Final = "GPU activity is missing from the trace, so the idle time is unknown"

_RECORDING: Final = "The estimated cost of recording is subtracted, except from the upper bound."


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice.

    ``claims`` is the time that the finding is about. Only the part that no earlier finding has
    claimed counts for the finding and its saving. ``kind`` is the certainty of the saving.
    ``model`` is the assumption behind an estimate. ``one_time_ns`` is a one-time cost (None: the
    cost recurs). ``window`` is the worst place, as a value for ``--window``. ``ncu`` is a command
    that profiles a kernel of the finding. ``other_subjects`` lists subjects of other rules that
    have this problem as well. ``is_first``: the other findings can be effects of this one, or it
    ends the program, so it comes before them, whatever it saves.
    """

    title: Note
    claims: tuple[Claim, ...]
    kind: Kind
    evidence: tuple[Note, ...]
    action: str
    caveat: str
    model: Note | None = None
    one_time_ns: int | None = None
    window: str = ""
    ranges: tuple[str, ...] = ()
    ncu: str = ""
    other_subjects: tuple[str, ...] = ()
    is_first: bool = False


_BREAKS: Final = "Look for graph breaks (`TORCH_LOGS=graph_breaks`)"
_AMD_WORDS: Final = (
    ("cudaMem", "hipMem"),
    ("cudaMalloc", "hipMalloc"),
    ("cudaFree", "hipFree"),
    ("cudaHost", "hipHost"),
    ("CUDA graph", "HIP graph"),
    ("CUDA_MODULE_LOADING=EAGER", "HIP_ENABLE_DEFERRED_LOADING=0"),
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ("NCCL", "RCCL"),
    ("RCCL_", "NCCL_"),
    ("NVTX", "ROCTX"),
    ("tensor cores", "matrix cores"),
    ("nvidia-smi -q -d PCIE", "rocm-smi --showbus"),
    ("nvidia-smi topo -m", "rocm-smi --showtoponuma"),
    (
        "nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv -l 1",
        "watch -n 1 rocm-smi --showclocks --showpower --showtemp",
    ),
    ("nvidia-smi -pl WATTS", "rocm-smi --setpoweroverdrive WATTS"),
    ("(`nvidia-smi`)", "(`rocm-smi --showpids`)"),
)
"""Replacements for AMD GPUs. A text comes before texts that contain it. `torch.cuda` is unchanged,
because PyTorch uses this name for both vendors."""
_VENDOR_WORDS: Final[Mapping[Vendor, tuple[tuple[str, str], ...]]] = {
    Vendor.AMD: _AMD_WORDS,
    Vendor.OTHER: (
        ('CUDA graphs (`torch.compile(mode="reduce-overhead")`)', "`torch.compile`"),
        ("CUDA graph", "graph"),
    ),
}
_COMPILED_WORDS: Final = (
    ("Fuse them with `torch.compile`,", f"{_BREAKS}, so that `torch.compile` fuses these kernels,"),
    ("Fuse them: use `torch.compile`, fused", f"{_BREAKS}. Use fused"),
    (
        'use CUDA graphs (`torch.compile(mode="reduce-overhead")`)',
        'use CUDA graphs (`mode="reduce-overhead"` in your `torch.compile`)',
    ),
    ("use `torch.compile`, use fewer", f"{_BREAKS[0].lower()}{_BREAKS[1:]}, use fewer"),
)
"""Replacements for programs that use `torch.compile` already."""
_VLLM_GRAPHS: Final = "let vLLM use CUDA graphs (start it without `--enforce-eager`)"
_VLLM_WORDS: Final = (
    ('use CUDA graphs (`torch.compile(mode="reduce-overhead")`)', _VLLM_GRAPHS),
    ("use `torch.compile`, use fewer and larger operators", _VLLM_GRAPHS),
)
"""Replacements for programs in which vLLM runs the model."""
_BASE_WORDS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    ITERATION: (("step time", "iteration time"),),
    WINDOW: (("of step time", "of the analyzed time"), ("step time", "analyzed time")),
}
"""Replacements in sentences on shares of step time, for other bases."""


def in_words_of(
    vendor: Vendor,
    finding: Finding,
    base: str = STEP,
    is_compiled: bool = False,
    is_vllm: bool = False,
) -> Finding:
    """Return a finding in the terms of the GPU ``vendor`` and of the ``base`` of its shares.

    If the program ``is_compiled``, no advice is to compile it. If vLLM runs the model
    (``is_vllm``), its options replace those of PyTorch.
    """
    words = _VLLM_WORDS if is_vllm else ()
    for original, replacement in words + (_COMPILED_WORDS if is_compiled else ()):
        finding = replace(finding, action=finding.action.replace(original, replacement))
    if vendor not in _VENDOR_WORDS and base not in _BASE_WORDS:
        return finding

    def worded(note: Note) -> Note:
        return replace(note, text=_reworded(vendor, note.text, base))

    return replace(
        finding,
        title=worded(finding.title),
        evidence=tuple(map(worded, finding.evidence)),
        action=_reworded(vendor, finding.action),
        caveat=_reworded(vendor, finding.caveat),
        model=finding.model and worded(finding.model),
    )


def _reworded(vendor: Vendor, text: str, base: str = STEP) -> str:
    """Return ``text`` with the words of a vendor and a base."""
    for original, replacement in (*_VENDOR_WORDS.get(vendor, ()), *_BASE_WORDS.get(base, ())):
        text = text.replace(original, replacement)
    return text


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a rule checked nothing.

    ``is_lacking``: a problem is possible, but there is not enough data to find it. ``is_told``:
    people read it, because a program of this kind can have such a problem.
    """

    reason: str
    is_lacking: bool = True
    is_told: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. To add a rule, decorate a function with `rule` and add it to `RULES`.

    The order of `RULES` is the order in which rules claim time: the more specific rule first.
    ``needs`` are the tables that the rule requires. ``about`` is what the rule is about
    (`traceprof.findings.amounts`). ``show`` is the analysis with more details. ``check`` yields
    findings. It raises NotRecordedError with the reason if the trace lacks the data.
    """

    name: str
    subject: str
    summary: str
    needs: tuple[str, ...]
    about: str
    show: str
    check: Callable[[Context], Iterable[Finding]]


def rule(
    subject: str, summary: str, *needs: str, about: str = WORK, show: str
) -> Callable[[Callable[[Context], Iterable[Finding]]], Rule]:
    """Return a decorator that turns a check function into a rule with the function's name."""
    return lambda check: Rule(check.__name__, subject, summary, needs, about, show, check)


@dataclass(frozen=True, slots=True, eq=False)
class SettledFinding:
    """Finding ``number`` of its rule, with the time that it was granted.

    ``claimed_ratio`` is the claimed share of the base. ``saving_ratio`` is the share of the base
    that could be saved, and ``saving_ns`` is the same in ns per base. ``is_hidden``: other work
    determines the step time, so nothing is saved until that work is shorter. ``range_ns`` is the
    range of an estimated saving. ``base`` names the base, which is ``base_ns`` long.
    """

    rule: Rule
    number: int
    finding: Finding
    claims: tuple[Claim, ...]
    claimed_ratio: float
    saving_ratio: float
    saving_ns: int
    base: str
    base_ns: float
    range_ns: tuple[int, int] | None = None
    is_hidden: bool = False

    @property
    def weight(self) -> float:
        """The sort key: the saving, or the claimed share if nothing is saved per base."""
        if self.finding.kind in (Kind.NONE, Kind.ONCE):
            return self.claimed_ratio
        return self.saving_ratio

    @property
    def is_minor(self) -> bool:
        """Whether the finding is too small for the page."""
        is_shown = self.finding.kind is Kind.ONCE or (self.finding.is_first and not self.claims)
        return not is_shown and self.weight < MINOR_RATIO


def apply_rules(
    context: Context, rules: Iterable[Rule]
) -> tuple[list[SettledFinding], dict[str, WhyNot]]:
    """Return the findings in the order of their rules, and why other rules checked nothing."""
    found: list[SettledFinding] = []
    not_checked: dict[str, WhyNot] = {}
    vendor = context.software.vendor
    for checked in rules:
        try:
            _require(context, checked)
            findings = list(checked.check(context))
            if not findings and not count_of(context, checked.about):
                reason = _reworded(vendor, f"no {checked.about} in the analyzed time")
                not_checked[checked.name] = WhyNot(reason, is_lacking=False)
            for number, finding in enumerate(findings, 1):
                signs = context.software.is_compiled, context.software.is_vllm
                worded = in_words_of(vendor, finding, context.base.unit, *signs)
                if checked.name in _CPU_RULES:
                    worded = _without_recording(worded, context.ranks.info.recording)
                found.append(_settled(context, checked, number, worded))
        except NotRecordedError as error:
            not_checked[checked.name] = WhyNot(
                _reworded(vendor, str(error)),
                # A recorder that lacks a table leaves out a detail of the subject.
                is_lacking=not isinstance(error, AbsentError)
                and context.ranks.recorded.issuperset(checked.needs),
                is_told=not isinstance(error, NotApplicableError),
            )
        PROGRESS.done += 1
    return found, not_checked


def by_saving(found: Iterable[SettledFinding]) -> list[SettledFinding]:
    """Return the findings, the most important first."""
    return sorted(
        found,
        key=lambda one: (
            one.is_minor,
            not one.finding.is_first,
            one.weight < MINOR_RATIO,
            one.is_hidden,
            -one.weight,
        ),
    )


def _without_recording(finding: Finding, cost: RecordingCost | None) -> Finding:
    """Return ``finding`` without the share of its saving that recording took, as an estimate."""
    if cost is None or finding.kind not in (Kind.MEASURED, Kind.ESTIMATED):
        return finding
    least, most = cost.ratios

    def kept(claim: Claim) -> Claim:
        lower, upper = claim.between or (claim.saved_ratio, claim.saved_ratio)
        saved_ratio = claim.saved_ratio * (1 - (least + most) / 2)
        between = (min(saved_ratio, lower * (1 - most)), upper)
        return replace(claim, saved_ratio=saved_ratio, between=between)

    model = finding.model or Note("")
    return replace(
        finding,
        claims=tuple(map(kept, finding.claims)),
        kind=Kind.ESTIMATED,
        model=replace(model, text=f"{model.text} {_RECORDING}".strip()),
    )


def _require(context: Context, checked: Rule) -> None:
    """Raise NotRecordedError if the trace lacks a table or GPU activity that the rule needs."""
    context.ranks.require(*checked.needs)
    if checked.name not in _HOST_RULES and not context.is_idle_known:
        raise NotRecordedError(_INCOMPLETE)


def _settled(context: Context, settled_rule: Rule, number: int, finding: Finding) -> SettledFinding:
    """Return ``finding`` with the time that it gets, and take that time from the ledger."""
    claims = context.ledger.take(finding.claims)
    saves = finding.kind not in (Kind.NONE, Kind.ONCE)
    base, base_ns = context.base_of_claims(claims)
    return SettledFinding(
        rule=settled_rule,
        number=number,
        finding=finding,
        claims=claims,
        claimed_ratio=sum(map(context.claimed_ratio, claims)),
        saving_ratio=sum(map(context.saving_ratio, claims)) if saves else 0.0,
        saving_ns=context.saving_ns(claims) if saves else 0,
        range_ns=_range_ns(context, claims) if finding.kind is Kind.ESTIMATED else None,
        base=base,
        base_ns=base_ns,
    )


def _range_ns(context: Context, claims: Iterable[Claim]) -> tuple[int, int] | None:
    """Return the minimum and maximum saving of ``claims`` in ns; None if no claim has a range."""
    ends = [(claim, claim.between or (claim.saved_ratio,) * 2) for claim in claims]
    if all(claim.between is None for claim, _ in ends):
        return None
    least, most = (
        context.saving_ns([replace(claim, saved_ratio=ratios[i]) for claim, ratios in ends])
        for i in (0, 1)
    )
    return least, most


def losses_claimed(context: Context, found: Iterable[SettledFinding]) -> list[dict[str, object]]:
    """Return the rows of the table ``losses``: one per loss, the largest first."""
    analyzed_times = {device: context.analyzed_by_place[device] for device in context.devices}
    losses = find_losses(context.ranks)
    claims = [
        (settled.rule.name, claim.times)
        for settled in found
        for claim in settled.claims
        if claim.claim_kind is ClaimKind.LOST
    ]
    rows: list[tuple[int, dict[str, object]]] = []
    for loss in LOSSES:
        times = within(losses[loss], analyzed_times)
        total_ns = _total_ns(times)
        if not total_ns:
            continue
        by_rule: dict[str, int] = {}
        for name, claimed in claims:
            by_rule[name] = by_rule.get(name, 0) + _total_ns(within(times, claimed))
        claimers = [name for name, ns in by_rule.items() if ns]
        names = sorted(claimers, key=lambda name: -by_rule[name])
        row: dict[str, object] = {
            "loss": loss,
            "total_ns": total_ns,
            "share_ratio": context.share(Claim(times)),
            "claimed_ns": sum(by_rule.values()),
            "rules": ", ".join(names),
        }
        rows.append((total_ns, row))
    return [row for _, row in sorted(rows, key=lambda item: -item[0])]


SUBJECTS: Final = {
    "data": "input pipeline",
    "launch": "kernel launches",
    "host": "CPU work between launches",
    _WAITS: "host synchronization",
    "exposed_communication": "communication",
    "exposed_transfer": "transfers",
}
"""The subject of the rules on each part of GPU time and each cause of idle time."""


def subjects_with_losses(losses: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the subjects with a large loss, or with a claimed loss that is not minor.

    ``losses`` are rows of the table ``losses``.
    """
    lost, claimed, whole_ns = Counter[str](), Counter[str](), 0.0
    for row in losses:
        lost[row["loss"]] += row["total_ns"]
        claimed[row["loss"]] += row["claimed_ns"]
        whole_ns = row["total_ns"] / row["share_ratio"]
    min_lost_ns, min_claimed_ns = _MIN_LARGE_LOSS_RATIO * whole_ns, MINOR_RATIO * whole_ns
    return {
        subject
        for loss, subject in SUBJECTS.items()
        if lost[loss] >= min_lost_ns > 0 or claimed[loss] >= min_claimed_ns > 0
    }


def _total_ns(times: Times) -> int:
    """Return the length of ``times`` in ns, summed over devices."""
    return sum(time.total_ns for time in times.values())
