"""Read facts about this machine: processor, network, GPUs, MPI, and the version of the code."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from traceprof.secrets import kept_variables, masked_command, storable, without_login

_DRIVER_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
_NVLINK_SPEED_FIELD: Final = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: per link, one way
_MAX_LINKS: Final = 36
_GPU_FILES: Final = ("kfd", "dxg", "nvmap", "nvhost-gpu", "accel*", "dri/renderD*")
"""Device files of the GPUs that `has_gpu` does not know: AMD, WSL, Jetson, and others."""
# nvmlGpuTopologyLevel_t → its name in `nvidia-smi topo -m`
_TOPOLOGY_LEVELS: Final = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

Facts = Iterator[tuple[str, str]]
_NO_LIMIT_BYTES: Final = 1 << 62
"""Version 1 of cgroups has a limit near this number if there is none."""
_INTERFACES: Final = Path("/sys/class/net")
_INFINIBAND: Final = Path("/sys/class/infiniband")
_CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
_INTERFACE_UNITS: Final = {"speed": "speed_mbit_per_s", "mtu": "mtu_bytes", "operstate": "state"}
_LAUNCHERS: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "mpirun_rsh")
_MPI_VERSIONS: Final = (
    ("Open MPI", re.compile(r"\(Open MPI\) (\S+)")),
    ("Open MPI", re.compile(r"\(OpenRTE\) (\S+)")),
    (
        "Intel MPI",
        re.compile(r"Intel\(R\) MPI Library[^,\n]{0,99}, Version ([\d.]+(?: Update \d+)?)"),
    ),
    ("IBM Spectrum MPI", re.compile(r"IBM Spectrum MPI\D{0,99}([\d.]+)")),
    ("MVAPICH", re.compile(r"^MVAPICH2?[ -]Version:\s*(\S+)", re.MULTILINE)),
    ("MPICH", re.compile(r"^MPICH Version:\s*(\S+)", re.MULTILINE)),
    ("MPICH or a relative", re.compile(r"HYDRA build details:\s+Version:\s*(\S+)")),
)


@cache
def has_gpu() -> bool:
    """Return whether the driver reports a GPU. Device files can exist without a GPU."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def count_of_no_gpu(devices: Path = Path("/dev")) -> dict[str, str]:
    """Return that this machine has 0 GPUs if Linux shows none of any vendor, else nothing."""
    if has_gpu() or platform.system() != "Linux":
        return {}
    has_other = any(found for pattern in _GPU_FILES for found in devices.glob(pattern))
    return {} if has_other else {"gpu.count": "0"}


def why_no_counters() -> str | None:
    """Return why the GPU metrics (hardware counters) cannot be read, None if they can."""
    try:
        is_restricted = "RmProfilingAdminOnly: 1" in _DRIVER_PARAMETERS.read_text()
    except OSError:
        return "no NVIDIA driver is loaded"
    return "only root can read GPU metrics" if is_restricted and os.geteuid() else None


def open_nvml() -> tuple[Any, list[Any]]:
    """Return NVML and the handles of the GPUs; None and [] without driver or Python package."""
    if importlib.util.find_spec("pynvml") is None:
        return None, []
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return nvml, [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    except nvml.NVMLError:
        return None, []


def gpu_facts() -> dict[str, str]:
    """Return the driver's facts about itself, the GPUs, and the links between the GPUs.

    ``gpu.0.pcie`` is the fastest link that the GPU and its slot support. ``gpu.0.path.1`` is the
    connection between GPUs 0 and 1, with the names of ``nvidia-smi topo``. ``gpu.0.nvlink`` is the
    number of active links, with the rate of each link in one direction. Unsupported facts are
    omitted.
    """
    nvml, handles = open_nvml()
    if nvml is None:
        return {}
    facts = dict(_query_facts(nvml, _DRIVER_QUERIES))
    for number, handle in enumerate(handles):
        facts |= {
            f"gpu.{number}.{name}": value
            for name, value in _query_facts(nvml, _GPU_QUERIES, handle)
        }
        facts |= dict(_paths(nvml, handles, number))
    return facts | dict(_direct_links(nvml, handles))


def _query_facts(nvml: Any, queries: dict[str, Callable[..., str]], *handle: Any) -> Facts:
    """Yield (name, value) of each query that the driver supports and that returns a value."""
    for name, query in queries.items():
        try:
            answer = query(nvml, *handle)
        except nvml.NVMLError:
            continue
        if answer:
            yield name, answer


def _nvlink(nvml: Any, gpu: Any) -> str:
    """Return the number and rate of the active NVLinks of a GPU, "" for none."""
    count, rate = len(_active_links(nvml, gpu)), _link_rate(nvml, gpu)
    return f"{count} links of {rate:g} GB/s" if count and rate else ""


def _active_links(nvml: Any, gpu: Any) -> list[int]:
    """Return the numbers of the active NVLinks of a GPU."""
    active = []
    for link in range(_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                active.append(link)
        except nvml.NVMLError:
            break
    return active


def _link_rate(nvml: Any, gpu: Any) -> float:
    """Return the rate of one NVLink in one direction in GB/s, 0 where it is unknown."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [_NVLINK_SPEED_FIELD])
    return field.value.uiVal / 1000 if field.nvmlReturn == nvml.NVML_SUCCESS else 0.0


def _cuda_version(nvml: Any) -> str:
    number = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


_DRIVER_QUERIES: Final[dict[str, Callable[..., str]]] = {
    "driver": lambda nvml: _decode(nvml.nvmlSystemGetDriverVersion()),
    "driver.cuda": _cuda_version,
}
_GPU_QUERIES: Final[dict[str, Callable[..., str]]] = {
    "name": lambda nvml, gpu: _decode(nvml.nvmlDeviceGetName(gpu)),
    "uuid": lambda nvml, gpu: _decode(nvml.nvmlDeviceGetUUID(gpu)),
    "memory_bytes": lambda nvml, gpu: str(nvml.nvmlDeviceGetMemoryInfo(gpu).total),
    "compute_capability": lambda nvml, gpu: ".".join(
        map(str, nvml.nvmlDeviceGetCudaComputeCapability(gpu))
    ),
    "pcie": lambda nvml, gpu: (
        f"gen {nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)} "
        f"x{nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)}"
    ),
    "nvlink": _nvlink,
}


def _paths(nvml: Any, gpus: Sequence[Any], number: int) -> Facts:
    """Yield the topology level between a GPU and each GPU with a larger number."""
    for other in range(number + 1, len(gpus)):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[number], gpus[other])
        except nvml.NVMLError:
            continue
        if level in _TOPOLOGY_LEVELS:
            yield f"gpu.{number}.path.{other}", _TOPOLOGY_LEVELS[level]


def _direct_links(nvml: Any, gpus: Sequence[Any]) -> Facts:
    """Yield the direct NVLinks (without switch) between GPUs, with the rate of both directions.

    The format is that of the profilers, which `traceprof.measures.device.peaks` reads.
    """
    bus = attrgetter("domain", "bus", "device")
    try:
        numbers = {bus(nvml.nvmlDeviceGetPciInfo(gpu)): i for i, gpu in enumerate(gpus)}
        pairs: Counter[tuple[int, int]] = Counter()
        for number, gpu in enumerate(gpus):
            for link in _active_links(nvml, gpu):
                second = numbers.get(bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link)), -1)
                if second > number:
                    pairs[number, second] += 1
        rates = [_link_rate(nvml, gpu) for gpu in gpus]
    except nvml.NVMLError:
        return
    for (first, second), count in sorted(pairs.items()):
        if rates[first]:
            total = 2 * count * rates[first]
            yield f"nvlink device {first} - device {second}", f"{count} links, {total:g} GB/s"


def _decode(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def machine_facts() -> dict[str, str]:
    """Return facts about the operating system, the processor, and the memory."""
    cpu = _cpu_info()
    return {
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": "-".join(filter(None, platform.libc_ver())),
        "cpu": cpu.get("model name", platform.processor()),
        "cpu.count": str(os.cpu_count() or ""),
        "cpu.allowed": str(len(os.sched_getaffinity(0))),
        "cpu.limit": _read_text(Path("/sys/fs/cgroup/cpu.max")),
        "ram_bytes": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "ram_limit_bytes": memory_limit(),
        "address_space_limit_bytes": _address_space_limit(),
        "container": "yes" if any(mark.exists() for mark in _CONTAINER_MARKS) else "",
    }


def _address_space_limit() -> str:
    """Return the limit of `ulimit -v` in bytes; "" without a limit."""
    import resource  # noqa: PLC0415 (not available on Windows)

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if limit == resource.RLIM_INFINITY else str(limit)


def memory_limit(
    root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")
) -> str:
    """Return the smallest memory limit of the cgroup of this process and its parents, in bytes.

    The names of the files are those of version 2, and of version 1. Without a limit: "".
    """
    found = []
    for line in _read_text(groups).splitlines() or ["0::/"]:
        number, controllers, name = [*line.split(":", 2), "", ""][:3]
        if number == "0" or "memory" in controllers.split(","):
            is_old = bool(controllers)
            folder = root / controllers if is_old else root
            file = "memory.limit_in_bytes" if is_old else "memory.max"
            path = folder / name.lstrip("/")
            places = [path, *(parent for parent in path.parents if parent.is_relative_to(folder))]
            found += [_read_text(place / file) for place in {*places, folder}]
    limits = [int(text) for text in found if text.isdecimal() and int(text) < _NO_LIMIT_BYTES]
    return str(min(limits)) if limits else ""


def network_facts(interfaces: Path = _INTERFACES, infiniband: Path = _INFINIBAND) -> Facts:
    """Yield (name, value) about network interfaces and RDMA ports."""
    for interface in sorted(interfaces.glob("*")):
        for name, fact in _INTERFACE_UNITS.items():
            value = _read_text(interface / name)
            if value and value != "-1":
                yield f"nic.{interface.name}.{fact}", value
    for port in sorted(infiniband.glob("*/ports/*")):
        for name in ("rate", "link_layer", "state"):
            yield f"rdma.{port.parent.parent.name}.{port.name}.{name}", _read_text(port / name)


def has_rdma() -> bool:
    """Return whether the machine has InfiniBand or RoCE adapters."""
    return any(_INFINIBAND.glob("*"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.platform()


def _cpu_info() -> dict[str, str]:
    """Return the entries of /proc/cpuinfo for the first processor."""
    first = _read_text(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def mpi_facts(command: Sequence[str] = ()) -> dict[str, str]:
    """Return name, version, and path of the MPI whose launcher is in ``command`` or on PATH.

    MVAPICH uses the launcher of MPICH (Hydra). The ``mpichversion`` program in the same folder
    distinguishes the two.
    """
    launcher = _launcher(command)
    if launcher is None:
        return {}
    output = _output_of(str(launcher), "--version")
    if "HYDRA" in output:
        output = _output_of(str(launcher.parent / "mpichversion")) + output
    found = (
        f"{name} {match[1]}" for name, pattern in _MPI_VERSIONS if (match := pattern.search(output))
    )
    return {"mpi": next(found, ""), "mpi.launcher": str(launcher)}


def _launcher(command: Sequence[str]) -> Path | None:
    """Return the path of the MPI launcher, None where there is none."""
    named = [part for part in command[:1] if Path(part).name in _LAUNCHERS]
    found = next(filter(None, map(shutil.which, (*named, *_LAUNCHERS))), None)
    return None if found is None else Path(found).resolve()


def run_tool(
    command: Sequence[str], timeout_s: float = 3
) -> subprocess.CompletedProcess[str] | None:
    """Run a tool; return its exit code and output, None where the tool cannot run."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _output_of(*command: str) -> str:
    """Return what a tool prints on both streams, "" where it cannot run."""
    result = run_tool(command)
    return "" if result is None else result.stdout + result.stderr


def utc_text(seconds: float | None = None) -> str:
    """Format a time in seconds since 1970 (default: now) as text in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def read_environment(command: Sequence[str], folder: Path | None = None) -> dict[str, str]:
    """Return facts (name → value) about this machine, the command and the code in ``folder``."""
    facts = {
        "started": utc_text(),
        "host": socket.gethostname(),
        "command": " ".join(masked_command(command)),
        **machine_facts(),
        **dict(network_facts()),
        **(gpu_facts() or count_of_no_gpu()),
        **mpi_facts(command),
        **git_facts(folder or Path.cwd()),
    }
    variables = {f"env.{name}": value for name, value in kept_variables(os.environ).items()}
    return {name: storable(value) for name, value in (facts | variables).items() if value}


def git_facts(folder: Path) -> dict[str, str]:
    """Return commit, branch, and state of the Git working tree of ``folder``; {} without one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "git.commit": commit,
        "git.branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "git.state": "changed" if changed else "clean",
        "git.remote": without_login(_git(folder, "remote", "get-url", "origin")),
    }


def _git(folder: Path, *arguments: str) -> str:
    result = run_tool(["git", "-C", str(folder), "--no-optional-locks", *arguments])
    return "" if result is None or result.returncode else result.stdout.strip()
