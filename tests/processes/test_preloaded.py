"""What a peer needs in its first moments is there before it is forked: else each of a hundred imports it by itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from real_peers import Build

from peer.protocols.registry import PROTOCOLS

PRELOADED = """
import importlib, json, sys
from launcher.engines.local import PRELOAD
for name in PRELOAD:
    importlib.import_module(name)
before = {*sys.modules}
importlib.import_module("peer.preloaded").rehearse(sys.argv[1])
rehearsed = [*({*sys.modules} - before)]
"""
PEER = """
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
built = [one.__pydantic_complete__ for one in (Spec, PeerConfig)]
before = {*sys.modules}
code = importlib.import_module("peer.cli").main(["--config", sys.argv[1], "--quiet"])
late = [name for name in sys.modules if name not in before and name.startswith(("peer.", "torch._dynamo"))]
print(json.dumps([code, built, late]))
"""


def run(script: str, config: Path) -> Any:
    """What it prints last."""
    done = subprocess.run([sys.executable, "-c", script, str(config)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_peer_imports_nothing_more_of_this_project(federation: Build) -> None:
    one = federation("solo", 1, rounds=1)
    assert run(PRELOADED + PEER, one.configure("peer0")) == [0, [True, True], []]


def protocols(modules: list[str]) -> set[str]:
    return {*modules} & {reference.partition(":")[0] for reference in PROTOCOLS.values()}


def test_only_the_protocol_of_the_federation_is_imported(federation: Build) -> None:
    one = federation("solo", 1, rounds=1)
    everything = run(PRELOADED + "print(json.dumps([*sys.modules]))", one.configure("peer0"))
    assert protocols(everything) == {"peer.protocols.solo", "peer.protocols.fibfl"}  # it is solo, `like: fibfl`
    assert "peer.network.transport.tls" not in everything


def test_the_user_s_code_is_imported_by_peers_alone(federation: Build) -> None:
    one = federation("solo", 1, rounds=1)
    config = one.configure("peer0")
    (one.directory / "mine.py").write_text("open(__file__ + '.imported', 'x')")
    settings = one.directory / "federation.yaml"
    settings.write_text(settings.read_text().replace("solo", "mine:Solo"))
    assert not protocols(run(PRELOADED + "print(json.dumps(rehearsed))", config))
    assert not (one.directory / "mine.py.imported").exists()
