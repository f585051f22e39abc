"""What is installed is what was tested, and a container has no right that a peer does not need."""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent
LISTS = ("constraints.txt", "requirements/pip.txt", "requirements/torch-cpu.txt")
PIN = re.compile(r"([\w.-]+)==([\w.+]+)(?: ;[^\\\n]+)?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)\n")
SERVICES = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]


def pins(name: str) -> dict[str, str]:
    """Versions by package; every line of the file belongs to a comment or to a pin with hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    assert PIN.sub("", text) == "", f"{name}: a package without version or hash"
    return {canonicalize_name(package): version for package, version, _ in PIN.findall(text)}


@pytest.mark.parametrize("name", LISTS)
def test_every_package_has_one_version_and_its_hashes(name: str) -> None:
    assert pins(name)


def test_everything_that_is_needed_is_pinned() -> None:
    pinned = pins("constraints.txt")
    needed = {canonicalize_name(Requirement(line).name) for line in requires("dfl") or ()} - {"dfl"}
    assert needed <= set(pinned)
    assert pins("requirements/torch-cpu.txt")["torch"] == f"{pinned['torch']}+cpu"


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    """Install as `make setup` does: packages are requested by name, and the constraints have the hashes."""
    text = (ROOT / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", text))
    wheel = tmp_path / "mdurl-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    install = ["install", "--no-index", "--find-links", tmp_path, "--no-deps", "--target", tmp_path / "there"]
    command = [sys.executable, "-m", "pip", *install, "-c", tmp_path / "constraints.txt", "mdurl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_write_its_own_volume_only(name: str) -> None:
    """Where a Swarm reads no limit of threads, it is one of a user's, and each peer is a user of its own."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"]
    own, scratch = service["volumes"]
    assert own == f"{name}:/runs"
    assert scratch == {"type": "tmpfs", "target": "/tmp", "tmpfs": {"size": 64 << 20}}
    assert "memory" in service["deploy"]["resources"]["limits"]
    assert service["ulimits"]["nproc"] == 512
    assert [other for other in SERVICES if SERVICES[other]["user"] == service["user"]] == [name]
    assert not service["user"].startswith("0")
