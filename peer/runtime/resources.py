"""What this machine, or the container's limits, can give right now."""

import os
from pathlib import Path

import psutil
import torch

from peer.network.wire.messages import Resources

CGROUP = Path("/sys/fs/cgroup")


def measure(device: torch.device, samples: int, throughput: dict[str, float]) -> Resources:
    """CPU in cores, memory in bytes; `throughput` is bytes a second on each outgoing link."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    limit, used = _memory_limit()
    if limit is not None and limit < total:
        total, free = limit, max(0, limit - used)
    cpus = cpu_limit()
    load = os.getloadavg()[0]
    found = Resources(
        cpus=max(1, round(cpus)),
        free_cpus=max(0.0, cpus - min(load, cpus)),
        memory_bytes=total,
        free_memory_bytes=min(free, total),
        load=load,
        samples=samples,
        bytes_per_second=throughput,
    )
    if device.type == "cuda":
        found.gpu = torch.cuda.get_device_name(device)
        found.free_gpu_memory_bytes, found.gpu_memory_bytes = torch.cuda.mem_get_info(device)
    return found


def cpu_limit() -> float:
    """Cores this process may use: its affinity, or the cgroup's quota (v2, then v1) where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _words(CGROUP / "cpu.max") or [
        *_words(CGROUP / "cpu/cpu.cfs_quota_us"),
        *_words(CGROUP / "cpu/cpu.cfs_period_us"),
    ]
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        return min(float(affinity), int(quota[0]) / int(quota[1]))
    return float(affinity)


def _memory_limit() -> tuple[int | None, int]:
    """The cgroup's memory limit and use in bytes; None where there is no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        words = _words(CGROUP / limit)
        if words and words[0].isdigit():
            return int(words[0]), int((_words(CGROUP / used) or ["0"])[0])
    return None, 0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
