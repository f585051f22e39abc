"""`from peer import …`: all that a protocol of one's own needs, and an `import peer` that stays quick."""

import subprocess
import sys

import peer


def test_every_public_name_is_there() -> None:
    assert {name: getattr(peer, name).__name__ for name in peer.__all__} == {name: name for name in peer.__all__}
    assert {"Adam", "Peer", "Phase", "Protocol", "Record", "SGD", "Share"} <= set(peer.__all__)


def test_importing_peer_does_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import peer, sys; assert 'torch' not in sys.modules"], check=True)
