"""Every file in examples/ runs to its end: all peers in this process, two rounds, few samples and epochs."""

import asyncio
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peer.learning.vision import torchvision
from peer.protocols.registry import PROTOCOLS
from peer.runtime.in_process import run_in_process
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.yaml"))
NEEDED = {"bundle": "monai", "lora": "peft", "volumes": "monai"}
"""Packages that most do not have; `make test-engines` installs them and runs these examples, too."""


def load(file: Path, *overrides: str) -> Spec:
    """The example as its own comment says it is run: with `--peers N` where it has no ring."""
    text = file.read_text(encoding="utf-8")
    command = next(line for line in text.splitlines() if "dfl-launch run" in line).split()
    assert command[1:4] == ["dfl-launch", "run", f"examples/{file.name}"]
    peers = int(command[command.index("--peers") + 1]) if "--peers" in command else None
    return load_spec(file, peers=peers, overrides=overrides)


def quick(file: Path) -> Spec:
    """Two rounds with one epoch of each kind, on 200 samples."""
    fields = type(load(file).protocol).model_fields
    epochs = [f"protocol.{name}=1" for name in fields if name == "epochs" or name.endswith("_epochs")]
    return load(file, "rounds=2", "data.limit=200", *epochs)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_runs(file: Path, tmp_path: Path) -> None:
    if package := NEEDED.get(file.stem):
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is missing; tests/engines has it")
        torchvision()  # which they import, and which fails by itself beside a CPU build of torch
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    script("own_data").write_csv(tmp_path / "data" / "spirals.csv")
    script("practices").write(tmp_path / "data")
    if file.stem == "bundle":
        script("bundle").write(tmp_path / "data" / "cubes")
    spec = quick(tmp_path / "examples" / file.name)
    runtimes = asyncio.run(run_in_process(spec, tmp_path / "run"))
    assert tuple(runtimes) == spec.ids
    for id in spec.ids:
        result = json.loads((tmp_path / "run" / id / "result.json").read_text())
        assert [*result["figures"]] == [figure.name for figure in spec.task.figures]
        matched = result["accuracy"]["matched"]
        assert spec.task.has_classes == (matched is not None and 0 <= matched <= 1)
        assert len(result["history"]) == 2


def script(name: str) -> Any:
    """A script that writes files to try an example with."""
    found = importlib.util.spec_from_file_location(f"{name}_script", EXAMPLES / f"{name}.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_protocol_has_an_example() -> None:
    assert {*PROTOCOLS} <= {load(file).protocol.name for file in FILES if file.stem not in NEEDED}
