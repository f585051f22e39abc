"""A data set ten times larger than the memory that a peer may have: it trains where it is streamed, and only there."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

MIB = 1 << 20
LIMIT = 384
"""MiB that the peer may have; a sample is one of them."""
TIMES = 10
CODE = '''
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

class Large(Dataset):
    """Samples of 1 MiB."""
    def __init__(self, samples):
        self.samples, self.targets = samples, [number % 2 for number in range(samples)]
    def __len__(self):
        return self.samples
    def __getitem__(self, number):
        return torch.full((1, 512, 512), float(number % 2)), number % 2

def streamed(samples):
    return Large(samples), Large(4)

def in_memory(samples):
    return np.ones((samples, 1, 512, 512), np.float32), np.arange(samples) % 2

def coarse(shape, classes):
    return nn.Sequential(nn.AvgPool2d(128), nn.Flatten()), nn.Linear(16, classes)
'''


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What a child calls first, to have no more than `LIMIT`: in a cgroup of its own, or else by its data's size."""
    name = f"dfl-test-{os.getpid()}"
    for group, key in ((Path("/sys/fs/cgroup/memory") / name, "memory.limit_in_bytes"),
                       (Path("/sys/fs/cgroup") / name, "memory.max")):  # fmt: skip
        try:
            group.mkdir()
            (group / key).write_text(str(LIMIT * MIB))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        yield lambda group=group: (group / "cgroup.procs").write_text(str(os.getpid()))  # type: ignore[misc]
        group.rmdir()
        return
    yield lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT * MIB, LIMIT * MIB))


def run(tmp_path: Path, function: str, limited: Callable[[], None]) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "large.py").write_text(CODE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "federation.yaml").write_text(
        "rounds: 1\nprotocol: {name: solo, like: fedavg, settings: {epochs: 1, batch_size: 8}}\n"
        "model: {name: 'large:coarse'}\n"
        f"data: {{name: 'large:{function}', options: {{samples: {TIMES * LIMIT}}}}}\n"
        f"ring: [{{id: peer0, address: '127.0.0.1:{port}'}}]\n"
    )
    (tmp_path / "peer0.yaml").write_text("federation: federation.yaml\nid: peer0\ndevice: cpu\n")
    command = [sys.executable, "-m", "peer.cli", "--config", str(tmp_path / "peer0.yaml")]
    return subprocess.run(command, preexec_fn=limited, capture_output=True, text=True, cwd=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="there are no such limits")
def test_ten_times_the_memory(tmp_path: Path, limited: Callable[[], None]) -> None:
    streamed = run(tmp_path, "streamed", limited)
    assert streamed.returncode == 0, streamed.stderr
    assert (tmp_path / "peer0" / "result.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there are no such limits")
def test_the_limit_holds(tmp_path: Path, limited: Callable[[], None]) -> None:
    ended = run(tmp_path, "in_memory", limited)
    assert ended.returncode == -signal.SIGKILL or "MemoryError" in ended.stderr, ended.stderr
    assert not (tmp_path / "peer0").exists()
