"""`--install` on a host: real pip, in an environment of its own, with an index of small packages in a directory."""

import base64
import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution, distributions, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from launcher.engines.programs import ssh_host
from launcher.engines.ssh_install import PINS, build_wheel, read_pins


class Index:
    """A directory that pip takes for an index, which says the hashes of its wheels."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def list(self) -> None:
        """Write the page of each package."""
        wheels = [*self.directory.glob("*.whl")]
        for package in {wheel.name.partition("-")[0] for wheel in wheels}:
            links = [f'<a href="../{quote(one.name)}#sha256={digest(one)}">{one.name}</a>' for one in wheels]
            page = self.directory / package / "index.html"
            page.parent.mkdir(exist_ok=True)
            page.write_text("<!DOCTYPE html>" + "".join(link for link in links if f">{package}-" in link))

    def add_pip(self) -> None:
        """The pip of these tests: the one that a new environment has may be too old to check hashes as it should."""
        pip = distribution("pip")
        with zipfile.ZipFile(self.directory / f"pip-{pip.version}-py3-none-any.whl", "w") as wheel:
            for file in pip.files or ():
                if file.parts[0].startswith("pip") and "__pycache__" not in file.parts:
                    wheel.writestr(file.as_posix(), file.read_binary())

    def add(self, name: str, version: str, *needs: str) -> Path:
        path = self.directory / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return path

    def pinned(self, name: str, version: str) -> str:
        """As a file for pip has it, with the hash of the wheel here."""
        return f"{name}=={version} --hash=sha256:{digest(self.directory / f'{name}-{version}-py3-none-any.whl')}\n"


def digest(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


Order = Callable[..., dict[str, Any]]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(tmp_path / "index")
    made.add_pip()
    for name, number in (("numbers", "1"), ("numbers", "2"), ("torch", "3"), ("torch", "3+cpu")):
        made.add(name, number)
    made.list()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_INDEX_URL", made.directory.as_uri())
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return made


@pytest.fixture
def order(index: Index, tmp_path: Path) -> Order:
    wheel = index.add("dfl", "0", "numbers", "torch")
    content = base64.b64encode(wheel.read_bytes()).decode()
    wheel.unlink()

    def made(torch: str | None = "cpu", device: str = "auto", **pins: str) -> dict[str, Any]:
        usual = {
            "constraints.txt": index.pinned("numbers", "1") + index.pinned("torch", "3"),
            "pip.txt": index.pinned("pip", version("pip")),
            "torch-cpu.txt": index.pinned("torch", "3+cpu"),
        }
        return {
            "directory": str(tmp_path / "runs"),
            "wheel": (wheel.name, content),
            "extras": [],
            "pins": usual | {f"{name.replace('_', '-')}.txt": text for name, text in pins.items()},
            "torch": torch,
            "device": device,
        }

    return made


def found(tmp_path: Path) -> dict[str, str]:
    """The versions in the environment."""
    (packages,) = (tmp_path / "runs" / ".venv" / "lib").glob("*/site-packages")
    return {one.name: one.version for one in distributions(path=[str(packages)]) if one.name != "setuptools"}


@pytest.mark.long
def test_the_versions_are_the_launchers_and_torch_is_of_the_kind_that_the_host_needs(
    order: Order, tmp_path: Path
) -> None:
    ssh_host.install(**order())
    same = {"dfl": "0", "pip": version("pip"), "numbers": "1"}
    assert found(tmp_path) == {**same, "torch": "3+cpu"}
    assert ssh_host.installed(**order())
    assert not ssh_host.installed(**order(pip=""))
    assert not ssh_host.installed(**order("cuda"))
    ssh_host.install(**order("cuda"))
    assert found(tmp_path) == {**same, "torch": "3"}


@pytest.mark.long
def test_a_package_with_another_hash_is_refused(order: Order, index: Index, tmp_path: Path) -> None:
    given = order()
    index.add("numbers", "1", "torch")
    index.list()
    with pytest.raises(ssh_host.CommandRejected, match=r"DO NOT MATCH THE HASHES .* numbers==1"):
        ssh_host.install(**given)
    assert not ssh_host.installed(**given)


@pytest.mark.long
def test_where_no_index_has_the_cpu_build_the_way_out_is_said(order: Order, index: Index) -> None:
    given = order()
    (index.directory / "torch-3+cpu-py3-none-any.whl").unlink()
    index.list()
    with pytest.raises(ssh_host.CommandRejected, match=r"no CPU build of torch .*`extra-index-url`.*`torch: cuda`"):
        ssh_host.install(**given)


@pytest.mark.parametrize(
    ("device", "gpu", "kind"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda:1", False, "cuda")],
)
def test_the_device_decides_which_torch_a_host_gets(
    device: str, gpu: bool, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    (tmp_path / "nvidia-smi").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path) if gpu else "")
    monkeypatch.setattr(ssh_host, "NVIDIA", str(tmp_path / "nvidiactl"))
    assert ssh_host.fitting_torch(device) == kind


def test_the_pins_are_those_of_this_dfl() -> None:
    root = Path(__file__).parents[3]
    assert read_pins() == {Path(pin).name: (root / pin).read_text() for pin in PINS}
    assert build_wheel()[0].startswith("dfl-")


def test_the_wheel_names_its_version_also_in_a_checkout_that_setuptools_has_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dfl.egg-info").mkdir()
    (tmp_path / "dfl.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: dfl\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with zipfile.ZipFile(io.BytesIO(build_wheel()[1])) as wheel:
        assert b"Version: 0.1.0" in wheel.read("dfl-0.1.0.dist-info/METADATA")
