"""Quotas and limits of control groups: version 1, version 2 and both, nested, in and out of a container."""

from pathlib import Path

import pytest
from groups import Groups, group

from peer.runtime.resources import MemoryLimit, cpu_quota, memory_limits

GIB = 1 << 30
NO_LIMIT = 9_223_372_036_854_771_712
"""What version 1 shows where there is none."""


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def v1(groups: Groups, root: str = "/") -> dict[str, Path]:
    """Mounts of version 1 as most distributions had them, cpu and cpuacct as one."""
    groups.mount("systemd", "cgroup", "rw,name=systemd", root)
    cpu = groups.mount("cpu,cpuacct", "cgroup", "rw,cpu,cpuacct", root)
    return {"cpu": cpu, "memory": groups.mount("memory", "cgroup", "rw,memory", root)}


def test_without_any_there_are_no_limits(groups: Groups) -> None:
    assert (cpu_quota(groups.proc), memory_limits(groups.proc)) == (None, [])
    groups.enter("0::/")
    assert (cpu_quota(groups.proc), memory_limits(groups.proc)) == (None, [])


def test_version_2_in_a_container(groups: Groups) -> None:
    """In a namespace of its own the container's group is the root, with the files of any other."""
    top = groups.mount("unified", "cgroup2")
    groups.enter("0::/")
    statistics = "anon 1000\nfile 900\ninactive_file 300\nactive_file 200\nshmem 400"
    group(top, cpu__max="150000 100000", memory__max=2 * GIB, memory__current=GIB, memory__stat=statistics)
    assert cpu_quota(groups.proc) == 1.5
    assert memory_limits(groups.proc) == [MemoryLimit(2 * GIB, GIB + 500)]  # shared memory is no page cache: it stays


def test_the_least_of_all_parents_holds(groups: Groups) -> None:
    top = groups.mount("unified", "cgroup2")
    groups.enter("0::/lab.slice/job.scope/peer")
    group(top)  # the real root has no such files
    group(top / "lab.slice", cpu__max="200000 100000", memory__max=3 * GIB, memory__current=2 * GIB, memory__stat="")
    group(top / "lab.slice/job.scope", cpu__max="max 100000", memory__max="max", memory__current=GIB, memory__stat="")
    group(top / "lab.slice/job.scope/peer", cpu__max="400000 100000", memory__max=8 * GIB, memory__current=GIB)
    assert cpu_quota(groups.proc) == 2
    assert memory_limits(groups.proc) == [MemoryLimit(8 * GIB, 7 * GIB), MemoryLimit(3 * GIB, GIB)]


def test_version_1_nested(groups: Groups) -> None:
    mounts = v1(groups)
    groups.enter("9:name=systemd:/batch/job7")
    groups.enter("4:memory:/batch/job7")
    groups.enter("2:cpu,cpuacct:/batch/job7")
    for place in (mounts["cpu"], mounts["cpu"] / "batch"):
        group(place, cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    group(mounts["cpu"] / "batch/job7", cpu__cfs_quota_us=25_000, cpu__cfs_period_us=50_000)
    statistics = "inactive_file 1\nactive_file 1\ntotal_inactive_file 600\ntotal_active_file 400"
    used = {"memory__usage_in_bytes": GIB, "memory__stat": statistics}
    group(mounts["memory"], memory__limit_in_bytes=NO_LIMIT, **used)
    group(mounts["memory"] / "batch", memory__limit_in_bytes=2 * GIB, **used)
    group(mounts["memory"] / "batch/job7", memory__limit_in_bytes=4 * GIB, **used)
    assert cpu_quota(groups.proc) == 0.5
    assert [one.limit for one in memory_limits(groups.proc)] == [4 * GIB, 2 * GIB, NO_LIMIT]
    assert min(one.free for one in memory_limits(groups.proc)) == GIB + 1000


@pytest.mark.parametrize(
    ("root", "path"), [("/docker/4711", "/docker/4711"), ("/", "/"), ("/docker/4711", "/"), ("/..", "/../4712")]
)
def test_version_1_in_a_container(groups: Groups, root: str, path: str) -> None:
    """With the group's name in the host and in a namespace of its own; where the two do not fit, what is mounted."""
    mounts = v1(groups, root)
    groups.enter(f"4:memory:{path}")
    groups.enter(f"2:cpu,cpuacct:{path}")
    group(mounts["cpu"], cpu__cfs_quota_us=300_000, cpu__cfs_period_us=100_000)
    group(mounts["memory"], memory__limit_in_bytes=GIB, memory__usage_in_bytes=GIB // 2, memory__stat="")
    assert cpu_quota(groups.proc) == 3
    assert memory_limits(groups.proc) == [MemoryLimit(GIB, GIB // 2)]


def test_hybrid(groups: Groups) -> None:
    """Version 2 is mounted for the names only, and the controllers are those of version 1."""
    mounts = v1(groups)
    unified = groups.mount("unified", "cgroup2")
    for line in ("4:memory:/a", "2:cpu,cpuacct:/a", "0::/b"):
        groups.enter(line)
    group(unified / "b", cpu__max="100000 100000", memory__max=5, memory__current=5)
    group(mounts["cpu"] / "a", cpu__cfs_quota_us=200_000, cpu__cfs_period_us=100_000)
    group(mounts["memory"] / "a", memory__limit_in_bytes=GIB, memory__usage_in_bytes=0, memory__stat="")
    assert cpu_quota(groups.proc) == 2
    assert memory_limits(groups.proc) == [MemoryLimit(GIB, GIB)]


def test_of_two_mounts_the_one_that_shows_more_is_read(groups: Groups) -> None:
    """An engine may mount the container's own group beside the whole hierarchy."""
    own = groups.mount("own", "cgroup2", root="/pod/peer")
    whole = groups.mount("whole", "cgroup2")
    groups.enter("0::/pod/peer")
    for place in (own, whole / "pod/peer"):
        group(place, cpu__max="400000 100000")
    group(whole / "pod", cpu__max="100000 100000")
    assert cpu_quota(groups.proc) == 1
