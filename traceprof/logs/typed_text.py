"""Find sizes, batch sizes, and rates in the words of a cell, and in the text above a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from traceprof.logs.cells import number_of, unit_named
from traceprof.logs.gathered import CollectedRun
from traceprof.model.results import Unit

_GPU: Final = (
    r"(?:gpus?|accelerators?|(?:nvidia[ -])?(?:[pvtalkhb]|gh|gb|mi)\d{1,3}0?[xa]?(?:[lst]|gb)?"
    r"|m60|(?:rtx|gtx)[\s-]?\d{4}(?:\s?ti)?)(?:(?![a-z0-9])|(?=[x×]\d))"
)
_MACHINE: Final = r"(?:nodes?|servers?|machines?|hosts?)\b"
_TIMES: Final = r"(?:\s?[x×]\s?|\s)?"
_PAIR: Final = re.compile(rf"(?<![\w.])(\d{{1,5}}+)\s?[x×]\s?(\d{{1,3}}+)(?:{_TIMES}{_GPU})?", re.I)
_NODES: Final = re.compile(rf"(?<![\w.])(\d{{1,6}}+){_TIMES}{_MACHINE}", re.I)
_DEVICES: Final = re.compile(rf"(?<![\w.])(\d{{1,6}}+){_TIMES}{_GPU}", re.I)
_DEVICES_AFTER: Final = re.compile(
    rf"(?:(?<![\w.])(?P<nodes>\d{{1,5}}+){_TIMES}|\b){_GPU}(?:[- ]?\d{{2,3}}\s?gi?b?)?\s?[x×]\s?"
    rf"(?P<n>\d{{1,5}}+)(?![\w.])(?P<machines>\s?{_MACHINE})?+",
    re.I,
)
_DGX: Final = re.compile(
    r"(?:(?<![\w.])(?P<n>\d{1,5}+)\s?[x×]?\s?|(?<!\w))(?:dgx|hgx)[ -]?"
    r"(?P<kind>1(?!\d)|2(?!\d)|[abh][1-3]00|station)",
    re.I,
)
_DGX_GPUS: Final = {"2": 16, "station": 4}
SIZES_IN_TEXT: Final = (_DEVICES_AFTER, _PAIR, _NODES, _DEVICES, _DGX)
BATCH_IN_TEXT: Final = re.compile(r"\b(?:batch(?: ?size)?|bs) ?[=:_-]? ?(\d{1,7})\b", re.I)
_RATE_IN_TEXT: Final = re.compile(
    r"(?:throughput|rate|speed)\b[^\d]{0,24}(?P<rate>\d[\d.,]{0,15}) ?"
    r"(?P<unit>[a-z]{2,9}/s(?:ec)?)\b"
    r"(?:[^\d]{0,4}expected\b[^\d]{0,8}(?P<expected>\d[\d.,]{0,15}) ?(?P=unit))?",
    re.I,
)
_SENTENCE_END: Final = re.compile(r"(?<=[.;!?])\s+|\n")
_COMPARED: Final = re.compile(
    r"\b(?:than|compared|relative|versus|vs|baseline|base|up to|from|ideal|speed-?up|each of)\b",
    re.I,
)
_PER_MACHINE: Final = re.compile(
    rf"(?<![\w.])(\d{{1,4}}+){_TIMES}{_GPU}"
    rf"\s?(?:/|per|on each|on every|each|in each)\s?(?:{_MACHINE})?",
    re.I,
)
_PROSE_BATCH: Final = re.compile(
    r"\bbatch[ -]?sizes?\b(?P<scope>[a-z ()/-]{0,24}+)[:=]?+ ?(?P<n>\d{1,7}+)\b", re.I
)
_CLAUSE_END: Final = re.compile(r"[.,;\n]")
_MAX_SCOPE_CHARS: Final = 30
_GLOBAL: Final = re.compile(r"\b(?:global|total|effective|overall|aggregate)\b", re.I)
_LOCAL: Final = re.compile(
    r"\bper[ -](?:gpu|device|worker|rank)|/ ?gpu|\b(?:local|micro|each gpu)\b", re.I
)


def sizes_in(text: str) -> dict[str, float]:
    """Return the numbers of nodes and GPUs in words such as "2 nodes, 8 GPUs" or "2x8 A100"."""
    found: dict[str, float] = {}
    machine = _DGX.search(text)
    if machine is not None:
        nodes = float(machine["n"] or 1)
        gpus = nodes * _DGX_GPUS.get(machine["kind"].lower(), 8)
        found = {"nodes_count": nodes, "devices_count": gpus}
    after = _DEVICES_AFTER.search(text)
    if after is not None and after["nodes"]:
        n, m = float(after["nodes"]), float(after["n"])
        return {"nodes_count": m if after["machines"] else n, "devices_count": n * m}
    nodes_found, devices = _NODES.search(text), _DEVICES.search(text)
    pair = _PAIR.search(text)
    if pair is not None and (devices is None or devices.start() >= pair.start()):
        return {"nodes_count": float(pair[1]), "devices_count": float(pair[1]) * float(pair[2])}
    if nodes_found is not None:
        found["nodes_count"] = float(nodes_found[1])
    each = _PER_MACHINE.search(text)
    if each is not None and nodes_found is not None:
        return {**found, "devices_count": float(nodes_found[1]) * float(each[1])}
    if machine is None and devices is not None:
        found["devices_count"] = float(devices[1])
    elif machine is None and after is not None:
        found["devices_count"] = float(after["n"])
    return found


def sizes_in_prose(text: str) -> dict[str, float]:
    """Return the sizes that the text above a table gives for all its rows.

    A size counts only if the text contains a single value of it. Sentences that compare runs do not
    count.
    """
    sentences = [part for part in _SENTENCE_END.split(text) if not _COMPARED.search(part)]
    kept = ". ".join(sentences)
    each = {float(match[1]) for match in _PER_MACHINE.finditer(kept)}
    nodes = {float(match[1]) for match in _NODES.finditer(kept)}
    without = _PER_MACHINE.sub(" ", kept)
    devices = {float(match[1]) for match in _DEVICES.finditer(without)}
    listed = re.search(rf"\d,?(?: and| or)? \d{{1,5}}{_TIMES}(?:{_MACHINE}|{_GPU})", kept, re.I)
    if listed is not None or len(nodes) > 1 or len(each) > 1 or len(devices) > 1:
        return {}
    counts = (("nodes_count", nodes), ("devices_count", devices))
    found = {name: max(values) for name, values in counts if values}
    if each and nodes and not devices:
        found["devices_count"] = max(each) * max(nodes)
    return found


def batches_in_prose(text: str) -> dict[str, float]:
    """Return the batch sizes in a text by their scope: global, device, or "" if it is not named.

    A scope with several values is omitted.
    """
    found: dict[str, set[float]] = {}
    for match in _PROSE_BATCH.finditer(text):
        before = text[max(0, match.start() - _MAX_SCOPE_CHARS) : match.start()]
        after = text[match.end() : match.end() + _MAX_SCOPE_CHARS]
        in_clause = (_CLAUSE_END.split(before)[-1], match["scope"], _CLAUSE_END.split(after)[0])
        words = " ".join(in_clause)
        is_global, is_local = _GLOBAL.search(words), _LOCAL.search(words)
        scope = "" if bool(is_global) == bool(is_local) else "global" if is_global else "device"
        found.setdefault(scope, set()).add(float(match["n"]))
    return {scope: values.pop() for scope, values in found.items() if len(values) == 1}


def rate_units_in(text: str) -> set[str]:
    """Return the kinds of throughput that a text names, such as tokens_per_s."""
    words = re.findall(r"\b[a-z]{2,9} ?/ ?s(?:ec(?:ond)?)?\b|\b[a-z]{2,9} per second\b", text, re.I)
    units = (unit_named(word) for word in words)
    return {unit.kind for unit in units if unit is not None and "_per_s" in unit.kind}


def note_sizes(run: CollectedRun, sizes: Mapping[str, float]) -> list[str]:
    """Store sizes that the run does not have yet; return their names.

    The number of nodes belongs to the number of GPUs, so it is left out if that is another number.
    """
    known = run.measures.get("devices_count")
    if known is not None and "devices_count" in sizes and known["value"] != sizes["devices_count"]:
        return []
    new = [name for name, value in sizes.items() if name not in run.measures and value > 0]
    for name in new:
        run.measure(name, sizes[name], unit=Unit.COUNT, source="recorded")
    return new


def note_rate(run: CollectedRun, heading: str, text: str) -> None:
    """Store the rate that a sentence in a cell contains, unless a column contains it."""
    found = _RATE_IN_TEXT.search(text)
    if found is None:
        return
    unit = unit_named(found["unit"])
    rate = number_of(found["rate"].rstrip(".,"))
    if unit is None or rate is None or unit.kind in run.measures:
        return
    run.measure(unit.kind, rate.value)
    if found["expected"] and (expected := number_of(found["expected"].rstrip(".,"))) is not None:
        run.measure(f"expected_{unit.kind}", expected.value)
    run.say("the rate comes from the text in column {column}", column=heading)


def without_sizes(texts: list[str]) -> list[str]:
    """Return descriptions without sizes; an empty list if no two of them are then equal.

    Models of GPUs stay if there are several: "4x A100" is "A100".
    """
    models = {_model_of(match) for text in texts for match in _DEVICES.finditer(text)} - {""}
    found = [_DEVICES.sub(_model_of, text) for text in texts] if len(models) > 1 else texts
    for pattern in (*SIZES_IN_TEXT, BATCH_IN_TEXT):
        found = [pattern.sub("", text) for text in found]
    found = [re.sub(r"(?<!\s)\s*+[,;][\s,;]*+", ", ", text).strip(" ,;-") for text in found]
    return found if len(set(found)) < len(found) else []


def _model_of(match: re.Match[str]) -> str:
    """Return the model in a number of GPUs; "" for words such as GPUs."""
    model = match[0][match.end(1) - match.start() :].lstrip(" x×")
    return model if re.search(r"\d", model) else ""
