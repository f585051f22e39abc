"""Several processes of one peer: the loop of docs/loops.md, by real launchers, killed, failing, and beside one process.

They compute on the CPU, as there would be several GPUs.
"""

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_protocol import SETTINGS
from launched import models, restarts
from real_peers import all_gone, until
from safetensors.torch import load_file

from extras import several_devices
from peer.errors import FailedError
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec

Ports = Callable[[int], list[int]]
PAGE = (Path(__file__).parents[2] / "docs" / "loops.md").read_text("utf-8")
FIT, *CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
(SEVERAL,) = (code for code in CODE if "def several(loop)" in code)
LOOPS = (
    FIT
    + SEVERAL
    + """
import os
import signal
import threading
from pathlib import Path

import psutil
import torch


def three(loop):
    with shared_gradient(loop, processes=3) as gradient:
        optimiser = loop.optimiser()
        for inputs, targets, _ in loop.batches():
            gradient(inputs, targets)
            optimiser.step()


def normed(shape, classes):
    first = torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU()
    return torch.nn.Sequential(*first, torch.nn.Dropout(0.5)), torch.nn.Linear(16, classes)


def killed(loop, directory):
    drawn, told = loop.batches, Path(directory, f"{loop.seed}.pids")  # each peer once

    def fatal():
        for number, batch in enumerate(drawn()):
            if loop.round == 2 and number == 2 and not told.exists():
                told.write_text(" ".join(str(one.pid) for one in psutil.Process().children()))
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    loop.batches = fatal
    several(loop)


def there(does):
    if torch.distributed.get_rank() == 1:
        does()


def no_room():
    raise ValueError("no room in here")


def raises(outputs, targets):
    there(no_room)
    return torch.nn.functional.cross_entropy(outputs, targets)


def dies(outputs, targets):
    there(lambda: os.kill(os.getpid(), signal.SIGKILL))
    return torch.nn.functional.cross_entropy(outputs, targets)


def hang():
    Path(__file__).with_name("hanging").write_text(str(os.getpid()))
    threading.Event().wait()


def hangs(outputs, targets):
    there(hang)
    return torch.nn.functional.cross_entropy(outputs, targets)


def failing(loop, loss):
    optimiser = loop.optimiser()
    with shared_gradient(loop, processes=2, loss=globals()[loss] if loop.round > 1 else None) as gradient:
        for inputs, targets, _ in loop.batches():
            gradient(inputs, targets)
            optimiser.step()
"""
)


def federation(directory: Path, loop: str, options: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A federation's file, with the loops beside it."""
    directory.mkdir()
    (directory / "page_loops.py").write_text(LOOPS)
    spec = {
        "name": "several",
        "rounds": 3,
        "protocol": {"name": "fedprox", "epochs": 1, "lr": 0.1},
        "data": {"name": "digits", "limit": 600},
        "training": {"loop": {"name": f"page_loops:{loop}", **(options or {})}},
        **keys,
    }
    (directory / "federation.yaml").write_text(json.dumps(spec))
    return directory / "federation.yaml"


def launched(out: Path, port: int, loop: str, **options: str) -> subprocess.CompletedProcess[str]:
    """dfl-launch trains two peers by that loop, and leaves all in `out`."""
    file = federation(out.with_name(f"{out.name}-spec"), loop, options)
    command = [sys.executable, "-m", "launcher.cli", "run", str(file), "--peers", "2", "--port", str(port)]
    return subprocess.run(
        [*command, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "peer0" / "model.safetensors")


@pytest.mark.timeout(600)
def test_two_processes_give_the_same_bits_also_to_a_peer_that_is_killed(tmp_path: Path, ports: Ports) -> None:
    first, again, killed, alone = (tmp_path / name for name in ("first", "again", "killed", "alone"))
    loops = {first: "several", again: "several", killed: "killed", alone: "fit"}
    for out, loop in loops.items():
        options = {"directory": str(tmp_path)} if loop == "killed" else {}
        ran = launched(out, ports(2)[0], loop, **options)
        assert ran.returncode == 0, ran.stdout
    assert models(first) == models(again) == models(killed)
    assert restarts(killed) == 2  # each of them once
    pids = [int(one) for file in tmp_path.glob("*.pids") for one in file.read_text().split()]
    assert len(pids) == 2
    all_gone(pids, 30)
    torch.testing.assert_close(weights(first), weights(alone), rtol=1e-3, atol=1e-4)
    results = [json.loads((one / "peer0" / "result.json").read_text()) for one in (first, alone)]
    accuracies = [one["accuracy"]["matched"] for one in results]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("raises", "a further process of this peer (on cpu) failed: ValueError: no room in here"),
        ("dies", "a further process of this peer (on cpu) was killed by SIGKILL"),
    ],
)
def test_what_fails_in_another_process_ends_the_peer_with_its_message(
    loss: str, told: str, tmp_path: Path, ports: Ports
) -> None:
    ran = launched(tmp_path / "out", ports(2)[0], "failing", loss=loss)
    assert ran.returncode == 1
    assert told in ran.stdout


def trained(file: Path) -> dict[str, torch.Tensor]:
    """The models of a federation in this process."""
    runtimes = asyncio.run(run_in_process(load_spec(file, peers=3), file.parent / "run"))
    return {id: one.setup.model.vector for id, one in runtimes.items()}


def test_one_that_does_not_answer_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_devices, "PATIENCE", 15.0)
    with pytest.RaisesGroup(pytest.RaisesExc(FailedError, match="gave no answer for 15 s"), allow_unwrapped=True):
        trained(federation(tmp_path / "hangs", "failing", {"loss": "hangs"}, rounds=2))


def test_one_that_hangs_ends_with_the_peer(tmp_path: Path) -> None:
    file = federation(tmp_path / "hangs", "failing", {"loss": "hangs"}, rounds=2)
    run = f"from pathlib import Path; from peer import federate; federate(Path({str(file)!r}), Path('out'), peers=2)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", run], cwd=tmp_path, env=environment) as peer:
        hanging = file.with_name("hanging")
        until(lambda: hanging.exists() and hanging.read_text(), 100, "the other process hangs")
        peer.kill()
    all_gone([int(hanging.read_text())], 30)


@pytest.mark.parametrize(
    ("name", "loop"), [("fibfl++", "several"), ("fedrep", "three"), ("fedprox", "several"), ("gossip-sgd", "three")]
)
def test_parts_and_corrections_are_as_by_one_process(name: str, loop: str, tmp_path: Path) -> None:
    keys = {"protocol": {"name": name, **SETTINGS[name]}, "data": {"name": "digits", "limit": 200}, "rounds": 2}
    vectors = trained(federation(tmp_path / "several", loop, **keys))
    for id, vector in trained(federation(tmp_path / "alone", "fit", **keys)).items():
        torch.testing.assert_close(vectors[id], vector, rtol=1e-3, atol=1e-3)  # Adam magnifies rounding


def test_dropout_and_batch_norm_repeat(tmp_path: Path) -> None:
    """Also the last batch, which has three samples for two processes."""
    keys = {"model": "page_loops:normed", "data": {"name": "digits", "limit": 134}, "rounds": 2}
    first, again = (trained(federation(tmp_path / name, "several", **keys)) for name in ("first", "again"))
    assert all(torch.equal(first[id], again[id]) for id in first)


def test_the_processes_live_as_long_as_a_model_that_they_serve() -> None:
    for earlier in several_devices._teams:  # a process has one
        earlier.end()
    team = several_devices.Team(torch.device("cpu"), 2)
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    for model in (one, other, one):
        team.serve(model)
    del model, one
    gc.collect()
    assert team.alive
    del other
    gc.collect()
    assert not team.alive
