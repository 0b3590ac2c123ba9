"""What is known of this machine and its software: processor, network, GPUs, MPI, the code."""

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

_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
_SPEED_OF_LINKS: Final = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: of one link, one direction
_MAX_LINKS: Final = 36
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`
_PATHS: Final = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

Facts = Iterator[tuple[str, str]]
_INTERFACES: Final = Path("/sys/class/net")
_INFINIBAND: Final = Path("/sys/class/infiniband")
_CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
_INTERFACE_UNITS: Final = {"speed": "speed_mbit_per_s", "mtu": "mtu_bytes", "operstate": "state"}
_LAUNCHERS: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "mpirun_rsh")
_NAMES: Final = (
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
    """Return whether the driver shows a GPU; device files exist without one, too."""
    return any(Path("/proc/driver/nvidia/gpus").glob("*"))


def why_no_counters() -> str | None:
    """Return why the counters inside the GPUs (GPU metrics) cannot be read, None if they can."""
    try:
        is_restricted = "RmProfilingAdminOnly: 1" in _PARAMETERS.read_text()
    except OSError:
        return "no NVIDIA driver is loaded"
    return "only root can read GPU metrics" if is_restricted and os.geteuid() else None


def open_nvml() -> tuple[Any, list[Any]]:
    """Return NVML and the handles of the GPUs; None and nothing without a driver or its package."""
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
    """Return what the driver says of itself, of the GPUs and of the links between them.

    ``gpu.0.pcie`` is the best that GPU and slot can do together, ``gpu.0.path.1`` what lies
    between two GPUs (as ``nvidia-smi topo`` calls it), ``gpu.0.nvlink`` the active links with the
    rate of each in one direction. What is not supported is left out.
    """
    nvml, handles = open_nvml()
    if nvml is None:
        return {}
    facts = dict(_answers(nvml, _DRIVER))
    for number, handle in enumerate(handles):
        facts |= {f"gpu.{number}.{name}": value for name, value in _answers(nvml, _GPU, handle)}
        facts |= dict(_paths(nvml, handles, number))
    return facts | dict(_direct_links(nvml, handles))


def _answers(nvml: Any, questions: dict[str, Callable[..., str]], *of: Any) -> Facts:
    for name, ask in questions.items():
        try:
            answer = ask(nvml, *of)
        except nvml.NVMLError:
            continue
        if answer:
            yield name, answer


def _nvlink(nvml: Any, gpu: Any) -> str:
    count, rate = len(_active_links(nvml, gpu)), _link_rate(nvml, gpu)
    return f"{count} links of {rate:g} GB/s" if count and rate else ""


def _active_links(nvml: Any, gpu: Any) -> list[int]:
    active = []
    for link in range(_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(gpu, link):
                active.append(link)
        except nvml.NVMLError:
            break
    return active


def _link_rate(nvml: Any, gpu: Any) -> float:
    """Return the GB/s of one link in one direction, 0 where it is not known."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [_SPEED_OF_LINKS])
    return field.value.uiVal / 1000 if field.nvmlReturn == nvml.NVML_SUCCESS else 0.0


def _cuda_version(nvml: Any) -> str:
    number = nvml.nvmlSystemGetCudaDriverVersion()
    return f"{number // 1000}.{number % 1000 // 10}"


_DRIVER: Final[dict[str, Callable[..., str]]] = {
    "driver": lambda nvml: _string(nvml.nvmlSystemGetDriverVersion()),
    "driver.cuda": _cuda_version,
}
_GPU: Final[dict[str, Callable[..., str]]] = {
    "name": lambda nvml, gpu: _string(nvml.nvmlDeviceGetName(gpu)),
    "uuid": lambda nvml, gpu: _string(nvml.nvmlDeviceGetUUID(gpu)),
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
    for other in range(number + 1, len(gpus)):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(gpus[number], gpus[other])
        except nvml.NVMLError:
            continue
        if level in _PATHS:
            yield f"gpu.{number}.path.{other}", _PATHS[level]


def _direct_links(nvml: Any, gpus: Sequence[Any]) -> Facts:
    """Yield the NVLinks from GPU to GPU without a switch, with the rate of both directions.

    The form is that of the profilers, which `traceprof.measures.device.peaks` reads.
    """
    bus = attrgetter("domain", "bus", "device")
    try:
        numbers = {bus(nvml.nvmlDeviceGetPciInfo(gpu)): i for i, gpu in enumerate(gpus)}
        pairs: Counter[tuple[int, int]] = Counter()
        for number, gpu in enumerate(gpus):
            for link in _active_links(nvml, gpu):
                other = numbers.get(bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link)), -1)
                if other > number:
                    pairs[number, other] += 1
        rates = [_link_rate(nvml, gpu) for gpu in gpus]
    except nvml.NVMLError:
        return
    for (one, other), count in sorted(pairs.items()):
        if rates[one]:
            total = 2 * count * rates[one]
            yield f"nvlink device {one} - device {other}", f"{count} links, {total:g} GB/s"


def _string(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def machine_facts() -> dict[str, str]:
    """Return what is known of the operating system, the processor and the memory."""
    cpu = _cpu_info()
    return {
        "os": _os_name(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": "-".join(filter(None, platform.libc_ver())),
        "cpu": cpu.get("model name", platform.processor()),
        "cpu.count": str(os.cpu_count() or ""),
        "cpu.allowed": str(len(os.sched_getaffinity(0))),
        "cpu.limit": _text(Path("/sys/fs/cgroup/cpu.max")),
        "ram_bytes": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "ram_limit_bytes": _text(Path("/sys/fs/cgroup/memory.max")),
        "container": "yes" if any(mark.exists() for mark in _CONTAINER_MARKS) else "",
    }


def network_facts(interfaces: Path = _INTERFACES, infiniband: Path = _INFINIBAND) -> Facts:
    """Yield (name, value) about network interfaces and RDMA ports."""
    for interface in sorted(interfaces.glob("*")):
        for name, fact in _INTERFACE_UNITS.items():
            value = _text(interface / name)
            if value and value != "-1":
                yield f"nic.{interface.name}.{fact}", value
    for port in sorted(infiniband.glob("*/ports/*")):
        for name in ("rate", "link_layer", "state"):
            yield f"rdma.{port.parent.parent.name}.{port.name}.{name}", _text(port / name)


def has_rdma() -> bool:
    """Return whether there are adapters for InfiniBand or RoCE."""
    return any(_INFINIBAND.glob("*"))


def _text(path: Path) -> str:
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
    """Return what /proc/cpuinfo says of the first processor."""
    first = _text(Path("/proc/cpuinfo")).partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def mpi_facts(command: Sequence[str] = ()) -> dict[str, str]:
    """Return name, version and path of the MPI whose launcher is in ``command`` or on PATH.

    MVAPICH starts programs with MPICH's launcher (Hydra): ``mpichversion`` beside it tells them
    apart.
    """
    launcher = _launcher(command)
    if launcher is None:
        return {}
    said = _said(str(launcher), "--version")
    if "HYDRA" in said:
        said = _said(str(launcher.parent / "mpichversion")) + said
    found = (f"{name} {match[1]}" for name, pattern in _NAMES if (match := pattern.search(said)))
    return {"mpi": next(found, ""), "mpi.launcher": str(launcher)}


def _launcher(command: Sequence[str]) -> Path | None:
    named = [part for part in command[:1] if Path(part).name in _LAUNCHERS]
    found = next(filter(None, map(shutil.which, (*named, *_LAUNCHERS))), None)
    return None if found is None else Path(found).resolve()


def ask(command: Sequence[str], timeout_s: float = 3) -> subprocess.CompletedProcess[str] | None:
    """Run a tool, and return how it ended and what it said; None where it does not run."""
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


def _said(*command: str) -> str:
    done = ask(command)
    return "" if done is None else done.stdout + done.stderr


def utc_text(seconds: float | None = None) -> str:
    """Return a time, in seconds since 1970, by default now, as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def read_environment(command: Sequence[str], folder: Path | None = None) -> dict[str, str]:
    """Return facts (name → value) about this machine, the command and the code in ``folder``."""
    facts = {
        "started": utc_text(),
        "host": socket.gethostname(),
        "command": " ".join(masked_command(command)),
        **machine_facts(),
        **dict(network_facts()),
        **gpu_facts(),
        **mpi_facts(command),
        **git_facts(folder or Path.cwd()),
    }
    variables = {f"env.{name}": value for name, value in kept_variables(os.environ).items()}
    return {name: storable(value) for name, value in (facts | variables).items() if value}


def git_facts(folder: Path) -> dict[str, str]:
    """Return commit, branch and state of the working tree that ``folder`` is in, if it is."""
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
    done = ask(["git", "-C", str(folder), "--no-optional-locks", *arguments])
    return "" if done is None or done.returncode else done.stdout.strip()
