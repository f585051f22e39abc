"""What this machine, or the container's limits, can give right now."""

import os

import psutil
import torch

from peer.network.wire.messages import Resources
from peer.runtime import cgroups
from peer.runtime.gpu import busy


def measure(device: torch.device, samples: int, throughput: dict[str, float]) -> Resources:
    """CPU in cores, memory in bytes; `throughput` is bytes a second on each outgoing link."""
    cpus, load = cpu_limit(), os.getloadavg()[0]
    total, free = memory()
    found = Resources(
        cpus=whole_cores(),
        # The load is the whole machine's, also in a container.
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
        if (share := busy(device)) is not None:
            found.gpu_busy = share
    return found


def cpu_limit() -> float:
    """Cores this process may use: those of its affinity, which a cpuset narrows, or the quota where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota()
    return float(affinity) if quota is None else min(float(affinity), quota)


def whole_cores() -> int:
    """As many threads as can work at a time without one being held up by the quota, at least one."""
    return max(1, int(cpu_limit()))


def memory() -> tuple[int, int]:
    """All that this process may take, and what of it is free, in bytes: the machine's, or less by a limit."""
    machine = psutil.virtual_memory()
    limits = [one for one in cgroups.memory() if one.limit < machine.total]  # a larger one is none
    total = min([machine.total, *(one.limit for one in limits)])
    return total, min([machine.available, *(one.free for one in limits)])
