"""The process record: files that describe this process and its end, read after the run."""

import importlib
import json
import os
import platform
import sys
import time
import types
from operator import attrgetter

from . import settings
from .after_import import complain
from .clock import time_ns
from .identity import identity, parent, start_ticks, stat

_RANK_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"),
}
# Set by torchrun in its workers: identifies one of several attempts of the program
_START_VARIABLES = {
    "run_id": "TORCHELASTIC_RUN_ID",
    "restart_count": "TORCHELASTIC_RESTART_COUNT",
    "group_rank": "GROUP_RANK",
}
_MAX_ANCESTORS = 32
_LOADED_NS = time_ns()
_PACKAGES = (
    "numpy",
    "lightning",
    "pytorch-lightning",
    "accelerate",
    "transformers",
    "deepspeed",
    "mpi4py",
    "nvtx",
)
# Variables with these prefixes are recorded, except those that a launcher sets for one rank only.
_VARIABLE_PREFIXES = (
    "NCCL_",
    "RCCL_",
    "GLOO_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "OMP_",
    "MKL_",
    "KMP_",
    "UCX_",
    "UCC_",
    "FI_",
    "OMPI_",
    "I_MPI_",
    "MPICH_",
    "MV2_",
    "MVP_",
)
_RANK_SUFFIXES = ("RANK", "LOCALID", "PROCID")


def write_process_record(**overrides):
    """Write (or overwrite) the record of this process; ``overrides`` replace values found here."""
    secrets = _load_secrets()
    prefixed = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_VARIABLE_PREFIXES) and not name.endswith(_RANK_SUFFIXES)
    }
    record = {
        "pid": os.getpid(),
        "ancestors": _find_ancestors(),
        "argv": secrets.masked_command(sys.argv) if secrets else sys.argv[:1],
        "executable": sys.executable,
        "started_ns": _LOADED_NS if settings.IS_INSIDE else _read_start_ns(),
        "software": _read_versions(),
        "variables": secrets.kept_variables(prefixed) if secrets else {},
    }
    for name, variables in _RANK_VARIABLES.items():
        values = [os.environ[variable] for variable in variables if variable in os.environ]
        record[name] = int(values[0]) if values and values[0].isdigit() else None
    for name, variable in _START_VARIABLES.items():
        record[name] = os.environ.get(variable)
    record.update(overrides)
    write("process.%s.json", record)


def _load_secrets():
    """Return the module `traceprof.secrets`, which masks secrets; None if it cannot be loaded.

    The program's Python may lack traceprof, so the module is loaded from its file, in a package of
    another name.
    """
    name = "_traceprof_alone"
    try:
        if name not in sys.modules:
            package = types.ModuleType(name)
            inject = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            package.__path__ = [os.path.dirname(os.path.dirname(inject))]
            sys.modules[name] = package
        return importlib.import_module(name + ".secrets")
    except Exception as error:
        complain("arguments and environment variables are not recorded", error)
        return None


def note_end(failed=None, counts=None):
    """Write that this process ended in order, and whether an uncaught error ended it.

    ``counts`` are the event counts of the spool (made, thinned, stopped).
    """
    if failed is None:
        failed = getattr(sys, "last_value", None) is not None
    ended = "failed" if failed else "finished"
    write("end.%s.json", dict(counts or {}, ended_ns=time_ns(), ended=ended))


def write(name, record):
    """Write ``record`` as JSON for the recorder; ``%s`` in ``name`` is the process identity."""
    path = os.path.join(settings.DIRECTORY, name % identity())
    try:
        with open(path + ".tmp", "w") as file:
            json.dump(record, file)
        os.replace(path + ".tmp", path)
    except OSError as error:
        sys.stderr.write("traceprof: %s: %s\n" % (path, error))


def note_child():
    """Append the identity of this forked process to the list of its parent's children."""
    try:
        path = os.path.join(settings.DIRECTORY, "children.%s" % parent())
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, (identity() + "\n").encode())
        os.close(file)
    except OSError:
        pass  # without this entry, the child is listed separately from its parent


def _read_start_ns():
    """Return the start time of this process, in ns since 1970; it precedes the start of Python."""
    try:
        since_boot_ns = start_ticks() * (1000000000 // os.sysconf("SC_CLK_TCK"))
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns
        return time_ns() - max(age_ns, 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return _LOADED_NS


def _find_ancestors():
    """Return the PIDs of the parent, its parent, and so on, as far as /proc shows them."""
    pids, pid = [], os.getppid()
    while pid > 0 and len(pids) < _MAX_ANCESTORS:
        pids.append(pid)
        try:
            if os.readlink("/proc/self") != str(os.getpid()):
                break  # /proc belongs to another PID namespace
            pid = stat(pid, 1)
        except (OSError, ValueError, IndexError):
            break
    return pids


def _read_versions():
    """Return the versions of software that only this process can read."""
    versions = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        versions["torch.git"] = getattr(torch.version, "git_version", None)
        versions["cuda"] = torch.version.cuda
        versions["hip"] = getattr(torch.version, "hip", None)
        if torch.version.cuda:  # only compiled-in versions: this must not initialize the driver
            versions["cudnn"] = _call_version(torch, "_C._cudnn.getCompileVersion")
            versions["nccl"] = _call_version(torch, "cuda.nccl.version")
        distributed = getattr(torch, "distributed", None)
        if getattr(distributed, "is_mpi_available", bool)():
            versions["torch.mpi"] = "yes"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        versions["mpi.library"] = mpi.Get_library_version().partition("\n")[0].rstrip("\0")
    from importlib import metadata

    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {name: str(value) for name, value in versions.items() if value}


def _call_version(torch, function):
    """Return the version tuple of a function of torch, joined by dots; None if the call fails."""
    try:
        return ".".join(map(str, attrgetter(function)(torch)()))
    except (AttributeError, RuntimeError, TypeError):
        return None
