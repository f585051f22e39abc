"""No container outlives a run that is ended, whatever the engine is about at that moment."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.base import Run
from launcher.engines.docker.deployment import DockerDeployment
from launcher.engines.docker.errors import docker_sdk
from launcher.engines.docker.settings import DockerSettings
from launcher.run_files import RunFiles
from peer.spec.peer import load_spec

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
    await deployment.end()
    await asyncio.to_thread(engine.started.wait)
    assert not engine.left
    await deployment.close()
