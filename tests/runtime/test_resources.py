"""What a peer says of its machine: in real control groups and cpusets, and of GPUs by a made NVML."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from peer import cli
from peer.runtime import peer_process, resources
from peer.runtime.resources import MemoryLimit

MIB = 1 << 20
Make = Callable[..., Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """make("cpu", {file: content}): a real group below this process's own; skipped where none can be."""
    made: list[Path] = []

    def build(controller: str, files: dict[str, str]) -> Path:
        place = next(own_group(controller), None)
        if place is None:
            pytest.skip(f"the {controller} controller of control groups is not mounted here in version 1")
        group = place / f"dfl-test-{os.getpid()}"
        try:
            group.mkdir()
            made.append(group)
            for name, content in files.items():
                (group / name).write_text(content)
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        return group

    yield build
    for group in made:
        group.rmdir()


def own_group(controller: str) -> Iterator[Path]:
    """This process's group in version 1, by what /proc says, read without the code under test."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        place = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        if controller in controllers.split(",") and place.is_dir():
            yield place


@contextmanager
def inside(*groups: Path) -> Iterator[None]:
    """This process in these groups, and then in those above them again."""
    try:
        for group in groups:
            (group / "cgroup.procs").write_text("0")
        yield
    finally:
        for group in groups:
            (group.parent / "cgroup.procs").write_text("0")


def test_a_real_quota_and_a_real_limit(make: Make) -> None:
    quota = make("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"})
    limit = make("memory", {"memory.limit_in_bytes": str(1024 * MIB)})
    with inside(quota, limit):
        held = bytearray(os.urandom(32 * MIB))
        cores, (total, free) = resources.cpu_limit(), resources.memory()
    assert cores == min(1.5, len(os.sched_getaffinity(0)))
    assert total == 1024 * MIB
    assert 256 * MIB < free < 1024 * MIB - len(held)


def test_a_real_cpuset(make: Make) -> None:
    above = next(own_group("cpuset"), None)
    nodes = (above / "cpuset.mems").read_text() if above else ""
    one = str(min(os.sched_getaffinity(0)))
    with inside(make("cpuset", {"cpuset.mems": nodes, "cpuset.cpus": one})):
        assert (resources.cpu_limit(), resources.whole_cores()) == (1, 1)


@pytest.mark.parametrize(("quota", "whole"), [(None, 4), (8.0, 4), (2.0, 2), (1.9, 1), (0.25, 1)])
def test_whole_cores_are_the_quota_rounded_down(
    quota: float | None, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(resources, "cpu_quota", lambda: quota)
    assert resources.whole_cores() == whole


def test_memory_is_the_least_of_the_machine_and_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(total=1000, available=500)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    limits = [MemoryLimit(1 << 62, 1 << 61), MemoryLimit(800, 600), MemoryLimit(900, 200)]
    monkeypatch.setattr(resources, "memory_limits", lambda: limits)
    assert resources.memory() == (800, 200)
    limits.pop()
    assert resources.memory() == (800, 500)


def test_the_machines_load_takes_no_quota_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with half a core of sixteen has it free while eight others are at work."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(resources, "cpu_limit", lambda: 0.5)
    for load, free in ((8.0, 0.5), (15.75, 0.25), (40.0, 0.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert resources.measure(torch.device("cpu"), 10, {}).free_cpus == free


class NoLibrary(Exception):
    """The error that NVML raises without a driver."""


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A made `pynvml` with one GPU, 35 % busy, and a made CUDA that calls the same GPU its device 1."""
    made = ModuleType("pynvml")
    made.NVMLError = NoLibrary  # type: ignore[attr-defined]
    made.nvmlInit = lambda: None  # type: ignore[attr-defined]
    made.nvmlDeviceGetHandleByUUID = {"GPU-ab12": "handle"}.__getitem__  # type: ignore[attr-defined]
    rates = {"handle": SimpleNamespace(gpu=35, memory=10)}
    made.nvmlDeviceGetUtilizationRates = rates.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", made)
    properties = {torch.device("cuda:1"): SimpleNamespace(uuid="ab12")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    return made


def test_a_gpu_as_nvml_and_the_driver_tell(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Made GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3000, 8000))
    found = resources.measure(torch.device("cuda:1"), 10, {})
    assert (found.gpu, found.gpu_memory_bytes, found.free_gpu_memory_bytes) == ("Made GPU", 8000, 3000)
    assert found.gpu_busy == pytest.approx(0.35)
    nvml.nvmlInit = lambda: (_ for _ in ()).throw(NoLibrary("no driver"))  # type: ignore[attr-defined]
    found = resources.measure(torch.device("cuda:1"), 10, {})
    assert (found.free_gpu_memory_bytes, found.HasField("gpu_busy")) == (3000, False)


def test_without_the_package_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert resources.gpu_utilisation(torch.device("cuda:0")) is None


def test_without_a_gpu_none_is_told() -> None:
    found = resources.measure(torch.device("cpu"), 10, {"peer1": 5.0})
    assert (found.gpu, found.gpu_memory_bytes, found.HasField("gpu_busy")) == ("", 0, False)
    assert 0 < found.free_memory_bytes <= found.memory_bytes
    assert found.cpus >= 1


@pytest.mark.parametrize(("asked", "used"), [("auto", 3), (2, 2)])
def test_a_peer_trains_in_as_many_threads_as_it_was_told(
    asked: object, used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only as far as the setting: nothing of the process is changed."""
    config = {"federation": "federation.yaml", "id": "peer0", "threads": asked, "device": "cpu"}
    (tmp_path / "peer0.yaml").write_text(json.dumps(config))
    ring = [{"id": f"peer{n}", "address": f"127.0.0.1:{15900 + n}"} for n in range(3)]
    spec = {"protocol": "fibfl", "data": {"name": "digits", "limit": 60}, "ring": ring}
    (tmp_path / "federation.yaml").write_text(json.dumps(spec))
    told: list[int] = []

    async def nothing(*_: object) -> int:
        return 0

    monkeypatch.setattr(resources, "cpu_limit", lambda: 3.9)
    monkeypatch.setattr(cli, "tune", lambda threads, vector_bytes: told.append(threads))
    monkeypatch.setattr(peer_process, "_run", nothing)
    assert cli.main(["--config", str(tmp_path / "peer0.yaml")]) == 0
    assert told == [used]
