"""Summarize the traces of a run.

The size of a summary is bounded. Notes report omitted rows, and sums stay exact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.comparison.sides import MAX_NAME_LENGTH
from traceprof.comparison.summary.attempts import with_attempts
from traceprof.comparison.summary.history import history_of_run
from traceprof.comparison.summary.measures import measures_of_run
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.members import find_members
from traceprof.measures.composition import WAITING, composition_of_devices, place_of_work
from traceprof.measures.device.times import used_devices
from traceprof.measures.idle.losses import scale_to_steps
from traceprof.measures.ranks.steps import find_rank_steps
from traceprof.measures.rows import Floats, Ints, Texts, lengths_of
from traceprof.measures.steps.base import STEP, base_of, base_within, counted_steps
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.workload import workload
from traceprof.model.activity import PARTS
from traceprof.model.grouping import Groups, beside, codes_of, grouped_by, groups_of, numbered
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.model.table import Table, is_known, objects
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.kernels import MATRIX_WORK, precisions
from traceprof.secrets import kept_variables
from traceprof.session.answer import PAGE, hardware_of, ranks_of_processes
from traceprof.session.caveats import caveats_of, refuses_with_caveats
from traceprof.session.run import Run
from traceprof.store.summaries import masked_run
from traceprof.units import format_bytes

_FACTS: Final = """
    host os kernel architecture=architecture|cpu_architecture cpu cpu_count=cpu.count|cpu_cores
    cpu_limit=cpu.limit container driver=driver|nvidia_driver cuda_driver=driver.cuda|cuda_driver
    cuda=cuda|cuda_runtime hip=hip|hip_runtime cudnn nccl backend mpi=mpi.library|mpi python torch
    numpy lightning=lightning|pytorch-lightning accelerate transformers deepspeed cupti
    git_commit=git.commit git_branch=git.branch command recorder exit_code
"""
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    name: (sources or name).split("|")
    for name, _, sources in (fact.partition("=") for fact in _FACTS.split())
}
"""The stored facts: each name in summaries, and its names in recordings."""
_UNKNOWN: Final = frozenset({"", "unknown", "none", "n/a"})
_VARIABLES: Final = re.compile(
    r"env\.((NCCL|RCCL|GLOO|CUDA|CUBLAS|CUDNN|OMP|MKL|TORCH|PYTORCH|UCX)_[A-Z0-9_]+)"
)
_NIC: Final = re.compile(r"nic\.([^.]+)\.speed_mbit_per_s")
_RDMA: Final = re.compile(r"rdma\.(.+)\.rate")
_MIN_PRECISION_RATIO: Final = 0.05


def environment_of(ranks: Ranks) -> dict[str, str]:
    """Return machine and software facts by their names in `Summary`.

    The names do not depend on the profiler. Values that may contain a secret are omitted.
    """
    whole = ranks.whole
    table = whole.table("environment")
    recorded = dict(zip(table["name"], table["value"], strict=True))
    return {name: value for name, value in _facts(whole, recorded) if value.lower() not in _UNKNOWN}


def _facts(ranks: Ranks, recorded: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact, known or not."""
    yield "profiler", ranks.info.profiler or next((p.info.profiler for p in ranks), "")
    for name, sources in _NAMES.items():
        yield name, next((recorded[source] for source in sources if recorded.get(source)), "")
    if recorded.get("cuda_driver", "").isdigit():
        yield "cuda_driver", _version(int(recorded["cuda_driver"]))
    if recorded.get("ram_bytes", "").isdigit():
        yield "ram", format_bytes(int(recorded["ram_bytes"]))
    models = hardware_of(ranks)
    yield "gpu", ", ".join(f"{n} × {name}" if n > 1 else name for name, n in models.items())
    yield "nic", ", ".join(_interfaces(recorded))
    state = {"changed": "yes", "clean": "no"}
    yield "git_is_dirty", state.get(recorded.get("git.state", ""), "")
    yield "precision", precision_of_run(ranks)
    matches = {name: _VARIABLES.fullmatch(name) for name in recorded}
    yield from kept_variables({m[1]: recorded[name] for name, m in matches.items() if m}).items()


def _version(number: int) -> str:
    """Format a version number of CUDA: 13000 as "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else str(number)


def _interfaces(recorded: Mapping[str, str]) -> Iterator[str]:
    """Yield the network interfaces with their speed."""
    for name, value in sorted(recorded.items()):
        if match := _NIC.fullmatch(name):
            yield f"{match[1]} {value} Mbit/s"
        elif match := _RDMA.fullmatch(name):
            yield f"{match[1]} {value}"


def _matrix_times(trace: Trace) -> dict[str, int]:
    """Return the time of matrix work in ns by element type, if it is known."""
    found, length = precisions(trace.kernels), lengths_of(trace.kernels)
    is_matrix = trace.kernels["activity"].isin([activity.value for activity in MATRIX_WORK])
    return {
        name: int(length[is_matrix & (found == name)].sum())
        for name in sorted(set(found[is_matrix].tolist()) - {""})
    }


def precision_of_run(ranks: Ranks) -> str:
    """Return the element types with at least 5% of the time of matrix work, by time."""
    sums: Counter[str] = Counter()
    for times in ranks.whole.each(_matrix_times):
        sums.update(times)
    whole = sum(sums.values())
    return ", ".join(name for name, ns in sums.most_common() if ns >= _MIN_PRECISION_RATIO * whole)


MAX_STEP_ROWS: Final = 4_000
"""Maximum number of stored step rows, over all ranks."""

_MIN_ROWS_PER_RANK: Final = 20
_SUMS: Final = (
    *("steps_count", "period_ns", "between_ns", "device_ns", "duration_ns"),
    *(f"{part}_ns" for part in PARTS),
    *("waited_ns", "samples_count"),
)


def rank_numbers(ranks: Ranks) -> tuple[Mapping[int, int], bool]:
    """Return the rank of each process with steps or GPU work, and whether ranks are guessed.

    Without recorded ranks, the processes are numbered. A single process is rank 0, which is no
    guess.
    """
    known = ranks_of_processes(ranks.whole)
    stepping = set(steps_of_ranks(ranks.whole).table["process"].tolist())
    active = sorted(stepping | {member.process for member in find_members(ranks.whole)})
    if all(process in known for process in active):
        return known, False
    return {process: place for place, process in enumerate(active)}, len(active) > 1


def steps_of_run(ranks: Ranks, window: TimeWindow) -> Table:
    """Return the steps of ``ranks``, or blocks of steps, in the form of `SUMMARY`.

    Steps that the base of ``window`` measures are marked as counted.
    """
    measured = measured_steps(ranks)
    if measured.is_pattern or measured.table.empty:
        return SUMMARY.table("steps").of_rows()
    steps, (numbers, _) = measured.table, rank_numbers(ranks)
    rank = [numbers[process] for process in steps["process"].tolist()]
    is_counted = counted_steps(ranks, window)
    lengths = np.where(is_counted & base_within(ranks, window).is_unprofiled, steps["period_ns"], 0)
    steps = steps.assign(
        attempt=0,
        rank=rank,
        steps_count=1,
        at_ns=steps["host_at_ns"],
        duration_ns=np.where(lengths > 0, lengths, steps["duration_ns"]),
        is_counted=is_counted,
    )
    found = find_rank_steps(ranks)
    waits = found.table
    if len(waits) and (waits["collectives_count"] > 0).any():
        shifts = [found.shifts.get(process, 0) for process in waits["process"].tolist()]
        rank_waits = waits.select("process", "waited_ns").assign(
            step=waits["step"] - np.array(shifts)
        )
        steps = beside(steps, rank_waits, "process", "step")
    return blocks_of_steps(steps)


def blocks_of_steps(steps: Table, most_rows: int = MAX_STEP_ROWS) -> Table:
    """Merge adjacent steps into blocks, if there are more than about ``most_rows`` rows.

    Blocks are the same on all ranks, and do not mix counted steps with other steps. Sums stay
    exact. A sum is unknown if a part of it is unknown, except that steps without a batch add no
    samples.
    """
    spec = SUMMARY.table("steps")
    steps = steps.in_order("attempt", "rank", "at_ns", "step")
    n_ranks = max(1, len(set(steps["rank"].tolist())))
    per_rank = max(_MIN_ROWS_PER_RANK, most_rows // n_ranks)
    place = grouped_by(steps, "attempt", "rank")[1].earlier
    size = -(-(int(place.max(initial=-1)) + 1) // per_rank)
    if size <= 1:
        return spec.of_rows(steps)
    flags = (codes_of(steps[name]) for name in ("is_warmup", "is_counted") if name in steps)
    number, first = numbered(*(steps["attempt"], steps["rank"], *flags, place // size))
    groups, found = groups_of(number), steps.take(first)
    for name in _SUMS:
        if name in steps:
            sums = groups.sums(steps[name])
            is_whole = groups.sums(is_known(steps[name])) == groups.counts
            is_kept = is_whole.all() or name == "samples_count"
            found = found.assign(**{name: sums if is_kept else np.where(is_whole, sums, np.nan)})
    return spec.of_rows(found)


def composition_of_run(ranks: Ranks) -> tuple[int, Table, tuple[Note, ...]]:
    """Return the number of active devices, the composition of the window, and notes.

    Columns: part, kind, name, ns, count, n_bytes (see `composition_of_devices`), over all devices.
    The ns add up to the measured steps over all devices, otherwise to the recorded part of the
    window.
    """
    spans = {
        (place, device): ranks.span
        for place, part in enumerate(ranks.whole.parts)
        for device in used_devices(part)
    }
    why_not = find_blame(ranks.whole).why_not
    composition = composition_of_devices(ranks, spans, knows_waits=not why_not)
    causes = np.where(composition["part"] == "idle", composition["kind"], "")
    scaled, _ = scale_to_steps(ranks, composition["ns"], causes.tolist())
    composition = composition.assign(
        name=_rank_names(composition, rank_numbers(ranks)[0]), ns=scaled
    )
    totals, groups = grouped_by(composition, "part", "kind", "name")
    totals = totals.assign(**_sums(composition, groups))
    note = Note.of("traceprof cannot attribute the waiting to a rank: {why}", why=why_not)
    return len(spans), totals, (note,) if why_not and len(spans) > 1 else ()


def _sums(made: Table, groups: Groups) -> dict[str, Ints | Floats]:
    return {name: groups.sums(made[name]) for name in ("ns", "count", "n_bytes")}


def _rank_names(made: Table, numbers: Mapping[int, int]) -> Texts:
    """Return the names with ranks instead of processes, which differ from run to run."""
    ranks = {f"process {process}": f"rank {rank}" for process, rank in numbers.items()}
    pairs = zip(made["kind"], made["name"], strict=True)
    return objects(ranks.get(name, name) if kind == WAITING else name for kind, name in pairs)


OTHERS: Final = "(others)"
"""Name of the merged rows whose time is too short to be stored by name."""

_MAX_RESULT_ROWS: Final = 250
_MAX_NAMES: Final = 300
_KEYS: Final = ("part", "kind", "class", "name")


def bounded_result(result: Result) -> Result:
    """Return a result with the first rows of its tables, and notes on the omitted rows."""
    notes = []
    tables = dict(result.tables)
    # Comparisons of iterations use these rows; comparisons of steps use the table `steps`.
    most = MAX_STEP_ROWS if result.scalars.get("is_pattern") else _MAX_RESULT_ROWS
    for name, table in result.tables.items():
        if len(table) > most:
            tables[name] = table.head(most)
            notes.append(
                Note.of(
                    "Stored {kept:count} of {n:count} rows of {name}.",
                    kept=most,
                    n=len(table),
                    name=name,
                )
            )
    return replace(result, tables=tables).with_notes(*notes)


def bounded_composition(made: Table) -> Table:
    """Keep the rows with the most time, and merge the others as `OTHERS`; all ns are kept.

    The other rows are merged by part, kind and class.
    """
    is_kept = np.zeros(len(made), np.bool_)
    is_kept[made.order("-ns")[:_MAX_NAMES]] = True
    pairs = zip(made["name"], is_kept.tolist(), strict=True)
    names = objects(name[:MAX_NAME_LENGTH] if kept else OTHERS for name, kept in pairs)
    made = made.assign(
        name=names, **{"class": objects(class_name or "" for class_name in made["class"])}
    )
    found, groups = grouped_by(made, *_KEYS)
    return found.assign(
        **_sums(made, groups), place_ratio=groups.weighted_means(made["place_ratio"], made["count"])
    )


STORED_ANALYSES: Final = (*PAGE, "classes", "layers", "ranks", "callers", "energy", "flops")
"""The analyses with stored results: those of the page, and those that comparisons use."""


@refuses_with_caveats
def summarize(run: Run, *, name: str = "", labels: Mapping[str, str] | None = None) -> Summary:
    """Return the summary of ``run`` in its selected window.

    ``name`` is the name of the run, by default that of its file or folder. Epochs, metrics and
    events cover the whole recording, and so do steps unless a window was selected.

    Raises:
        TraceError: the run cannot be read.
        UsageError: the window does not exist in this run.
    """
    whole = run.within("all").of_ranks().whole
    answers = run.answers(STORED_ANALYSES)
    selection = run.selection
    ranks = run.of_ranks()
    results = {table_name: bounded_result(result) for table_name, result in answers.results.items()}
    is_default = selection.window == run.within(None).selection.window
    tables = {
        "steps": steps_of_run(whole if is_default else ranks, ranks.span),
        **history_of_run(whole),
    }
    devices: int | None = None
    notes: tuple[Note, ...] = selection.notes
    if whole.recorded & set(DEVICE_TABLES):
        devices, made, on_them = composition_of_run(ranks)
        tables["makeup"] = bounded_composition(beside(made, place_of_work(ranks), "kind", "name"))
        notes += on_them
    notes += caveats_of(whole).notes
    _, are_guessed = rank_numbers(whole)
    if are_guessed:
        notes += (_RANKS_GUESSED,)
    base = base_of(ranks)
    steps_count = max(1, round(base.timed_count)) if base.unit == STEP else None
    tables["measures"] = measures_of_run(ranks, answers.results, tables)
    info = whole.info
    environment = environment_of(whole)
    command = environment.pop("command", "")
    found = Summary(
        name=name or Path(info.path).name or info.path,
        origin=info.format,
        command=command,
        workload=workload(whole).kind,
        started_utc_ns=_start(whole),
        environment=environment,
        labels=dict(labels or {}),
        sources=tuple(_sources(whole)),
        window=selection.label,
        window_ns=selection.window.duration_ns,
        steps_count=steps_count,
        devices_count=devices,
        tables={
            table_name: SUMMARY.table(table_name).of_rows(table)
            for table_name, table in tables.items()
        },
        results=results,
        notes=notes,
    )
    return masked_run(with_attempts(found, run.paths, run.opening.attempt))


_RANKS_GUESSED: Final = Note(
    "The files do not contain ranks. traceprof numbers the processes by process ID."
)


def _start(ranks: Ranks) -> int | None:
    """Return the start of the recording in ns since 1970; None if unknown."""
    epochs = (info.utc_epoch_ns for info in (ranks.info, *(part.info for part in ranks)))
    zero = next((epoch_ns for epoch_ns in epochs if epoch_ns is not None), None)
    return None if zero is None else zero + ranks.span.start_ns


def _sources(ranks: Ranks) -> Iterator[SourceFile]:
    """Yield the files of the run with their formats, sizes and ranks."""
    for part in ranks.whole.parts:
        path = Path(part.info.path)
        known = tuple(sorted(set(part.processes["rank"].tolist()) - {ABSENT}))
        yield SourceFile(str(path), part.info.format, _size(path), known)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
