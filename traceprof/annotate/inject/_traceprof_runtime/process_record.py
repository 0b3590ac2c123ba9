"""The record of a process: who it is, for the recorder to read after the run."""

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
# Of torchrun's workers: one of several starts of the program
_START_VARIABLES = {
    "run_id": "TORCHELASTIC_RUN_ID",
    "restart_count": "TORCHELASTIC_RESTART_COUNT",
    "group_rank": "GROUP_RANK",
}
_MAX_ANCESTORS = 32
_LOADED_NS = time_ns()
_PACKAGES = ("numpy", "lightning", "pytorch-lightning", "accelerate", "transformers", "deepspeed")
_PACKAGES += ("mpi4py", "nvtx")
# Launchers set some for their processes only.
_VARIABLES = ("NCCL_", "RCCL_", "GLOO_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "OMP_")
_VARIABLES += ("MKL_", "KMP_", "UCX_", "UCC_", "FI_", "OMPI_", "I_MPI_", "MPICH_", "MV2_", "MVP_")
_OF_ONE_RANK = ("RANK", "LOCALID", "PROCID")


def write_process_record(**more):
    """Write (again) the record of this process; ``more`` overrides what the environment says."""
    secrets = _load_secrets()
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES) and not name.endswith(_OF_ONE_RANK)
    }
    record = {
        "pid": os.getpid(),
        "ancestors": _ancestors(),
        "argv": secrets.masked_command(sys.argv) if secrets else sys.argv[:1],
        "executable": sys.executable,
        "started_ns": _LOADED_NS if settings.IS_INSIDE else _started_ns(),
        "software": _software(),
        "variables": secrets.kept_variables(own) if secrets else {},
    }
    for name, variables in _RANK_VARIABLES.items():
        values = [os.environ[variable] for variable in variables if variable in os.environ]
        record[name] = int(values[0]) if values and values[0].isdigit() else None
    for name, variable in _START_VARIABLES.items():
        record[name] = os.environ.get(variable)
    record.update(more)
    write("process.%s.json", record)


def _load_secrets():
    """Return traceprof's own module that masks secrets, None where it cannot be loaded.

    The program's Python need not have traceprof: its files are loaded by themselves.
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
    """Note that this process ends by itself, and whether by an error that nobody caught.

    ``counts`` are how many events it made, and what became of them.
    """
    if failed is None:
        failed = getattr(sys, "last_value", None) is not None
    ended = {"ended_ns": time_ns(), "ended": "failed" if failed else "finished"}
    write("end.%s.json", dict(counts or {}, **ended))


def write(name, record):
    """Write an object for the recorder to read; ``name`` has a place for the process."""
    path = os.path.join(settings.DIRECTORY, name % identity())
    try:
        with open(path + ".tmp", "w") as file:
            json.dump(record, file)
        os.replace(path + ".tmp", path)
    except OSError as error:
        sys.stderr.write("traceprof: %s: %s\n" % (path, error))


def note_child():
    """Note, in a process that was just forked, whose child it is."""
    try:
        path = os.path.join(settings.DIRECTORY, "children.%s" % parent())
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, (identity() + "\n").encode())
        os.close(file)
    except OSError:
        pass  # what it does is then told apart from what its parent does


def _started_ns():
    """Return when this process was started, in ns since 1970: some time before Python runs."""
    try:
        since_boot_ns = start_ticks() * (1000000000 // os.sysconf("SC_CLK_TCK"))
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns
        return time_ns() - max(age_ns, 0)
    except (OSError, ValueError, IndexError, AttributeError):
        return _LOADED_NS


def _ancestors():
    """Return the ids of the parent, its parent and so on, as far as the system tells."""
    found, pid = [], os.getppid()
    while pid > 0 and len(found) < _MAX_ANCESTORS:
        found.append(pid)
        try:
            if os.readlink("/proc/self") != str(os.getpid()):
                break  # it is that of another PID namespace
            pid = stat(pid, 1)
        except (OSError, ValueError, IndexError):
            break
    return found


def _software():
    """Return the versions that only this process knows."""
    found = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        found["torch.git"] = getattr(torch.version, "git_version", None)
        found["cuda"] = torch.version.cuda
        found["hip"] = getattr(torch.version, "hip", None)
        if torch.version.cuda:  # asked of the build: the driver must not be touched here
            found["cudnn"] = _version(torch, "_C._cudnn.getCompileVersion")
            found["nccl"] = _version(torch, "cuda.nccl.version")
        distributed = getattr(torch, "distributed", None)
        if getattr(distributed, "is_mpi_available", bool)():
            found["torch.mpi"] = "yes"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        found["mpi.library"] = mpi.Get_library_version().partition("\n")[0].rstrip("\0")
    from importlib import metadata

    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {name: str(value) for name, value in found.items() if value}


def _version(torch, function):
    try:
        return ".".join(map(str, attrgetter(function)(torch)()))
    except (AttributeError, RuntimeError, TypeError):
        return None
