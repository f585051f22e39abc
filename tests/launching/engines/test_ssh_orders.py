"""What a host does with orders that come while a peer begins; no connection is needed for it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from launcher.engines.ssh.deployment import KEEPER

OBEY = "from launcher.engines.ssh.remote.obeying import main; main()"


def test_a_signal_reaches_a_peer_that_begins(tmp_path: Path) -> None:
    """Its keeper stands still before it starts the peer, until all orders are given."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    held = f"import sys; open({str(gate)!r}).read(); sys.argv[4:] = ['sleep', '60']\n{KEEPER}"
    peer = {"directory": str(tmp_path / "run"), "id": "peer0"}
    (tmp_path / "run").mkdir()
    orders = [
        ("start", {**peer, "keeper": held}),
        ("follow", {**peer, "offsets": {"events.jsonl": 0, "log.txt": 0}}),
        ("send", {**peer, "number": signal.SIGKILL}),
        ("awake", {}),
    ]
    with subprocess.Popen([sys.executable, "-c", OBEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdin
        assert host.stdout
        for number, (do, given) in enumerate(orders):
            host.stdin.write(json.dumps({"order": number, "do": do, "given": given}).encode() + b"\n")
        host.stdin.flush()
        said = [json.loads(line) for line in (host.stdout.readline(), host.stdout.readline())]
        assert said[1] == {"answer": 3, "result": None}  # the others wait
        gate.write_text("")
        said = [json.loads(host.stdout.readline()) for _ in range(4)]
        host.stdin.close()
    assert [one for one in said if "answer" in one] == [
        {"answer": 0, "result": None},
        {"answer": 1, "result": None},
        {"answer": 2, "result": True},
    ]
    assert {"peer": "peer0", "ended": -signal.SIGKILL} in said
