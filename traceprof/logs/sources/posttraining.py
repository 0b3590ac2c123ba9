"""Read logs of reinforcement learning of language models: verl, OpenRLHF, and NeMo RL."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final

import numpy as np

from traceprof.logs.gathered import LogPoint
from traceprof.logs.lines import LogLine
from traceprof.logs.source import Declared, LogReader, Pattern, declared, number

_TIMINGS: Final = ("timing_s", "timing_s/timing_s")
_STEP: Final = "step_period_ns"
_PHASE_NAMES: Final = {
    "gen": "generation",
    "exposed_generation": "generation",
    "broadcast": "weight_sync",
    "update_weights": "weight_sync",
    "prepare_for_generation_transfer_and_update_weights": "weight_sync",
}
_PAIR: Final = re.compile(
    r"'(?P<key>[\w/.@-]{1,200}+)': (?:np\.\w{1,20}+\()?+"
    r"(?P<value>-?nan|-?inf|[-+]?[\d.]+(?:e[-+]?\d+)?)"
)
_STATUS_NAMES: Final = {
    **{name: name for name in ("policy_loss", "reward", "kl", "response_length")},
    "rollout/response_length_mean": "response_length",
}
_MAX_SIZE_DEVIATION_RATIO: Final = 0.02
_MIN_CHANGE_RATIO: Final = 0.2
_MIN_STEPS: Final = 4
_NOT_PHASES: Final = frozenset(
    {"step", "testing", "save_checkpoint", "start_profile", "stop_profile"}
)


class RolloutReader(LogReader):
    """Store the phases of each step, and note the longest phase, its share, and its change."""

    def begin(self) -> None:
        """Reset the state at the start of a log or run."""
        self.phases: dict[str, list[float]] = defaultdict(list)
        self.step_times: list[float] = []

    def add_phase(self, name: str, seconds: float, point: LogPoint) -> None:
        """Store the duration of one phase of a step."""
        name = name.replace("/", "_")
        phase = _PHASE_NAMES.get(name, name)
        self.run.metric(f"{phase}_ns", seconds * 1e9, point, over="step")
        if name not in _NOT_PHASES and not name.endswith("_total"):
            self.phases[phase].append(seconds)

    def end(self) -> None:
        """Add the note on the longest phase."""
        self.run.facts.has_warmup = False
        whole = float(np.sum(self.step_times))
        name, times = max(
            self.phases.items(), key=lambda item: float(np.sum(item[1])), default=("", [])
        )
        if whole > 0 and len(times) == len(self.step_times):
            share = float(np.sum(times)) / whole
            text = "{phase} takes {share:ratio} of the time of {n:count} steps"
            quarter = max(1, len(times) // 4)
            first, last = float(np.mean(times[:quarter])), float(np.mean(times[-quarter:]))
            values = {"phase": name, "share": share, "n": len(times)}
            if len(times) >= _MIN_STEPS and abs(last / first - 1) > _MIN_CHANGE_RATIO:
                text += "; it changes from {first:ns} per step in the first quarter to {last:ns}"
                text += " in the last"
                values |= {"first": first * 1e9, "last": last * 1e9}
            self.run.say(text, **values)
        self.begin()


class VerlReader(RolloutReader):
    """Read console lines of verl; throughput is tokens/s per GPU."""

    def other(self, _pattern: Pattern, key: str) -> Declared:
        """Return the meaning of a cell with an unknown key: a score of a validation."""
        return Declared("val_" + re.sub(r"\W+", "_", key.partition("/")[2]), over="run")

    def cells(self, match: re.Match[str], point: LogPoint, _line: LogLine) -> None:
        """Store the phases of the step, and the number of GPUs that tokens and rates give."""
        cell = self.source.patterns[0].cell
        found = (cell.match(part.strip()) for part in match["_cells"].split(" - "))
        values = {one["key"]: number(one["value"]) for one in found if one is not None}
        for key, seconds in values.items():
            timing, _, name = key.rpartition("/")
            # Longer keys are of sequences within a phase, and not all of them are times.
            if timing in _TIMINGS and seconds is not None and name != "step":
                self.add_phase(name, seconds, point)
        step_s = values.get("timing_s/step") or values.get("perf/time_per_step")
        if step_s is None:
            return
        self.step_times.append(step_s)
        self.run.metric(_STEP, step_s * 1e9, point, over="step")
        tokens, rate = values.get("perf/total_num_tokens"), values.get("perf/throughput")
        size = tokens / step_s / rate if tokens and rate and step_s else math.nan
        facts = self.run.facts
        is_whole = size >= 0.5 and abs(size / round(size) - 1) < _MAX_SIZE_DEVIATION_RATIO
        if is_whole and not facts.world_size:
            facts.world_size = round(size)
            text = "{n:count} GPUs follow from the tokens, the time, and the rate of a step"
            self.run.say(text, n=facts.world_size)


class OpenRlhfReader(RolloutReader):
    """Read the status that OpenRLHF prints after each step, with times of the phases."""

    def status(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the phases, the step time, and the measures of a step."""
        point = LogPoint(float(match["_at"]))
        self.book.position(point.step)
        values = {one["key"]: number(one["value"]) for one in _PAIR.finditer(match["_status"])}
        for key, value in values.items():
            group, _, name = key.rpartition("/")
            if value is None:
                continue
            if key in _STATUS_NAMES:
                self.run.metric(_STATUS_NAMES[key], value, point, over="step")
            elif group == "timing" and name == "step_total":
                self.step_times.append(value)
                self.run.metric(_STEP, value * 1e9, point, over="step")
            elif group == "timing":
                self.add_phase(name, value, point)


class NemoRlReader(RolloutReader):
    """Read blocks of NeMo RL: a heading per step, then results, times, and rates per GPU."""

    def timing(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the step time or the duration of a phase."""
        seconds, point = number(match["_seconds"]) or 0.0, LogPoint(self.step)
        if match["_phase"] == "Total step time":
            self.step_times.append(seconds)
            self.run.metric(_STEP, seconds * 1e9, point, over="step")
        else:
            self.add_phase(match["_phase"], seconds, point)

    def heading(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store the step of the values that follow."""
        self.step = float(match["_at"])
        self.book.position(self.step)

    def result(self, match: re.Match[str], _point: LogPoint, _line: LogLine) -> None:
        """Store a rate, a loss, or a reward of the current step."""
        names = {
            "E2E (Tokens/sec/gpu)": "tokens_per_s_per_device",
            "E2E (Samples/sec/gpu)": "samples_per_s_per_device",
            "Loss": "loss",
            "Avg Reward": "reward",
        }
        value = declared(names[match["_key"]])
        self.run.metric(
            value.metric,
            number(match["_value_of"]),
            LogPoint(self.step),
            scope=value.scope,
            over="step",
        )
