"""What a peer needs in its first moments is there before it is forked: else each of a hundred imports it by itself."""

import json
import subprocess
import sys

from real_peers import Build

SCRIPT = """
import importlib, json, sys
from launcher.engines.local import PRELOAD
for name in PRELOAD:
    importlib.import_module(name)
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
built = [one.__pydantic_complete__ for one in (Spec, PeerConfig)]
before = {*sys.modules}
code = importlib.import_module("peer.cli").main(["--config", sys.argv[1], "--quiet"])
late = [name for name in sys.modules if name not in before and name.startswith("peer.")]
print(json.dumps([code, built, late]))
"""


def test_a_peer_imports_nothing_more_of_this_project(federation: Build) -> None:
    one = federation("solo", 1, rounds=1)
    command = [sys.executable, "-c", SCRIPT, str(one.configure("peer0"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, [True, True], []], done.stderr
