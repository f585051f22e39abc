"""No container outlives a run that ends, whatever the engine is about and whatever becomes of its logs here."""

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from launcher.engines import docker
from launcher.engines.base import Run
from launcher.engines.docker import DockerDeployment, DockerEngine, DockerSettings
from launcher.engines.docker_container import Container, ContainerEvent, docker_sdk
from launcher.run_files import RunFiles
from peer.errors import FailedError, InputError
from peer.spec.loading import load_spec

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"


class SlowEngine:
    """Makes a container only when it is let. It stands for the SDK's client and for what that holds."""

    def __init__(self) -> None:
        self.containers = self.networks = self.api = self
        self.asked, self.let, self.started = threading.Event(), threading.Event(), threading.Event()
        self.left: list[SlowContainer] = []

    def get(self, _name: str) -> Any:
        raise docker_sdk().errors.NotFound("no such container")

    def create_endpoint_config(self, aliases: Sequence[str]) -> dict[str, Sequence[str]]:
        return {"Aliases": aliases}

    def create(self, name: str, **_asked: Any) -> "SlowContainer":
        self.asked.set()
        self.let.wait()
        return SlowContainer(self, name)

    def list(self, **asked: Any) -> "Sequence[SlowContainer]":
        return (*self.left,) if "all" in asked else ()


class SlowContainer:
    status = "running"

    def __init__(self, engine: SlowEngine, name: str) -> None:
        self.engine, self.name = engine, name

    def start(self) -> None:
        self.engine.left.append(self)
        self.engine.started.set()

    def logs(self, **_asked: Any) -> tuple[bytes, ...]:
        return ()

    def remove(self, **_asked: Any) -> None:
        self.engine.left.remove(self)


async def test_a_container_that_is_being_made_when_the_run_ends_is_removed(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    run = Run(load_spec(DEMO), RunFiles(tmp_path))
    run.files.out("peer0").mkdir()
    engine = SlowEngine()
    deployment = DockerDeployment(run, engine, DockerSettings(), "1:1")
    starting = asyncio.create_task(deployment.start("peer0"))
    await asyncio.to_thread(engine.asked.wait)
    starting.cancel()
    asyncio.get_running_loop().call_soon(engine.let.set)
    with pytest.raises(asyncio.CancelledError):
        await starting
    await deployment.stop_all()
    await asyncio.to_thread(engine.started.wait)
    assert not engine.left
    await deployment.close()


class Talkative(SlowContainer):
    """Says one line, and goes on."""

    attrs: ClassVar[dict[str, Any]] = {"State": {"Status": "running", "ExitCode": 0}, "RestartCount": 0}

    def reload(self) -> None:
        pass

    def logs(self, **_asked: Any) -> tuple[bytes, ...]:
        return (b"2100-01-01T00:00:00.000000001Z said\n",)


async def test_a_log_that_cannot_be_written_here_ends_the_wait_once(tmp_path: Path) -> None:
    """In a sentence that names the file; the container can be ended and its end be heard after that."""
    pytest.importorskip("docker")
    (tmp_path / "log.txt").symlink_to("/dev/full")
    handle = Talkative(SlowEngine(), "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "O_NOFOLLOW", 0)
        container = Container(handle, tmp_path, restarts=0)
        with pytest.raises(FailedError, match=r"cannot write .*log.txt: No space left on device; make room"):
            await container.wait()
    handle.attrs = {"State": {"Status": "exited", "ExitCode": 143}, "RestartCount": 0}  # type: ignore[misc]
    container.on_event(ContainerEvent("peer0", "die", 143))
    assert await container.wait() == 143
    await container.close()


class Ended(SlowContainer):
    def __init__(self, engine: SlowEngine, name: str, status: str) -> None:
        super().__init__(engine, name)
        self.status = status


def test_what_has_ended_is_discarded_and_nothing_beside_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("docker")
    client: Any = SlowEngine()
    client.close = lambda: None
    client.left = [Ended(client, "one", "exited"), Ended(client, "two", "running")]
    monkeypatch.setattr(docker, "connect", lambda: client)
    run, engine = Run(load_spec(DEMO), RunFiles(tmp_path)), DockerEngine(DockerSettings())
    with pytest.raises(InputError, match="two still run; end them with `dfl-launch attach"):
        engine.discard(run)
    assert len(client.left) == 2
    client.left[1].status = "exited"
    assert engine.discard(run) == "2 containers"
    assert engine.discard(run) == ""
