"""The resources that this machine has free right now, within the limits of a container.

The control groups of a container, a service, a batch job or a pod may allow a process less than its machine has.
Sources: cgroups(7), proc_pid_mountinfo(5), and cgroup-v1/memory.rst and cgroup-v2.rst of the Linux kernel. The load of
a GPU is read from NVML, through the package `nvidia-ml-py` (the extra `gpu`).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil
import torch

from peer.network.wire.messages import Resources

PROC = Path("/proc/self")


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of one control group, in bytes."""

    limit: int
    free: int
    """Bytes left below the limit; page cache counts as free, as the kernel drops it before it kills a process."""


def cpu_quota(proc: Path = PROC) -> float | None:
    """The cores by the least CPU quota of the process's group and those above it; None without any quota."""
    quotas = [found for group, version in _groups("cpu", proc) if (found := _quota(group, version)) is not None]
    return min(quotas, default=None)


def memory_limits(proc: Path = PROC) -> list[MemoryLimit]:
    """The limits of the process's group and those above it that have one; all of them apply."""
    return [found for group, version in _groups("memory", proc) if (found := _memory_limit(group, version)) is not None]


def _quota(group: Path, version: int) -> float | None:
    if version == 2:
        words = _words(group / "cpu.max")
    else:
        words = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    limited = len(words) == 2 and words[0].isdigit() and int(words[1]) > 0  # not if it is `max` or -1
    return int(words[0]) / int(words[1]) if limited else None


def _memory_limit(group: Path, version: int) -> MemoryLimit | None:
    if version == 2:
        limit, used, prefix = "memory.max", "memory.current", ""
    else:
        limit, used, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"  # includes the groups below
    most = _words(group / limit)
    if not most or not most[0].isdigit():
        return None
    statistics = dict(zip(*[iter(_words(group / "memory.stat"))] * 2, strict=False))
    cache = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    taken = int((_words(group / used) or ["0"])[0])
    return MemoryLimit(int(most[0]), max(0, int(most[0]) - max(0, taken - cache)))


def _groups(controller: str, proc: Path) -> Iterator[tuple[Path, int]]:
    """The directory of the process's group under that controller, then those above it, each with its version, 1 or 2.

    A controller belongs to the hierarchy of one version only, whatever else is mounted.
    """
    for line in _lines(proc / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return (yield from _upwards(PurePosixPath(path), _mounts(proc, "cgroup", controller), 1))
    for line in _lines(proc / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            return (yield from _upwards(PurePosixPath(path), _mounts(proc, "cgroup2"), 2))


def _upwards(path: PurePosixPath, mounts: list[tuple[PurePosixPath, Path]], version: int) -> Iterator[tuple[Path, int]]:
    """Go from the group up to the highest visible one, using the mount that shows the most of them."""
    for root, mounted in sorted(mounts, key=lambda mount: len(mount[0].parts)):
        if path.is_relative_to(root):
            group = mounted / path.relative_to(root)
            break
    else:  # the path is of another namespace: what is mounted is the container's group
        if not mounts:
            return
        group = mounted = mounts[-1][1]
    for place in (group, *group.parents):
        yield place, version
        if place == mounted:
            return


def _mounts(proc: Path, kind: str, controller: str | None = None) -> list[tuple[PurePosixPath, Path]]:
    """The group that each file system of that kind shows at its top, and where it is mounted."""
    found = []
    for line in _lines(proc / "mountinfo"):
        place, _, system = line.partition(" - ")
        type_, _, options = system.split()[:3]
        if type_ == kind and (controller is None or controller in options.split(",")):
            root, mounted = (_unescaped(field) for field in place.split()[3:5])
            found.append((PurePosixPath(root), Path(mounted)))
    return found


def _unescaped(field: str) -> str:
    """Decode octal escapes, such as `\\040` for a space in a path."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or no control groups
        return []


def _words(path: Path) -> list[str]:
    """The words of a file; empty if there is none: the topmost group has no limits."""
    return " ".join(_lines(path)).split()


def gpu_utilisation(device: torch.device) -> float | None:
    """The share of the recent past in which a CUDA device was busy, with any process, from 0 to 1.

    None without the package, with PyTorch before 2.5, or if the driver does not tell, as for a part of a GPU (MIG).
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    # Look it up by UUID: NVML ignores CUDA_VISIBLE_DEVICES and may number devices in another order.
    number = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}")
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None


def measure(device: torch.device, samples: int, throughput: dict[str, float]) -> Resources:
    """Measure the resources: CPU in cores, memory in bytes. throughput: bytes per second on each outgoing link."""
    cpus, load = cpu_limit(), os.getloadavg()[0]
    total, free = memory()
    found = Resources(
        cpus=whole_cores(),
        # The load is the whole machine's, even in a container.
        free_cpus=min(cpus, max(0.0, (os.cpu_count() or 1) - load)),
        memory_bytes=total,
        free_memory_bytes=free,
        load=load,
        samples=samples,
        bytes_per_second=throughput,
    )
    if device.type == "cuda":
        found.gpu = torch.cuda.get_device_name(device)
        found.free_gpu_memory_bytes, found.gpu_memory_bytes = torch.cuda.mem_get_info(device)
        if (share := gpu_utilisation(device)) is not None:
            found.gpu_busy = share
    return found


def cpu_limit() -> float:
    """The cores that this process may use: those of its affinity, which a cpuset narrows, or its quota if less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return float(affinity) if quota is None else min(float(affinity), quota)


def whole_cores() -> int:
    """The number of threads that can work at a time without being held up by the quota; at least 1."""
    return max(1, int(cpu_limit()))


def memory() -> tuple[int, int]:
    """The memory that this process may use, and how much of it is free, in bytes: the machine's, or less by a limit."""
    machine = psutil.virtual_memory()
    limits = [one for one in memory_limits() if one.limit < machine.total]  # a larger limit does not matter
    total = min([machine.total, *(one.limit for one in limits)])
    return total, min([machine.available, *(one.free for one in limits)])
