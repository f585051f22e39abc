"""A generated docker-compose.yml runs: with Compose 1.29 or 2, to the bits of a local run."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_docker import MINUTES, client, image, local_digests

from launcher.cli import main
from peer.spec.loading import load_spec

__all__ = ["client", "image"]
pytestmark = pytest.mark.timeout(600)


def composes() -> list[list[str]]:
    """The programs here that read such a file."""
    found = [["docker-compose"]] if shutil.which("docker-compose") else []
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        found.append(["docker", "compose"])
    return found


@pytest.fixture
def project(tmp_path: Path, image: str) -> Iterator[Path]:
    """A directory with the file of three peers that have certificates."""
    (tmp_path / "fed.yaml").write_text("rounds: 2\nprotocol: fibfl\ndata: {name: digits, limit: 300}\npatience: 300\n")
    federation, certs = str(tmp_path / "fed.yaml"), str(tmp_path / "certs")
    assert main(["certs", federation, "--peers", "3", "--out", certs]) == 0
    words = ["--peers", "3", "--certs", certs, "--option", f"image={image}", "--option", "cpus=1.5"]
    assert main(["compose", federation, *words, "--out", str(tmp_path / "docker-compose.yml")]) == 0
    yield tmp_path
    for program in composes():
        subprocess.run([*program, "down", "--volumes"], cwd=tmp_path, capture_output=True, timeout=MINUTES)


def test_a_federation_is_composed_up(project: Path, client: Any) -> None:
    if not composes():
        pytest.skip("neither docker-compose nor the plugin of docker is installed")
    program = composes()[-1]
    done = subprocess.run([*program, "up"], cwd=project, capture_output=True, text=True, timeout=MINUTES)
    assert done.returncode == 0, done.stdout + done.stderr
    label = f"com.docker.compose.project.working_dir={project}"
    containers = client.containers.list(all=True, filters={"label": label})
    by_id = {container.labels["com.docker.compose.service"]: container for container in containers}
    assert {id: one.attrs["State"]["ExitCode"] for id, one in by_id.items()} == dict.fromkeys(by_id, 0)
    found = {}
    for id, container in by_id.items():
        subprocess.run(["docker", "cp", f"{container.name}:/runs/.", "results"], cwd=project, check=True)
        found[id] = json.loads((project / "results" / id / "result.json").read_text())["model_sha256"]
        limits = container.attrs["HostConfig"]
        assert (limits["Memory"], limits["NanoCpus"]) == (2 << 30, 1_500_000_000)
        assert limits["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 5}
    assert found == local_digests(load_spec(project / "fed.yaml", peers=3), project / "local")


@pytest.mark.parametrize("program", composes(), ids=lambda words: "-".join(words))
def test_compose_reads_the_file(project: Path, program: list[str]) -> None:
    done = subprocess.run([*program, "config"], cwd=project, capture_output=True, text=True, timeout=MINUTES)
    assert done.returncode == 0, done.stderr


def test_a_swarm_reads_the_file(project: Path) -> None:
    """By the program's own check, which it has since Docker 23."""
    probe = subprocess.run(["docker", "stack", "config", "--help"], capture_output=True, text=True)
    if probe.returncode or "stack config" not in probe.stdout:
        pytest.skip("this docker has no `stack config`")
    command = ["docker", "stack", "config", "-c", "docker-compose.yml"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=MINUTES)
    assert done.returncode == 0, done.stderr
