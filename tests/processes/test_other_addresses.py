"""Addresses may change between two starts of a run, and who can be dialled: it is the same run."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

from real_peers import Build, SmallFederation, digests

from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_spec


async def test_all_move_and_one_can_be_dialled_no_more(
    federation: Build, ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, rounds=16)
    made.start()
    made.await_event("peer0", "round", round=4)
    for peer in made.peers.values():
        peer.signal(signal.SIGTERM)
    made.wait()
    moved = move(made, [*ports(2), None])
    assert not {*moved.spec.addresses.values()} & {*made.spec.addresses.values()}
    results = moved.run()
    assert all(moved.events(id, "resumed") for id in moved.ids)
    runtimes = await run_in_process(made.spec, tmp_path / "memory")
    assert digests(results) == {id: one.setup.model.sha256() for id, one in runtimes.items()}


def move(made: SmallFederation, places: list[int | None]) -> SmallFederation:
    """Change the ring in the files."""
    path = made.directory / "federation.yaml"
    ring = [
        {"id": id, **({"address": f"127.0.0.1:{port}"} if port else {"dials_out": True})}
        for id, port in zip(made.ids, places, strict=True)
    ]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ring": ring}))
    moved = SmallFederation(made.directory, load_spec(path), made.nursery)
    made.peers = moved.peers  # the fixture ends them
    return moved
