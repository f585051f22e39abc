"""Small whole federations in one process, and what they leave on disk, for the tests beside this file."""

import asyncio
import json
from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import nn

from peer.runtime.in_process import run_in_process
from peer.runtime.runtime import Runtime
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

Vector = NDArray[np.float64]


def tiny(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """520 parameters that leave a peer, 90 that may not."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, classes)


def normalised(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """`tiny` with a BatchNorm: its running mean and variance stand at 536:552 of the model's vector."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, classes)


@dataclass(frozen=True)
class Trace:
    """One round of one peer, as its trace file has it: float64 vectors by name, and facts."""

    vectors: dict[str, Vector]
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]


@dataclass(frozen=True)
class Run:
    """A finished federation."""

    out: Path
    runtimes: dict[str, Runtime]

    @property
    def ids(self) -> list[str]:
        return [*self.runtimes]

    def result(self, peer: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.out / peer / "result.json").read_text())
        return content

    def models(self) -> dict[str, str]:
        return {peer: self.result(peer)["model_sha256"] for peer in self.ids}

    def audit(self, peer: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / peer / "audit.jsonl").read_text().splitlines()]

    def trace(self, peer: str, round: int) -> Trace:
        with safe_open(self.out / peer / "trace" / f"round-{round:04d}.safetensors", "numpy") as file:
            vectors = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
            return Trace(vectors, {key: literal_eval(text) for key, text in file.metadata().items()})

    def traces(self, round: int) -> dict[str, Trace]:
        return {peer: self.trace(peer, round) for peer in self.ids}


def resolve(directory: Path, protocol: dict[str, Any] | str, peers: int, **keys: Any) -> Spec:
    """The spec of a small federation on 120 digits; `keys` replace its top-level keys."""
    content = {
        "rounds": 2,
        "model": {"name": "federations:tiny"},
        "data": {"name": "digits", "limit": 120},
        "code": str(Path(__file__).parent),
        "trace": True,
        "protocol": protocol,
        **keys,
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "federation.yaml"
    path.write_text(json.dumps(content))
    return load_spec(path, peers=peers)


def federate(directory: Path, protocol: dict[str, Any] | str, peers: int = 4, **keys: Any) -> Run:
    """Run a small federation to its end."""
    spec = resolve(directory, protocol, peers, **keys)
    return Run(directory, asyncio.run(run_in_process(spec, directory)))
