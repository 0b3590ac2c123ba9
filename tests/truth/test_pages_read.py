"""Pages read as a picky colleague would: every one that there is, planted, reported and real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from tests.real_traces import ALL, H100
from tests.requirements import require
from tests.truth.door_reading import Shown
from tests.truth.judged import document_of
from tests.truth.scenarios import SCENARIOS
from traceprof.cli import app
from traceprof.errors import NotRecordedError, TraceprofError
from traceprof.findings import RULES
from traceprof.measures import analysis_names
from traceprof.measures.idle.losses import LOSSES
from traceprof.model.activity import PARTS
from traceprof.model.tables import TABLES
from traceprof.render.briefing import briefing_of, findings_for_people
from traceprof.render.formatting import sentences
from traceprof.render.registry import Options, render
from traceprof.session.answer import Document, answer
from traceprof.session.run import open_run
from traceprof.units import parse_duration, sentence_duration

WILD: Final = (
    *(
        "expert-parallel-kernels.json",
        "hfblog3438-outlier.json",
        "hyperloom1047-graph-replays.json",
    ),
    *("inference-foreach-copy.json", "kineto109-zero-ts.json", "kineto1416-hip-streams.json"),
    *("launches-no-kernels-at-all.json", "megatron1001-contention.json", "megatron691-pipeline"),
    *("megatron691b-no-allreduce", "nccltests184", "nsys-kernels-lost.sqlite"),
    *("pytorch130730-annotations.json", "pytorch148314-deepep.json"),
    *("pytorch192021-dropped-head.json", "sglang16219-async.json", "traceml252"),
    *("trtllm16313-prepare.json", "uvm-migrations.sqlite", "xpu.json"),
)
TRACES: Final = [name for name in (*ALL, *H100) if name != "nvprof/zero-kernels.sql"]
SHARED: Final = [f"../wild/{name}" for name in WILD] + TRACES
PAGES: Final = [
    *(one.name for one in SCENARIOS),
    *(pytest.param(name, marks=pytest.mark.traces) for name in SHARED),
]
MOST_LINES: Final = 46
MOST_IN_A_SENTENCE: Final = 240
ROUNDING: Final = 0.0011
"""Of a share that is printed with one digit, and of times with four."""


@cache
def text_of(name: str) -> str:
    """Return the page as it goes to a file."""
    return render("text", document_of(name), Options(is_whole=True))


_TIME: Final = r"\d[\d,.]* (?:ns|µs|ms|s|min|h|d)\b"
_SHARE: Final = r"(?P<share>[\d.]+)%"
_SAVES: Final = re.compile(
    rf"Saves +(?:up to |about )?(?P<part>{_TIME}) of (?P<whole>{_TIME}) (?P<base>per step|"
    r"per iteration|per step including (?:slow steps|checkpoints|compilations)|in the window) "
    rf"\({_SHARE}"
)
_OF_TIME: Final = re.compile(
    rf"{_SHARE} of (?:step|iteration|the analyzed) time \((?P<part>{_TIME}) of (?P<whole>{_TIME})\)"
)


def ns_of(text: str) -> int:
    return parse_duration(text.replace(" ", "").replace(",", ""))


@pytest.mark.parametrize("name", PAGES)
def test_each_share_of_its_base_is_the_time_beside_it(name: str) -> None:
    text = text_of(name)
    assert text.count("   Saves ") == len(_SAVES.findall(text)), "a saving without its base"
    for found in (*_SAVES.finditer(text), *_OF_TIME.finditer(text)):
        share, whole_ns = float(found["share"]) / 100, ns_of(found["whole"])
        ratio = ns_of(found["part"]) / whole_ns
        printed = [Shown.of(found[name]) for name in ("part", "whole")]
        of_digits = sum(shown.digit / shown.value / 2 for shown in printed) * ratio
        assert ratio == pytest.approx(share, abs=0.0005 + of_digits + 1e-9), found[0]


@pytest.mark.parametrize("name", PAGES)
def test_a_finding_saves_at_most_the_time_that_its_title_tells(name: str) -> None:
    for row in findings_for_people(document_of(name).results["findings"]):
        share = row["title"].values.get("share", 1.0)
        assert row["saving_ns"] <= (share + ROUNDING) * (row["base_ns"] or 0)


@pytest.mark.parametrize("name", PAGES)
def test_slow_steps_are_counted_as_the_steps_are(name: str) -> None:
    """Of several ranks a step is one step, however many of them it is slow on."""
    document = document_of(name)
    assert document.verdict is not None
    counts = [note.values for note in document.verdict.pace if note.values.get("slow")]
    assert all(own["slow"] <= own["n"] / 2 for own in counts)
    for row in findings_for_people(document.results["findings"]):
        if row["rule"] == "slow_steps":
            told, steps = row["title"].values, document.results["steps"].table
            assert told["n"] < told["of"] <= len(set(steps["step"].tolist()))
            shown = [note.values["step"] for note in row["evidence"] if "step" in note.values]
            assert len(shown) == len({*shown}) == min(3, told["n"])


_OF_UNUSUAL_STEPS: Final = ("slow_steps", "checkpoint_stalls", "recompilation")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_one_base(name: str) -> None:
    document = document_of(name)
    rows = findings_for_people(document.results["findings"])
    # What slow steps, checkpoints, and compilations cost is a part of the mean step with these.
    rows = [row for row in rows if row["rule"] not in _OF_UNUSUAL_STEPS]
    bases = {(row["base"], sentence_duration(row["base_ns"])) for row in rows}
    assert len(bases) <= 1
    words = briefing_of(document)
    for base, length in bases:
        if words.answer and base != "the window":
            kind = base.partition(" ")[2]
            assert re.search(rf"time per (inferred )?{kind} of {length}", words.answer)
    parts = [float(share) for share in re.findall(r"[a-z] ([\d.]+)%", words.answer)]
    assert sum(parts) < 100.11 or not document.verdict or not document.verdict.parts


@pytest.mark.parametrize("name", PAGES)
def test_what_idle_time_is_for_is_part_of_it(name: str) -> None:
    verdict = document_of(name).verdict
    assert verdict is not None
    assert sum(verdict.idle.values()) <= verdict.parts.get("idle", 0.0) + ROUNDING
    for note in verdict.made_of:
        shares = [value for key, value in note.values.items() if key.startswith("share")]
        assert sum(shares) <= 1 + ROUNDING
        assert shares == sorted(shares, reverse=True) or {"others", "other causes"} & set(
            map(str, note.values.values())
        )


_OF_KERNELS: Final = (
    "kernel fusion",
    "kernel launches",
    "precision",
    "layout conversions",
    "idle time",
    "CPU work between launches",
)
_OF_COPIES: Final = ("interconnect bandwidth", "pinned memory", "blocking copies", "transfers")
_OF_COMMUNICATION: Final = ("communication", "collective sizes", "load balance across ranks")
_OF_HOST: Final = ("profiler overhead", "step time variation", "warm-up", "input pipeline")


def _data_of(document: Document) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield subjects, and whether there is anything in the page that they are about."""
    results = document.results
    kernels = results["kernels"].table if "kernels" in results else None
    copies = results["copies"].table if "copies" in results else None
    classes = set() if kernels is None else set(kernels["activity"].tolist())
    yield _OF_KERNELS, bool(classes) or bool(copies is not None and len(copies))
    yield _OF_COPIES, copies is not None and len(copies) > 0
    yield _OF_COMMUNICATION, "communication" in classes
    yield ("precision",), bool(classes & {"gemm", "convolution", "attention"})
    yield ("layout conversions",), "convolution" in classes
    yield ("kernel fusion",), bool(classes - {"communication", "cuda_graph"})


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_fine_of_which_there_was_nothing(name: str) -> None:
    document = document_of(name)
    assert document.verdict is not None
    fine = set(document.verdict.fine)
    has_devices = "breakdown" in document.results and len(document.results["breakdown"].table)
    if not has_devices:
        assert fine <= {*_OF_HOST}
    for subjects, is_there in _data_of(document):
        assert is_there or not fine & {*subjects}, fine & {*subjects}
    checked = document.results["findings"].tables["checked"]
    judged = set(checked["subject"][checked["is_evaluated"].astype(bool)].tolist())
    assert fine <= judged


_SUBJECTS: Final = {
    "data": "input pipeline",
    "kernel launches": "kernel launches",
    "CPU work between launches": "CPU work between launches",
    "synchronization": "host synchronization",
}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_fine_that_devices_are_idle_for(name: str) -> None:
    verdict = document_of(name).verdict
    assert verdict is not None
    much = {cause for cause, share in verdict.idle.items() if share >= 0.05}
    assert not {_SUBJECTS[cause] for cause in much & {*_SUBJECTS}} & {*verdict.fine}


_INTERNAL: Final = {
    *(rule.name for rule in RULES if "_" in rule.name),
    *(loss for loss in LOSSES if "_" in loss),
    *(part for part in PARTS if "_" in part),
    *(table for table in TABLES if "_" in table),
    *(
        "excess",
        "claimed",
        "undisturbed",
        "ledger",
        "drained",
        "wholeness",
        "settled",
        "NaN",
        "None",
    ),
}
"""Names of ours, which no reader has heard of."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_short_and_in_words(name: str) -> None:
    text = text_of(name)
    assert "…" not in text
    assert not re.search(rf" -{_TIME}", text)
    words = set(re.findall(r"[\w-]+", text.partition("\nNext ")[0]))
    assert not words & _INTERNAL
    for line in text.splitlines():
        if line.startswith(("Next ", "warning: ")) or " more finding" in line:
            continue
        is_list = line.startswith(("No problem ", "Not checked "))
        for sentence in re.split(r"[.;:,] |  " if is_list else r"[.;:] |  ", line):
            assert len(sentence) <= MOST_IN_A_SENTENCE, sentence
    narrow = render("text", document_of(name), Options(width=110))
    assert len(narrow.splitlines()) <= MOST_LINES
    assert "…" not in narrow


@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_terminal_says_the_same(name: str) -> None:
    whole, narrow = (
        re.sub(r"[█▓▒▪░▁▂▃▄▅▆▇│]\S*|\s+", " ", text)
        for text in (text_of(name), render("text", document_of(name), Options(width=72)))
    )
    assert narrow.split() == whole.split() or len(narrow) == pytest.approx(len(whole), abs=60)


@pytest.mark.traces
@pytest.mark.parametrize("name", SHARED)
def test_the_next_command_can_be_pasted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    last = text_of(name).splitlines()[-1]
    label, program, *arguments = shlex.split(last)
    assert (label, program) == ("Next", "traceprof")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "no data in this window" not in done.output


PRINTED: Final[dict[str, Callable[[str], list[str]]]] = {
    "findings": lambda path: ["findings", path],
    "info": lambda path: ["info", path],
    "breakdown": lambda path: ["show", "breakdown", path],
    "tables": lambda path: ["show", ",".join(analysis_names()[:8]), path],
}


@pytest.mark.traces
@pytest.mark.parametrize("what", PRINTED)
@pytest.mark.parametrize("name", TRACES)
def test_what_goes_to_a_pipe_is_not_cut(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only very long names in tables are shortened, unless full names are requested."""
    monkeypatch.delenv("COLUMNS", raising=False)
    words = PRINTED[what](str(Path(require("traces")) / name))
    done = CliRunner().invoke(app, [*words, *(["--full-names"] if words[0] == "show" else [])])
    if done.exit_code == 0:
        assert "…" not in done.output
    else:
        assert isinstance(done.exception, SystemExit | TraceprofError)


_ADVISED: Final = re.compile(r"`(traceprof (?:show|explain)[^`]*)`")


@pytest.mark.traces
@pytest.mark.parametrize("name", SHARED)
def test_the_commands_in_advice_can_be_pasted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them leads to an empty table, or to a refusal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    path = str(Path(require("traces")) / name)
    text = " ".join(render("text", document_of(name), Options(is_whole=True)).split())
    findings = document_of(name).results["findings"].table.rows()
    texts = [
        text,
        *(one for row in findings for one in (row["action"], *sentences(row["evidence"]))),
    ]
    for command in dict.fromkeys(own for one in texts for own in _ADVISED.findall(one)):
        _, *arguments = shlex.split(command)
        named = [path if own == "TRACE" else own for own in arguments]
        done = CliRunner().invoke(app, named if path in named else [*named, path])
        assert done.exit_code == 0, (command, done.output)
        assert "no data in this window" not in done.output, command


EMPTY_MEANS_NONE: Final = {
    *("kernels", "durations", "classes", "copies", "transfers", "bandwidth", "breakdown"),
    *("summary", "idle", "gaps", "streams", "launches", "path", "whatif", "occupancy", "sync"),
    *("collectives", "collective-events", "callers", "buckets", "shared", "peers"),
    *("stragglers", "ranks", "hosts", "racks", "alignment", "pipeline", "quality", "findings"),
    *("ranges", "range-work", "range-times", "operators", "marks", "calls", "graphs"),
}
"""Tables that were recorded, or follow from what was, and in which nothing happened."""


@pytest.mark.traces
@pytest.mark.parametrize("name", TRACES)
def test_a_table_without_its_data_is_refused(name: str) -> None:
    run = open_run([Path(require("traces")) / name])
    found = answer(run, analysis_names())
    empty = {
        own
        for own, result in found.results.items()
        if all(table.empty for table in result.tables.values())
    }
    for own in sorted(empty - EMPTY_MEANS_NONE):
        if found.results[own].lacks:
            with pytest.raises(NotRecordedError):
                answer(run.within("all"), [own], strict=True)
        else:
            assert "window" in " ".join(sentences(found.results[own].notes)), own
