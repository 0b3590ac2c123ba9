"""Scripts that print how long an epoch took, and what they print beside it."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from traceprof.logs.gathered import LogPoint, When
from traceprof.logs.lines import LogLine
from traceprof.logs.source import LogReader, LogSource, number
from traceprof.model.results import Unit
from traceprof.model.summary import CONTRADICTS

_UNITS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}
_UNIT: Final = r"(?P<unit>milliseconds|msec|ms|seconds?|secs?|minutes?|mins?|hours?|[smh])?\b"
_TOOK: Final = re.compile(
    r"\bepoch\s*(?:\[|#|:)?\s*(?P<epoch>\d+)(?:\s*/\s*\d+)?\]?.{0,200}?"
    r"\b(?:took|time(?: taken)?|duration|completed in|finished in|done in)\b"
    r"\s*(?:is|of|:|=)?\s*(?P<value>\d[\d.]*(?:e-?\d+)?)\s*" + _UNIT,
    re.IGNORECASE,
)
_LOST: Final = re.compile(
    r"epoch time lost\s*(?:is|:|=)?\s*(?P<value>\d[\d.]*)\s*" + _UNIT, re.IGNORECASE
)
_SETUP: Final = re.compile(
    r"(?P<what>(?:script |worker |job )?set-?up|initiali[sz]e[_ ]workers|initiali[sz]ation)"
    r" took:?\s*"
    r"(?P<value>\d[\d.]*)\s*" + _UNIT,
    re.IGNORECASE,
)
_TOTAL: Final = re.compile(
    r"(?:total (?:train(?:ing)? )?time|all training(?: \(\d+ epochs\))?|training)"
    r" (?:is|was|took|:)\s*"
    r"(?P<value>\d[\d.]*)\s*" + _UNIT,
    re.IGNORECASE,
)
_PAIR: Final = re.compile(
    r"(?P<key>[A-Za-z_][\w@./-]*)\s*[:=]\s*(?P<value>nan|-?inf|-?\d[\d.]*(?:e-?\d+)?)\b"
)
_PHASE: Final = re.compile(
    r"(?P<phase>data loading|forward|backwards?|step|optimizer)\w* time cost:?\s*:?\s*\(ms\)[^\d]*"
    r"(?P<value>[\d.]+)"
)
_RATE: Final = re.compile(
    r"throughput \((?:images|samples)/s(?:ec(?:ond)?)?\)\s*[:=]\s*(?P<value>[\d.]+)"
)
_SYNCS: Final = re.compile(
    r"communication frequency \([^)]*sync/s(?:econd)?\)\s*[:=]\s*(?P<value>[\d.]+)"
)
_DDP: Final = re.compile(r"size_params_ddp_sum\s*[:=]\s*(?P<value>[\d.]+)")
_INDEX: Final = re.compile(r"epoch = (?P<epoch>\d+), batch index = (?P<n>\d+)/(?P<total>\d+)")
_BATCH: Final = re.compile(r"(?:^|[-_.])(?:bs|batch)[-_]?(?P<batch>\d+)(?:$|[-_.])")
_PHASES: Final = {"data loading": "data_ns", "forward": "forward_ns", "backward": "backward_ns"}
_NAMES: Final = {
    "accuracy": "top1",
    "acc": "top1",
    "top_1_accuracy": "top1",
    "top_5_accuracy": "top5",
}
_TIMED: Final = frozenset({"took", "time", "taken", "is", "epoch", "duration"})
_CLOSE: Final = 0.05
_EXPLAINED: Final = 1.0


class NotesReader(LogReader):
    """Lengths are lengths and no throughput; instants are the sums of what was printed before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spent_s = 0.0
        self.epoch: int | None = None
        self.counts_from = 0
        self.setups_s = 0.0
        self.step: dict[str, float] = {}

    def read(self, line: LogLine) -> None:
        """Note what one line says."""
        text = line.text
        if (lost := _LOST.search(text)) is not None:
            self._happened("time_lost", lost, text)
        elif (setup := _SETUP.search(text)) is not None:
            is_setup = "set" in setup["what"].lower()
            self._happened("setup" if is_setup else "initialisation", setup, text)
        elif (total := _TOTAL.search(text)) is not None:
            self._total(total)
        elif (took := _TOOK.search(text)) is not None:
            self._took(took, text)
        else:
            self._of_a_step(text, line)

    def _happened(self, kind: str, match: re.Match[str], text: str) -> None:
        """Note a set-up or what was lost: once epochs have ended, inside the next of them."""
        seconds = _seconds(match)
        run = self.book.run
        is_first = self.epoch is None
        if not is_first and kind == "initialisation":
            run.life += 1
        run.event(
            kind,
            When(self.spent_s, is_elapsed=True),
            seconds,
            epoch=None if self.epoch is None else self.epoch + 1,
            text=text.strip(),
        )
        if is_first:
            self.spent_s += seconds
            self.setups_s += seconds

    def _took(self, match: re.Match[str], text: str) -> None:
        run = self.book.run
        epoch, seconds = int(match["epoch"]), _seconds(match)
        self.book.position(0, epoch)
        run = self.book.run
        began = self.spent_s
        self.spent_s += seconds
        if self.epoch is None:
            self.counts_from = min(epoch, 1)
        self.epoch = epoch
        run.epoch(epoch, seconds=seconds, at_s=began, is_elapsed=True)
        point = LogPoint(epoch=epoch + 1 - self.counts_from, at_s=self.spent_s)
        for pair in _PAIR.finditer(text[match.end() :] + " " + text[: match.start()]):
            key = pair["key"].lower()
            if key in _TIMED:
                continue
            name = _NAMES.get(key.removeprefix("val_"), key)
            run.metric(name, number(pair["value"]), point, over="epoch", is_elapsed=True)

    def _total(self, match: re.Match[str]) -> None:
        run, total_s = self.book.run, _seconds(match)
        run.measure("total_ns", total_s * 1e9, Unit.NS, better="lower")
        run.event("end", When(self.spent_s, is_elapsed=True), text=match[0].strip())
        epochs_s = sum(own.get("seconds", 0.0) for own in run.epochs.values())
        rest_s = total_s - epochs_s - self.setups_s
        if not epochs_s:
            return
        if rest_s < -_EXPLAINED and total_s < epochs_s:
            run.say(
                f"{CONTRADICTS}: its epochs add up to {{epochs:ns}}, and the "
                "total is said to be {total:ns}",
                epochs=epochs_s * 1e9,
                total=total_s * 1e9,
            )
        elif rest_s > _EXPLAINED:
            run.say(
                "of the total of {total:ns} the epochs explain {epochs:ns} and the "
                "first set-up {setup:ns}: {rest:ns} are of nothing that is printed; "
                "instants are sums of what was printed before, and may be that much later",
                total=total_s * 1e9,
                epochs=epochs_s * 1e9,
                setup=self.setups_s * 1e9,
                rest=rest_s * 1e9,
            )

    def _of_a_step(self, text: str, line: LogLine) -> None:
        if (phase := _PHASE.search(text)) is not None:
            name = _PHASES.get(phase["phase"].removesuffix("s"), f"{phase['phase']}_ns")
            self.step[name] = float(phase["value"]) * 1e6
        elif (rate := _RATE.search(text)) is not None:
            self.step["samples_per_s"] = float(rate["value"])
        elif (syncs := _SYNCS.search(text)) is not None:
            self.step["syncs_per_s"] = float(syncs["value"])
        elif (ddp := _DDP.search(text)) is not None:
            self.step["ddp_parameters"] = float(ddp["value"])
        elif (index := _INDEX.search(text)) is not None:
            self._indexed(index, line)

    def _indexed(self, match: re.Match[str], line: LogLine) -> None:
        epoch, n, total = int(match["epoch"]), int(match["n"]), int(match["total"])
        self.book.position(n, epoch)
        point = LogPoint(epoch * total + n, epoch + n / max(1, total), self.book.when(line).seconds)
        self._write(point)

    def _write(self, point: LogPoint) -> None:
        run = self.book.run
        for name, value in self.step.items():
            scope = "rank" if name.endswith("_ns") else "run"
            run.metric(name, value, point, scope=scope, over="interval")
        self.step = {}

    def end(self) -> None:
        """Hold the parts of a step against the rate that is printed."""
        self._write(LogPoint())
        run = self.book.run
        self.spent_s, self.setups_s, self.epoch = 0.0, 0.0, None
        run.facts.has_warmup = False
        last = {key.metric: s.values[-1] for key, s in run.series.items() if len(s.values)}
        named = _BATCH.search(self.stem)
        batch = float(named["batch"]) if named is not None else None
        if {"forward_ns", "backward_ns"} <= last.keys():
            if batch is not None:
                run.facts.batch_per_device = batch
            _check_parts(run, last, batch)


def _check_parts(run: Any, last: dict[str, float], batch: float | None) -> None:
    """Say where data, forward and backward rule out the rate, or the synchronisations."""
    parts_ns = sum(last.get(name, 0.0) for name in _PHASES.values())
    rate, syncs = last.get("samples_per_s"), last.get("syncs_per_s")
    values = {
        "data": last.get("data_ns", math.nan),
        "forward": last["forward_ns"],
        "backward": last["backward_ns"],
        "parts": parts_ns,
    }
    if rate and batch and abs(rate * parts_ns / 1e9 / batch - 1) > _CLOSE:
        run.say(
            f"{CONTRADICTS}, or counts several ranks: {{batch:count}} samples (a batch, "
            "as the file is called) in {data:ns} of data, {forward:ns} of forward and "
            "{backward:ns} of backward are {by:1/s}, and {rate:1/s} "
            "are printed",
            batch=batch,
            by=1e9 * batch / parts_ns,
            rate=rate,
            **values,
        )
    if syncs and parts_ns * syncs / 1e9 < 1 - _CLOSE:
        run.say(
            "{syncs:1/s} synchronisations leave {period:ns} for a step, of which "
            "data, forward and backward explain {parts:ns}: {rest:ns} are of "
            "nothing that is printed",
            syncs=syncs,
            period=1e9 / syncs,
            rest=1e9 / syncs - parts_ns,
            parts=parts_ns,
        )
    if syncs and rate and batch:
        ranks = rate / syncs / batch
        if round(ranks) >= 1 and abs(ranks / round(ranks) - 1) < _CLOSE:
            run.say(
                "{rate:1/s} are what {n:count} rank(s) with {batch:count} samples each "
                "do at {syncs:1/s} synchronisations",
                rate=rate,
                n=round(ranks),
                batch=batch,
                syncs=syncs,
            )
    if last["backward_ns"] < last["forward_ns"] / 2:
        run.say(
            "backward ({backward:ns}) is shorter than half of forward "
            "({forward:ns}): it usually takes longer, so that the two were not measured "
            "around what they are called after",
            backward=last["backward_ns"],
            forward=last["forward_ns"],
        )


def _seconds(match: re.Match[str]) -> float:
    unit = (match["unit"] or "").lower()
    short = "ms" if unit.startswith(("ms", "milli")) else unit[:1]
    return (number(match["value"]) or 0.0) * _UNITS[short]


NOTES: Final = LogSource(
    "notes",
    "lines such as `Epoch 3 took 51 s`",
    (_TOOK, _SETUP, _TOTAL, _PHASE, _INDEX),
    NotesReader,
)
