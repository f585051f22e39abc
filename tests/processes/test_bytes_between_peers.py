"""What really passes between peers: proxies keep every byte, and heads are looked for in them."""

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from proxies import Connection, edges
from real_peers import BuildWatched, digests
from torch import Tensor

from peer.learning.training.phase import Phase
from peer.learning.training.trainer import Trainer
from peer.runtime.in_process import run_in_process

Windows = NDArray[np.uint64]
QUICK = {"head_epochs": 1, "extractor_epochs": 1}


def windows(tensors: Iterable[bytes]) -> Windows:
    """The first 8 bytes of every 32nd byte: any 64 bytes of a tensor hold one of these with what follows."""
    whole = [np.frombuffer(tensor, np.uint8)[: len(tensor) // 32 * 32] for tensor in tensors]
    return np.unique(np.concatenate([tensor.view(np.uint64)[::4] for tensor in whole]))


def found(wanted: Windows, connections: Iterable[Connection]) -> int:
    """How often any of the windows begins anywhere in the captured bytes, at whatever offset."""
    sieve = np.zeros(1 << 24, bool)
    sieve[mixed(wanted)] = True
    count = 0
    for captured in (stream for one in connections for stream in (one.forth, one.back)):
        for shift in range(8):
            words = np.frombuffer(captured, np.uint8)[shift:]
            words = words[: len(words) // 8 * 8].view(np.uint64)
            left = words[sieve[mixed(words)]]
            count += int((wanted[np.searchsorted(wanted, left) % len(wanted)] == left).sum())
    return count


def mixed(words: Windows) -> Windows:
    """24 bits of each, evenly spread."""
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """The bytes of every head and extractor of this process after each phase of training."""
    kept: dict[str, list[bytes]] = {"head": [], "extractor": []}
    train = Trainer.train

    def watched(trainer: Trainer, phase: Phase, round: int) -> float:
        keep(trainer.model.head, trainer.model.extractor)
        loss = train(trainer, phase, round)
        keep(trainer.model.head, trainer.model.extractor)
        return loss

    def keep(head: Tensor, extractor: Tensor) -> None:
        kept["head"].append(head.numpy().tobytes())
        kept["extractor"].append(extractor.numpy().tobytes())

    monkeypatch.setattr(Trainer, "train", watched)
    return kept


@pytest.mark.parametrize("shares", ["extractor", "model"])
async def test_no_head_passes_and_only_ring_edges_are_used(
    shares: str, watched: BuildWatched, trained: dict[str, list[bytes]], tmp_path: Path
) -> None:
    protocol = {"name": "fibfl++", "warmup_shares": shares, "tau": 0.05, **QUICK}
    partition = {"kind": "label-skew", "k": 1}
    federation, proxies = watched(protocol, 5, rounds=3, data={"name": "digits", "partition": partition})
    runtimes = await run_in_process(federation.spec, tmp_path / "memory")
    results = federation.run()
    # The same bits in both runs, so the heads kept here are those of the real peers in every round.
    assert digests(results) == {id: one.setup.model.sha256() for id, one in runtimes.items()}

    some = [extractor[:5160] for extractor in trained["extractor"]]
    assert found(windows(some), proxies.connections) > 1000
    heads = found(windows(trained["head"]), proxies.connections)
    assert heads == 0 if shares == "extractor" else heads > 100

    before, after = federation.ids, tuple(results["peer0"]["ring"])
    assert after != before
    beside = {frozenset(pair) for ring in (before, after) for pair in zip(ring, ring[1:] + ring[:1], strict=True)}
    used = edges(proxies.connections)
    assert None not in used
    assert {frozenset(edge) for edge in used if edge} == beside


async def test_bytes_on_the_wire_are_the_theorys(watched: BuildWatched) -> None:
    """Bytes of tensors agree exactly; all bytes, with gRPC and TCP both ways, within 1 % and 2 KiB a second."""
    federation, proxies = watched({"name": "fibfl", **QUICK}, 3, rounds=20)
    began = time.monotonic()
    results = federation.run()
    seconds = time.monotonic() - began
    theory = 20 * 2 * 4 * 116_352
    for id, result in results.items():
        assert result["tensor_bytes_sent"] == theory
        assert sum(result["sent_to"].values()) == result["bytes_sent"]
        assert theory < result["bytes_sent"] < 1.01 * theory + 2048 * seconds, id
    whole = sum(connection.bytes for connection in proxies.connections)
    assert 3 * theory < whole < 3 * (1.01 * theory + 2048 * seconds)
    print(f"{whole / (3 * theory):.5f} of the theory in {seconds:.1f} s")
