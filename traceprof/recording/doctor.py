"""Check what this machine can record, what is missing, and how to install it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.cache.entries import VARIABLE, Cache
from traceprof.errors import TraceprofError
from traceprof.formats import compiled
from traceprof.formats.nsys.reports import find_importer
from traceprof.formats.nsys.split import read_traceprof_events
from traceprof.recording.machine import gpu_facts, has_gpu, mpi_facts, run_tool, why_no_counters
from traceprof.recording.recorders.cupti import RECORDER as CUPTI
from traceprof.recording.recorders.nsys.recorder import RECORDER as NSYS
from traceprof.recording.request import RecordRequest
from traceprof.recording.sampling.gpus import open_gpus
from traceprof.recording.sampling.host import read_rdma
from traceprof.recording.trial import known_work, trial_failure, try_recorder
from traceprof.units import format_bytes

_TIMEOUT_S: Final = 120
_VERSION: Final = re.compile(r"(?<!\d)\d++\.\d++(?:\.\d++)*+")
_OLDEST_TORCH: Final = (2, 1)
_MAX_TRIALS: Final = 3  # nsys itself sometimes fails on a busy machine
_TRIAL_RANGES: Final = 20
_TORCH_PROBE: Final = (
    "import torch; p = torch.profiler;"
    " gpu = p.ProfilerActivity.CUDA in p.supported_activities() and torch.cuda.is_available();"
    " print(torch.__version__, 'with CUPTI' if gpu else 'CPU only')"
)


class Check(NamedTuple):
    """The result of one check.

    ``advice`` is the exact action to take, "" where no action is necessary.
    """

    name: str
    is_ok: bool
    found: str
    advice: str = ""


def examine() -> list[Check]:
    """Run all checks and return their results in order."""
    return [check() for check in CHECKS.values()]


def _check_torch() -> Check:
    python = _python()
    answer = _last_line([python, "-c", _TORCH_PROBE])
    if answer is None:
        advice = f"{python} -m pip install torch (only for programs that use torch)"
        return Check("torch", False, f"{python} cannot import torch", advice)
    version = _VERSION.match(answer)
    if version and tuple(map(int, version.group().split(".")[:2])) < _OLDEST_TORCH:
        advice = f"{python} -m pip install --upgrade torch (2.1 or newer)"
        return Check("torch", False, f"torch {answer} ({python}) is too old", advice)
    return Check("torch", True, f"torch {answer} ({python}): can record operators (--with torch)")


def _check_gpu() -> Check:
    facts = gpu_facts()
    names = [value for name, value in facts.items() if re.fullmatch(r"gpu\.\d+\.name", name)]
    if names:
        return Check("gpu", True, f"{', '.join(names)}; driver {facts['driver']}")
    if has_gpu():
        advice = f"{sys.executable} -m pip install nvidia-ml-py"
        return Check("gpu", True, "GPU found, but no details (NVML is not available)", advice)
    advice = "install the NVIDIA driver (not needed to train on the CPU)"
    return Check("gpu", False, "the driver reports no GPU", advice)


def _check_counters() -> Check:
    reason = why_no_counters()
    if reason is None:
        return Check("gpu counters", True, "GPU metrics are readable (--gpu-metrics)")
    advice = "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
    return Check("gpu counters", False, reason, advice if "root" in reason else "")


def _check_nsys() -> Check:
    nsys = shutil.which("nsys")
    if nsys is None:
        advice = "apt-get install nsight-systems, or see developer.nvidia.com/nsight-systems"
        return Check("nsys", False, "not on PATH", advice)
    version = _version_of([nsys, "--version"])
    if find_importer(nsys) is None:
        advice = "install the complete Nsight Systems package to convert .qdstrm reports"
        return Check("nsys", False, f"nsys {version} lacks QdstrmImporter", advice)
    why = trial_failure(NSYS, _python()) if has_gpu() else ""
    if why:
        advice = "install an nsys as new as the driver from developer.nvidia.com/nsight-systems"
        return Check("nsys", False, f"nsys {version} ({nsys}): {why}", advice)
    return Check("nsys", True, f"nsys {version} ({nsys})")


def _check_cupti() -> Check:
    why = CUPTI.missing()
    if why is not None:
        return Check("cupti", False, why)
    arguments, why = try_recorder(CUPTI, _python())
    if why:
        return Check("cupti", False, why, "record with --with nsys or --with torch")
    work = ", ".join(f"{count} {what}" for what, count in known_work().items())
    more = f" with {', '.join(arguments)}" if arguments else ""
    return Check("cupti", True, f"a test recording{more} captured everything: {work}")


def _python() -> str:
    """Return the Python that most likely runs the user's programs."""
    return shutil.which("python") or sys.executable


def _check_nvtx() -> Check:
    """Check that nsys records NVTX ranges, with up to `_MAX_TRIALS` test recordings."""
    if NSYS.missing() is not None:
        return Check("nvtx", False, "not tested because nsys is not installed", "")
    for n_trials in range(1, _MAX_TRIALS + 1):
        check = _try_ranges()
        if check.is_ok and n_trials > 1:
            return check._replace(found=f"{check.found} (in 1 of {n_trials} test recordings)")
        if check.is_ok:
            break
    return check


def _try_ranges() -> Check:
    try:
        n_recorded, why = _count_recorded_ranges()
    except TraceprofError as error:
        n_recorded, why = 0, str(error)
    if why:
        return Check("nvtx", False, f"a test recording failed: {why}", "record with --with torch")
    if n_recorded == _TRIAL_RANGES:
        return Check("nvtx", True, "nsys records ranges")
    found = f"nsys recorded only {n_recorded} of {_TRIAL_RANGES} ranges"
    found = found if n_recorded else "nsys does not record ranges"
    return Check(
        "nvtx", False, found, "none needed: traceprof adds missing ranges from its own recording"
    )


def _count_recorded_ranges() -> tuple[int, str]:
    """Return how many ranges of a test program nsys recorded, and why it recorded none."""
    root = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory(prefix="traceprof-doctor-") as name:
        folder = Path(name)
        code = (
            f"import sys; sys.path.append({root!r})\n"
            f"import traceprof\nfor _ in range({_TRIAL_RANGES}):\n"
            "    with traceprof.range('trial'): pass"
        )
        request = RecordRequest([sys.executable, "-c", code], folder / "trial.sqlite")
        run = NSYS.collect(request, folder, NSYS.run(request, folder))
        if run.database is None:
            return 0, "; ".join(run.notes) or "nsys wrote no output"
        return read_traceprof_events(run.database).n_ranges.total(), ""


def _check_nvprof() -> Check:
    nvprof = shutil.which("nvprof")
    if nvprof is None:
        return Check("nvprof", False, "not on PATH", "only needed for GPUs older than Volta")
    version = _version_of([nvprof, "--version"])
    return Check("nvprof", True, f"nvprof {version} (only GPUs below compute capability 8.0)")


def _check_package(package: str, module: str, purpose: str) -> Check:
    if importlib.util.find_spec(module) is not None:
        return Check(package, True, purpose)
    advice = f"{sys.executable} -m pip install {package}"
    return Check(package, False, f"not installed (no {purpose})", advice)


def _check_psutil() -> Check:
    ports = sorted({source.partition(":")[2] for source, _, _ in read_rdma()})
    more = f"; RDMA ports {', '.join(ports)}" if ports else ""
    return _check_package("psutil", "psutil", f"network and process samples{more}")


def _check_nvml() -> Check:
    check = _check_package("nvidia-ml-py", "pynvml", "GPU samples")
    found = sorted({metric for _, read in open_gpus() for _, metric, _ in read()})
    return check._replace(found=f"GPU samples: {', '.join(found)}") if found else check


def _check_mpi() -> Check:
    facts = mpi_facts()
    if not facts:
        return Check("mpi", False, "mpirun is not on PATH", "only needed to run programs with it")
    return Check("mpi", True, f"{facts['mpi'] or 'unknown MPI'} ({facts['mpi.launcher']})")


def _check_cache() -> Check:
    cache = Cache.of_user()
    if cache is None:
        found = f"off ({VARIABLE} turns it off, or there is no home folder)"
        return Check("cache", False, found, "none needed: the cache only saves time")
    usage = cache.usage()
    limit = format_bytes(cache.largest_bytes)
    content = f"{usage.entry_count} results and exports, {format_bytes(usage.total_bytes)}"
    if not cache.is_writable():
        advice = f"set {VARIABLE}=FOLDER to a folder that only you can write to"
        return Check("cache", False, f"{cache.folder}: not usable", advice)
    return Check("cache", True, f"{cache.folder}: {content} of at most {limit}")


def _check_decoder() -> Check:
    if compiled.loaded() is not None:
        return Check("decoder", True, "compiled decoder available")
    advice = "install a C compiler, then pip install --force-reinstall traceprof (for large files)"
    return Check("decoder", False, "Python decoder only; large traces are read more slowly", advice)


CHECKS: Final[Mapping[str, Callable[[], Check]]] = {
    "torch": _check_torch,
    "gpu": _check_gpu,
    "gpu counters": _check_counters,
    "cupti": _check_cupti,
    "nsys": _check_nsys,
    "nvtx": _check_nvtx,
    "nvprof": _check_nvprof,
    "psutil": _check_psutil,
    "nvidia-ml-py": _check_nvml,
    "mpi": _check_mpi,
    "cache": _check_cache,
    "decoder": _check_decoder,
    "pyarrow": partial(_check_package, "pyarrow", "pyarrow", "Parquet, Arrow, and CSV exports"),
}


def _last_line(command: list[str]) -> str | None:
    """Return the last line that a tool prints, None where the tool fails."""
    result = run_tool(command, _TIMEOUT_S)
    lines = (
        result.stdout.strip().splitlines() if result is not None and not result.returncode else []
    )
    return lines[-1] if lines else None


def _version_of(command: list[str]) -> str:
    match = _VERSION.search(_last_line(command) or "")
    return match.group() if match else "(unknown version)"
