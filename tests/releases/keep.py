"""Keeps what this release leaves behind, for the tests of later ones: `python -m tests.releases.keep`, at each release.

tests/releases/VERSION.tar.gz has the directories of four peers that were killed in the middle of a run, after one of
them had been left out. tests/releases/VERSION.json has the digests of the settings of every protocol.
"""

import io
import json
import signal
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from every_protocol import SETTINGS, keys  # noqa: E402
from real_peers import Nursery, SmallFederation  # noqa: E402

from peer.spec.loading import load_spec  # noqa: E402

IDS = tuple(f"peer{number}" for number in range(4))
RUN: dict[str, Any] = {
    "name": "kept",
    "rounds": 40,
    "protocol": {"name": "fibfl++", "head_epochs": 1, "extractor_epochs": 1, "tau": 0.05},
    "data": {"name": "digits", "limit": 60},
    "model": "mlp-square",
    "keep": {"every": 2, "last": 1},
    "on_loss": "bypass",
    "absence": 3,
    "run": "kept",
}


def written(name: str) -> dict[str, Any]:
    """The federation.yaml of which the digests are kept."""
    ring = [{"id": id, "address": f"10.0.0.{number}:7700"} for number, id in enumerate(IDS, 1)]
    protocol = {"name": name, **SETTINGS[name]}
    return {"protocol": protocol, "data": "digits", "plaintext": True, "ring": ring, **keys(name, IDS)}


def settings(directory: Path) -> dict[str, dict[str, str]]:
    """The beginnings of the digests of each protocol's settings, by key."""
    path, found = directory / "federation.yaml", {}
    for name in SETTINGS:
        path.write_text(json.dumps(written(name)))
        found[name] = {key: digest[:12] for key, digest in sorted(load_spec(path).agreement.digests.items())}
    return found


def run(directory: Path) -> bytes:
    """A run that was killed; as a tar file."""
    ring = [{"id": id, "address": f"127.0.0.1:{7600 + number}"} for number, id in enumerate(IDS)]
    (directory / "federation.yaml").write_text(json.dumps({**RUN, "ring": ring}))
    nursery = Nursery()
    made = SmallFederation(directory, load_spec(directory / "federation.yaml"), nursery)
    for id in IDS:
        made.configure(id)
    made.start()
    made.await_event(IDS[-1], "round", round=2)
    made.peers[IDS[-1]].signal(signal.SIGKILL)
    made.await_event(IDS[0], "view", number=1)
    made.await_event(IDS[0], "round", round=5)
    for id in IDS:
        made.peers[id].signal(signal.SIGKILL)
        made.peers[id].wait()
    nursery.close()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for id in IDS:
            tar.add(directory / id, id, filter=lambda entry: None if Path(entry.name).name.startswith(".") else entry)
    return packed.getvalue()


def main() -> None:
    with tempfile.TemporaryDirectory() as room:
        kept = HERE / version("dfl")
        lines = (f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in settings(Path(room)).items())
        kept.with_name(f"{kept.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        kept.with_name(f"{kept.name}.tar.gz").write_bytes(run(Path(room)))


if __name__ == "__main__":
    main()
