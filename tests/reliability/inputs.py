"""Classes of inputs: for each a maker that writes files, damages them, and says what to ask."""

from __future__ import annotations

import functools
import json
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.builders import TraceBuilder
from tests.formats.test_contract import (
    EXECUTION,
    planes_of,
    write_as_kineto,
    write_as_nvprof,
    write_as_rocpd,
    write_as_rocprofv3_json,
)
from tests.formats.xplane_file import write_xplane
from tests.reliability import forms, mutations
from tests.reliability.same_execution import ASKED, FORMS, execution, written, wrong_answers
from tests.reliability.workplace import LOG, make_trace
from tests.snapshots.allocator import Allocator, backward, forward, optimizer
from tests.summaries import make_summary
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures import nouns
from traceprof.store import Store, exported_runs


@dataclass(frozen=True, slots=True)
class Question:
    """A command about damaged files; ``trace`` is the file that an oracle reads, too."""

    arguments: tuple[str, ...]
    how: str
    trace: Path | None = None
    judge: Callable[[int, str, str], str] | None = None
    """Returns what is wrong with an exit code and what was printed and said; "" nothing."""


Maker = Callable[[Path, random.Random], Question]

_OFTEN: Final = ("breakdown,kernels", "copies", "info")
_TABLES: Final = (
    *("steps", "phases", "ranges", "streams", "launches", "sync", "idle", "gaps", "collectives"),
    *("transfers", "memory", "operators", "quality", "classes", "path", "layers", "ranks"),
    "range-work",
)


def nsys_bytes(folder: Path, rng: random.Random) -> Question:
    """An nsys export whose bytes or pages are damaged."""
    return _bytes(folder, rng, "sqlite")


def nsys_rows(folder: Path, rng: random.Random) -> Question:
    """An nsys export with invalid values, columns, and tables."""
    return _rows(folder, rng, "sqlite")


def nvprof_bytes(folder: Path, rng: random.Random) -> Question:
    """An nvprof file whose bytes or pages are damaged."""
    return _bytes(folder, rng, "nvprof")


def nvprof_rows(folder: Path, rng: random.Random) -> Question:
    """An nvprof file with invalid values, columns, and tables."""
    return _rows(folder, rng, "nvprof")


def kineto_bytes(folder: Path, rng: random.Random) -> Question:
    """A Kineto file whose bytes are damaged."""
    return _bytes(folder, rng, "json")


def xplane_bytes(folder: Path, rng: random.Random) -> Question:
    """An XPlane file (jax.profiler) whose bytes are damaged."""
    question = _bytes(folder, rng, "pb")
    return replace(question, trace=None)  # what is left of it no oracle reads


def rocpd_bytes(folder: Path, rng: random.Random) -> Question:
    """A rocprofv3 database whose bytes or pages are damaged."""
    return _bytes(folder, rng, "rocpd")


def rocpd_rows(folder: Path, rng: random.Random) -> Question:
    """A rocprofv3 database with invalid values, columns, and tables."""
    return _rows(folder, rng, "rocpd")


def rocprofv3_json(folder: Path, rng: random.Random) -> Question:
    """JSON of rocprofv3 with damaged bytes, or with invalid values, spellings, and nesting."""
    if rng.random() < 0.5:
        return _bytes(folder, rng, "rocprofv3")
    path = folder / "trace.rocprofv3"
    how, text = mutations.changed_document(_example("rocprofv3").decode(), rng)
    path.write_text(text, "utf-8", "surrogatepass")
    return _ask(path, how, rng)


def kineto_values(folder: Path, rng: random.Random) -> Question:
    """A Kineto file with invalid values, spellings, and nesting."""
    path = folder / "trace.json"
    how, text = mutations.changed_document(_example("json").decode(), rng)
    path.write_text(text, "utf-8", "surrogatepass")
    return _ask(path, how, rng)


def gzipped(folder: Path, rng: random.Random) -> Question:
    """Any of these files compressed with gzip: valid, damaged, or far larger when unpacked."""
    kind = rng.choice(("json", "sqlite", "nvprof"))
    path = folder / f"trace.{kind}.gz"
    how, data = mutations.packed(_example(kind), rng)
    path.write_bytes(data)
    return _ask(path, how, rng)


def own_recordings(folder: Path, rng: random.Random) -> Question:
    """A traceprof recording, with the tables that only traceprof writes."""
    path = folder / "trace.sqlite"
    path.write_bytes(_example("own"))
    how = mutations.change_database(path, rng)
    return _ask(path, how, rng)


def many_ranks(folder: Path, rng: random.Random) -> Question:
    """A run of several ranks with one damaged file, or with unusual file names."""
    run = folder / "run"
    run.mkdir()
    for rank in (0, 1):
        (run / f"rank{rank}.sqlite").write_bytes(_example(f"rank{rank}"))
    path = run / "rank1.sqlite"
    how = rng.choice(("damaged", "rows", "name", "empty", "same"))
    if how == "damaged":
        path.write_bytes(mutations.damaged(path.read_bytes(), rng)[1])
    elif how == "rows":
        mutations.change_database(path, rng)
    elif how == "name":
        odd = ("rank99999999999.sqlite", "rank-1.sqlite", "rank\x1b[2J.sqlite", "=rank1.sqlite")
        path.rename(run / rng.choice((*odd, "r\ud800.sqlite".replace("\ud800", "\u202e"), "a\nb")))
    elif how == "empty":
        path.write_bytes(b"")
    else:
        shutil.copyfile(path, run / "rank1b.sqlite")
    return Question(_about(run, rng), how)


def manifests(folder: Path, rng: random.Random) -> Question:
    """A run manifest with invalid paths, ranks, and sizes."""
    for rank in (0, 1):
        (folder / f"rank{rank}.sqlite").write_bytes(_example(f"rank{rank}"))
    entries = [{"file": f"rank{rank}.sqlite", "rank": rank, "host": "a"} for rank in (0, 1)]
    text = json.dumps({"traceprof_run": 1, "world_size": 2, "ranks": entries})
    how, text = _text(text, rng, mutations.changed_document)
    path = folder / "manifest.json"
    path.write_text(text, "utf-8", "surrogatepass")
    return Question(_about(rng.choice((path, folder)), rng), how)


def rules(folder: Path, rng: random.Random) -> Question:
    """A rules file (TOML)."""
    text = '[[rule]]\nactivity = "gemm"\npattern = "gemm_[0-9]"\n\n[[rule]]\n'
    more = "activity = \"normalization\"\npattern = 'ampere.*'\n"
    return _settings(folder, rng, "--rules", text + more)


def hardware(folder: Path, rng: random.Random) -> Question:
    """A hardware file (TOML)."""
    text = (
        '[link]\nnic = "100Gb/s"\n\n[[gpu]]\nkey = "mine"\nnames = ["B200", "GPU"]\n'
        'tflops = { fp32 = 10.6 }\nmemory_gb_per_s = 732\npcie_generation = 3\nsource = "us"\n'
    )
    return _settings(folder, rng, "--hardware", text)


def cluster(folder: Path, rng: random.Random) -> Question:
    """A file with hosts and racks (TOML)."""
    path, run = folder / "cluster.toml", folder / "run"
    run.mkdir()
    for rank in (0, 1):
        (run / f"rank{rank}.sqlite").write_bytes(_example(f"rank{rank}"))
    entries = [{"file": f"rank{i}.sqlite", "rank": i, "host": host} for i, host in enumerate("ab")]
    (run / "manifest.json").write_text(json.dumps({"traceprof_run": 1, "ranks": entries}))
    hosts = {name: rng.choice([*_RANKS_OF_HOSTS]) for name in rng.sample(("n1", "n2", "a"), 2)}
    racks = {name: rng.choice([*_HOSTS_OF_RACKS]) for name in ("r1", "r2")[: rng.randrange(3)]}
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(own)}\n" for key, own in table.items())
        for name, table in (("hosts", hosts), ("racks", racks))
    )
    table = rng.choice(("hosts", "racks", "ranks") if racks else ("hosts", "ranks"))
    command = ("show", table, str(run), "--json")
    if rng.random() < 0.5:
        path.write_text(text)
        return Question(
            (*command, "--cluster", str(path)),
            "as written",
            judge=lambda code, told, _: _wrong_places(hosts, racks, code, told),
        )
    how, text = _text(text, rng, mutations.changed_lines)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return Question((*command, "--cluster", str(path)), how)


def logs(folder: Path, rng: random.Random) -> Question:
    """The log of a training program."""
    how, text = _text(LOG, rng, mutations.changed_lines)
    path = folder / "a.log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    command = rng.choice((("runs", "show"), ("accuracy",), ("runs", "import-log", "--dry-run")))
    return Question((*command, str(path)), how)


def tables(folder: Path, rng: random.Random) -> Question:
    """A table of rates (CSV)."""
    text = "gpus,samples_per_s,batch\n1,100.5,32\n2,190,64\n4,350.25,128\n8,600,256\n"
    how, text = _text(text, rng, mutations.changed_lines)
    path = folder / "rates.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return Question((rng.choice(("scaling", "compare")), str(path), str(path)), how)


def databases_of_runs(folder: Path, rng: random.Random) -> Question:
    """A damaged database of runs."""
    path = folder / "runs.db"
    path.write_bytes(_example("runs"))
    if rng.random() < 0.5:
        how, data = mutations.damaged(path.read_bytes(), rng)
        path.write_bytes(data)
    else:
        how = mutations.change_database(path, rng)
    return Question((*_of_runs(rng), "--db", str(path)), how)


def exported(folder: Path, rng: random.Random) -> Question:
    """A file with exported runs."""
    how, text = _text(_example("exported").decode(), rng, mutations.changed_document)
    path = folder / "runs.json"
    path.write_text(text, "utf-8", "surrogatepass")
    command = rng.choice((("runs", "add", "--db", str(folder / "new.db")), ("runs", "show")))
    return Question((*command, str(path)), how)


def cuts(folder: Path, rng: random.Random) -> Question:
    """A file that `traceprof cut` wrote, damaged afterwards (all formats)."""
    kind = rng.choice(("sqlite", "json", "nvprof"))
    path = folder / f"cut.{kind}"
    path.write_bytes(_cut(kind))
    how = "as cut"
    if rng.random() < 0.8:
        how, data = mutations.damaged(path.read_bytes(), rng)
        path.write_bytes(data)
    return _ask(path, how, rng)


def cutting(folder: Path, rng: random.Random) -> Question:
    """`traceprof cut` of damaged files."""
    made = rng.choice((nsys_bytes, nsys_rows, nvprof_rows, kineto_values, kineto_bytes))
    question = made(folder, rng)
    window = rng.choice(("all", "first:2us", "1us..5us"))
    output = str(folder / "out")
    return Question(("cut", str(question.trace), "--window", window, "-o", output), question.how)


def pages(folder: Path, rng: random.Random) -> Question:
    """Reports, timelines, and comparisons of damaged files."""
    made = rng.choice((nsys_rows, nvprof_rows, kineto_values, own_recordings))
    question = made(folder, rng)
    path, output = str(question.trace), str(folder / "out.html")
    (folder / "other").write_bytes(_example("sqlite"))
    command = rng.choice(
        (
            ("analyze", path),
            ("report", path, "-o", output),
            ("timeline", path, "-o", output),
            ("timeline", path, "-o", output),
            ("compare", path, str(folder / "other")),
            ("show", "findings", path),
            ("explain", path, "slowest"),
        )
    )
    return Question(command, question.how)


def windows(folder: Path, rng: random.Random) -> Question:
    """Values of `--window`, `--step-ranges`, and `--against`."""
    path = folder / "trace.sqlite"
    path.write_bytes(_example("own"))
    options = (
        *(("--window", _noise(rng, _WINDOWS)), ("--step-ranges", _noise(rng, _PATTERNS))),
        *(("--link", _noise(rng, _LINKS)), ("--rack", _noise(rng, _RACKS))),
        *(("--gpu", _noise(rng, _PATTERNS)), ("--warmup", _noise(rng, ("1", "99999999999")))),
    )
    name, text = rng.choice((*options[:1] * 5, *options[1:2] * 2, *options))
    return Question(("show", "breakdown", str(path), f"{name}={text}"), name)


def steps(folder: Path, rng: random.Random) -> Question:
    """Values of `--steps`, `--delay`, `--duration`, and `--max-size` for `record`."""
    name = rng.choice(("--steps", "--delay", "--duration", "--max-size"))
    own = {"--steps": _STEP_NUMBERS, "--max-size": _SIZES}.get(name, _TIMES)
    text = _noise(rng, own if rng.random() < 0.8 else (*_STEP_NUMBERS, *_SIZES, *_TIMES))
    # Nothing may be recorded here: what is asked for is refused, or the program is not found.
    command = ("--with", "torch", "-o", str(folder / "t.sqlite"), "--", "/no/such/program")
    means = _has_meaning(name, text)

    def judge(code: int, _: str, said: str) -> str:
        if code == (5 if means else 2) and ("program not found" in said) == means:
            return ""
        return f"{name} {text!r} {'has' if means else 'has no'} meaning: exit {code}: {said[-200:]}"

    asked = ("record", f"{name}={text}", *command)
    return Question(asked, name, judge=None if means is None else judge)


def spools(folder: Path, rng: random.Random) -> Question:
    """The files that a recorded process leaves behind, line by line."""
    head = {"pid": 7, "argv": ["train.py"], "version": 1}
    lines = [json.dumps(head)]
    for step in range(30):
        at = 10**18 + step * 1000
        lines.append(json.dumps([at, at + 900, "step", step, 7, "s"]))
        lines.append(json.dumps([at + 10, at + 500, "forward", 0, 7, "p"]))
    how, text = _text("\n".join(lines) + "\n", rng, mutations.changed_lines)
    (folder / "events.7.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    return Question(("spool", str(folder)), how)


def same_execution(folder: Path, rng: random.Random) -> Question:
    """One execution in all formats, rewritten without a change of meaning."""
    trace, path = execution(rng), folder / "trace"
    form = rng.choice([*FORMS])
    changes = written(trace, form, path, rng, rng.randrange(6))

    def judge(code: int, told: str, said: str) -> str:
        how = f"{form}, {', '.join(changes)}"
        if code:
            return f"{how}: exit {code}: {said[-200:]}"
        return "".join(f"{how}: {wrong}"[:400] for wrong in wrong_answers(trace, told)[:1])

    asked = ("show", ",".join(ASKED), str(path), "--window", "all", "--json")
    return Question(asked, form, judge=judge)


def every_form(folder: Path, rng: random.Random) -> Question:
    """Damaged traces in JSON, CSV, Markdown, and text, through SQL, `ops`, and Python."""
    made = rng.choice((nsys_bytes, nsys_rows, nvprof_rows, kineto_values, kineto_bytes, gzipped))
    question = made(folder, rng)
    trace = question.trace
    assert trace is not None

    def judge(code: int, told: str, said: str) -> str:
        return "; ".join(forms.differences(trace, code, told, said))[:600]

    return Question((*forms.ASKED, str(trace), "--json"), question.how, judge=judge)


def toml_values(folder: Path, rng: random.Random) -> Question:
    """Valid TOML files of rules, hardware, and hosts with random values."""
    option, tables = rng.choice(
        (
            ("--rules", {"rule": ("activity", "pattern")}),
            ("--hardware", {"gpu": _OF_GPUS, "link": ("nic", "pcie", "nvlink")}),
            ("--cluster", {"hosts": ("a", "b"), "racks": ("r1",)}),
        )
    )
    how, text = mutations.document_of_toml(tables, rng)
    path, trace = folder / "settings.toml", folder / "trace.sqlite"
    path.write_text(text, "utf-8", "surrogatepass")
    trace.write_bytes(_example("sqlite"))
    return Question(("show", "kernels", str(trace), option, str(path), "--json"), how)


def user_patterns(folder: Path, rng: random.Random) -> Question:
    """Random regular expressions of a user, with names made for them."""
    pattern = mutations.any_pattern(rng)
    name = "".join(rng.choice("ab") * rng.randrange(1, 3_000) for _ in range(3)) + rng.choice("b!")
    path = folder / "trace.sqlite"
    builder = TraceBuilder().range(name, 0, 9_000).range("ab 12", 10_000, 12_000)
    write_nsys(builder.kernel(name, 1_000, 2_000, launched_ns=(100, 200)).build(), path)
    where = rng.choice(("--rules", "--name", "--window", "--step-ranges", "--pattern"))
    show = ("show", "kernels", str(path))
    if where == "--rules":
        rules_file = folder / "rules.toml"
        rules_file.write_text(f'[[rule]]\nactivity = "moe"\npattern = {json.dumps(pattern)}\n')
        return Question((*show, where, str(rules_file), "--json"), where)
    if where == "--pattern":
        log = folder / "own.log"
        log.write_text(f"{name}\nstep 3 loss 0.5\n")
        asked = ("runs", "import-log", str(log), "--dry-run", f"{where}=(?P<loss>{pattern})")
        return Question(asked, where)
    if where == "--name":
        return Question(("ops", str(path), f"{where}={pattern}", "--csv"), where)
    text = f"range:/{pattern}/" if where == "--window" else pattern
    return Question((*show, f"{where}={text}", "--json"), where)


def xplane_values(folder: Path, rng: random.Random) -> Question:
    """An XPlane file with invalid values, types, and field numbers."""
    path, data = folder / "trace.pb", _example("pb")
    for _ in range(rng.choice((1, 1, 3))):
        how, data = mutations.changed_message(data, rng)
    path.write_bytes(data)
    return Question(_about(path, rng), how)


def snapshot_bytes(folder: Path, rng: random.Random) -> Question:
    """A snapshot of the PyTorch allocator whose bytes are damaged."""
    how, data = mutations.damaged(pickle.dumps(_snapshot(), rng.choice((2, 4, 5))), rng)
    return _of_memory(folder, how, data, rng)


def snapshot_values(folder: Path, rng: random.Random) -> Question:
    """A snapshot of the PyTorch allocator with invalid values."""
    snapshot = _snapshot()
    for _ in range(rng.choice((1, 1, 3))):
        how = mutations.changed_values(snapshot, rng)
    return _of_memory(folder, how, pickle.dumps(snapshot, rng.choice((2, 4, 5))), rng)


def mcp_calls(folder: Path, rng: random.Random) -> Question:
    """MCP tool calls on damaged traces, with invalid arguments."""
    made = rng.choice((nsys_rows, kineto_values, own_recordings, many_ranks, xplane_values))
    how = made(folder, rng).how
    traces = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    trace = rng.choice((*traces, *traces, "."))
    known: dict[str, tuple[object, ...]] = {
        **dict.fromkeys(("trace", "base", "new"), (trace,) * 40 + ("../x", "/etc/passwd")),
        "window": ("", "all") * 20 + _WINDOWS,
        "noun": ("", *nouns()),
        "by": ("",) * 9 + ("name", "step", "rank", "duration"),
        "rows": (1, 20, 200, 10**9),
        "sql": ("", *_STATEMENTS),
        "step": ("slowest", "step:3", "step:1"),
        "against": ("", "", "step:2"),
    }
    tool = rng.choice([*_TOOLS])
    arguments: dict[str, object] = {name: rng.choice(known[name]) for name in _TOOLS[tool].split()}
    if rng.random() < 0.25:
        name = rng.choice([*arguments])
        told = arguments[name]
        odd = (
            *mutations.NUMBERS,
            *mutations.TEXTS,
            [],
            {},
            True,
            [told],
            _noise(rng, (str(told),)),
        )
        value = rng.choice(odd)
        arguments[name] = value.decode("latin-1") if isinstance(value, bytes) else value
        how = f"{tool}: {name}"
    return Question(("mcp", str(folder), tool, json.dumps(arguments)), how)


_TOOLS: Final = {
    "info": "trace",
    "page": "trace window",
    "findings": "trace window rows",
    "tables": "trace noun by window rows",
    "explain": "trace step against",
    "compare": "base new window",
    "query": "trace sql window rows",
}
"""The tools of the server, and their arguments."""
_STATEMENTS: Final = (
    *("SELECT * FROM kernels", "SELECT count(*) AS n, name FROM ranges GROUP BY 2", "SELECT 1"),
    *(
        "SELECT * FROM steps",
        "DROP TABLE kernels",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT",
    ),
    *("WITH RECURSIVE c(n) AS (SELECT 1 UNION SELECT n + 1 FROM c LIMIT 9999) SELECT * FROM c",),
)


def _of_memory(folder: Path, how: str, data: bytes, rng: random.Random) -> Question:
    path = folder / "memory.pickle"
    path.write_bytes(data)
    form = rng.choice((("--json",), ("--json",), ("--markdown",), (), ("-o", f"{folder}/out.html")))
    return Question(("memory", str(path), *form), how)


def _snapshot() -> dict[str, Any]:
    """Return what torch writes of a few steps."""
    allocator = Allocator()
    parameters = [allocator.alloc(2_000_000, forward(3, "module")) for _ in range(2)]
    for _ in range(2):
        activations = [allocator.alloc(size, forward(7)) for size in (700, 3_000_000)]
        gradient = allocator.alloc(2_000_000, backward("MmBackward0"))
        allocator.step()
        state = allocator.alloc(500_000, optimizer(9))
        for address in (*activations, gradient, state):
            allocator.free(address)
    allocator.free(parameters.pop())
    allocator.fail(1 << 33, 1 << 20)
    return allocator.snapshot()


CLASSES: Final[tuple[Maker, ...]] = (
    *(nsys_bytes, nsys_rows, nvprof_bytes, nvprof_rows, kineto_bytes, kineto_values, gzipped),
    *(own_recordings, many_ranks, manifests, rules, hardware, cluster, logs, tables),
    *(databases_of_runs, exported, cuts, cutting, pages, windows, steps, spools),
    *(
        same_execution,
        xplane_bytes,
        rocpd_bytes,
        rocpd_rows,
        every_form,
        toml_values,
        user_patterns,
    ),
    *(xplane_values, snapshot_bytes, snapshot_values, mcp_calls, rocprofv3_json),
)
CHEAP: Final = frozenset(
    (
        *("rules", "hardware", "cluster", "logs", "databases_of_runs", "exported", "cutting"),
        *("windows", "steps", "spools", "nvprof_bytes", "nsys_bytes", "kineto_bytes", "cuts"),
        *("tables", "toml_values", "user_patterns", "snapshot_bytes", "snapshot_values"),
    )
)
"""Classes that cost less CPU time than others."""

_WINDOWS: Final = (
    *("12ms..30ms", "@60.1s..@60.4s", "step:3..5", "step:3..", "first:2s", "last:2s", "steady"),
    *('range:"forward"#2', "range:/for.*/", "range:x@NCCL", "step:2 & range:forward", "all"),
    *("active", "pattern:3..5", "range:forward#2..5", "1e3us..", "..", "step:slowest"),
    *("30%..50%", "last:10%", "12.5%..", "steady & 10%..20%"),
)
_PATTERNS: Final = ("step.*", "(", "(a+)+$", "h100-sxm", "[", "\\", "(?P<n>x)", "step", "")
_LINKS: Final = ("pcie=gen4x16", "nic=400Gb/s", "nvlink=900GB/s", "x=1")
_RACKS: Final = ("r1=node[1-4]", "r=node[1-", "r=[0-999999999]", "r=*", "=", "r=a,b")
_SIGNS: Final = "0123456789.:#@&/\\\"'()[]{}*+?-_ eE%=,\x00\u202e\u0661\u221ens"


_OF_GPUS: Final = (
    *("key", "names", "tflops", "memory_gb_per_s", "pcie_generation", "source", "memory_gb", "sms"),
)
_STEP_NUMBERS: Final = ("3..5", " 20 .. 30", "0..0", "7", "5..3", "..5", "3..", "0")
_TIMES: Final = ("10s", "1min", "5ms", "1.5 s", ".5h", "+250us", "-1s", "1m", "7NS", "0s")
_SIZES: Final = ("100 MB", "1GB", "64kB", "1.5T", "500", "1GiB", "0", "12 b")
_RANKS_OF_HOSTS: Final = {
    "0": {0},
    "1": {1},
    "0-1": {0, 1},
    "1,0": {0, 1},
    "5-7": {5, 6, 7},
    "1-0": None,
    "x": None,
    "": None,
    "0-": None,
}
"""How the ranks of a host may be written → the ranks; None: it means nothing."""
_HOSTS_OF_RACKS: Final = {
    "n1": {"n1"},
    "n[1-2]": {"n1", "n2"},
    "n[1,2]": {"n1", "n2"},
    "n*": {"n1", "n2"},
    "*": {"n1", "n2", "a", "b"},
    "?": {"a", "b"},
    "b": {"b"},
    "z9": set(),
    "n[2-1]": None,
}


def _wrong_places(hosts: dict[str, str], racks: dict[str, str], code: int, told: str) -> str:
    """Return what is wrong with the places that two ranks got, one of the host a, one of b."""
    ranks_of = {host: _RANKS_OF_HOSTS[text] for host, text in hosts.items()}
    hosts_of = {rack: _HOSTS_OF_RACKS[text] for rack, text in racks.items()}
    is_good = None not in (*ranks_of.values(), *hosts_of.values())
    place, rack_of = {}, {}
    for rank, recorded in enumerate("ab"):
        own = [host for host, ranks in ranks_of.items() if ranks and rank in ranks]
        is_good = is_good and len(own) < 2
        place[rank] = (*own, recorded)[0]
        found = [rack for rack, of_rack in hosts_of.items() if of_rack and place[rank] in of_rack]
        is_good = is_good and len(found) < 2
        rack_of[rank] = (*found, "")[0]
    is_good = is_good and (not racks or any(rack_of.values()))
    if (code == 0) != is_good:
        return f"hosts {hosts}, racks {racks}: exit {code}"
    lost = [host for host in place.values() if code == 0 and f'"{host}"' not in told]
    return f"{lost} is not named" if lost and '"hosts"' in told else ""


def _has_meaning(name: str, text: str) -> bool | None:
    """Return whether a bound of a recording has a meaning; None: not judged."""
    if len(text) > 200 or "\x00" in text or not text.isascii():
        return None
    if name == "--steps":
        ends = [end.strip() for end in text.split("..")]
        is_span = len(ends) <= 2 and all(map(str.isdecimal, ends))
        return is_span and int(ends[0]) <= int(ends[-1])
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text.strip()[len(number) :].lower()
    number = number.strip()
    digits = number.removeprefix("+").replace(".", "", 1) if name != "--max-size" else number
    if name == "--max-size":
        parts = number.split(".")
        is_number = len(parts) <= 2 and all(map(str.isdecimal, parts))
        return is_number and unit in ("", "b", *(f"{one}{b}" for one in "kmgt" for b in ("", "b")))
    if len(digits) > 17:
        return None  # whether it fits
    return digits.isdecimal() and unit in ("ns", "us", "ms", "s", "min", "h")


def _noise(rng: random.Random, examples: tuple[str, ...]) -> str:
    text = list(rng.choice(examples))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.randrange(2)] = rng.choice((rng.choice(_SIGNS), "9" * 25, "A" * 2_000))
    return "".join(text).replace("\x00", rng.choice(("", "\x00")))


def _of_runs(rng: random.Random) -> tuple[str, ...]:
    return rng.choice(
        (
            *(("runs", "list"), ("runs", "show", "kept-1"), ("runs", "export")),
            *(("runs", "tag", "kept-0", "a=b"), ("runs", "rm", "kept-2")),
            *(("compare", "kept-0", "kept-1"), ("runs", "show", "kept-1", "--table", "steps")),
        )
    )


def _text(
    text: str,
    rng: random.Random,
    change: Callable[[str, random.Random], tuple[str, str]],
) -> tuple[str, str]:
    if rng.random() < 0.7:
        return change(text, rng)
    how, data = mutations.damaged(text.encode(), rng)
    return how, data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()


def _settings(folder: Path, rng: random.Random, option: str, text: str) -> Question:
    how, text = _text(text, rng, mutations.changed_lines)
    path, trace = folder / "settings.toml", folder / "trace.sqlite"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    trace.write_bytes(_example("sqlite"))
    return Question(("show", "kernels", str(trace), option, str(path), "--json"), how)


def _bytes(folder: Path, rng: random.Random, kind: str) -> Question:
    path = folder / f"trace.{kind}"
    how, data = mutations.damaged(_example(kind), rng)
    path.write_bytes(data)
    return _ask(path, how, rng)


def _rows(folder: Path, rng: random.Random, kind: str) -> Question:
    path = folder / f"trace.{kind}"
    path.write_bytes(_example(kind))
    for _ in range(rng.choice((1, 1, 2))):
        how = mutations.change_database(path, rng)
    return _ask(path, how, rng)


def _ask(path: Path, how: str, rng: random.Random) -> Question:
    return Question(_about(path, rng), how, path)


def _about(path: Path, rng: random.Random) -> tuple[str, ...]:
    table = rng.choice((*_OFTEN * 4, *_TABLES))
    form = rng.choice(("--json", "--json", "--csv", "--markdown", ""))
    if table == "info":
        return ("info", str(path))
    if form == "--csv" and "," in table:
        form = "--json"
    window = rng.choice(("all", "all", "active", "1us..4us"))
    return ("show", table, str(path), "--window", window, *([form] if form else []))


@functools.cache
def _example(kind: str) -> bytes:
    """Return the bytes of an undamaged file."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="traceprof-example-") as name:
        path = Path(name, "file")
        if kind == "sqlite":
            write_nsys(EXECUTION, path)
        elif kind == "nvprof":
            write_as_nvprof(EXECUTION, path)
        elif kind == "json":
            write_as_kineto(EXECUTION, path)
        elif kind == "rocpd":
            write_as_rocpd(EXECUTION, path)
        elif kind == "rocprofv3":
            write_as_rocprofv3_json(EXECUTION, path)
            return path.read_bytes()
        elif kind == "pb":
            return write_xplane(path, planes_of(EXECUTION)).read_bytes()
        elif kind.startswith("rank"):
            write_nsys(make_trace(3, rank=int(kind[-1])), path)
        elif kind == "own":
            write_nsys(make_trace(6), path)
        else:
            store = Store(path)
            for number in range(3):
                store.add(make_summary(f"kept-{number}"))
            if kind == "exported":
                return exported_runs([store.get(one) for one in store.names()]).encode()
        with closing(sqlite3.connect(path)) as database:
            if kind != "json":
                database.execute("PRAGMA journal_mode = DELETE")
        return path.read_bytes()


@functools.cache
def _cut(kind: str) -> bytes:
    import tempfile

    from traceprof.api.run import open as open_run

    with tempfile.TemporaryDirectory(prefix="traceprof-example-") as name:
        path, out = Path(name, "file"), Path(name, "out")
        path.write_bytes(_example(kind))
        open_run(path).within("1us..7us").cut(out)
        return out.read_bytes()
