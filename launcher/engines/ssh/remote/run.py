"""The run's directory on a host: what the host has, which peers run there, their settings."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import metadata
from typing import Any

from launcher.engines.ssh.remote.files import absolute, intruders, own, read, write
from launcher.engines.ssh.remote.installation import mark
from launcher.engines.ssh.remote.peer import Peer
from launcher.engines.ssh.remote.speech import Refused


def survey(directory: str, run: dict[str, str], ids: list[str]) -> dict[str, Any]:
    """What the host has, and which peers run there. Creates nothing."""
    root = absolute(directory)
    there = root
    while not os.path.exists(there):
        there = os.path.dirname(there)
    others = [Peer(root, id).obstacle(run) for id in ids]
    codes = {id: Peer(root, id).code() for id in ids}
    return {
        "python": [*sys.version_info[:3]],
        "dfl": version(),
        "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "installed": os.path.exists(mark(os.path.dirname(root))),
        "free": shutil.disk_usage(there).free,
        "there": there,
        "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK),
        "obstacles": [why for why in (*map(intruders, (os.path.dirname(root), root)), *others) if why],
        "running": [id for id in ids if Peer(root, id).runs()],
        "codes": {id: code for id, code in codes.items() if code is not None},
    }


def version() -> str | None:
    try:
        return metadata.version("dfl")
    except metadata.PackageNotFoundError:
        return None


def device(name: str) -> str:
    """Why the device cannot be used; empty if it can."""
    look = "import sys; from peer.learning.device import choose_device; choose_device(sys.argv[1])"
    done = subprocess.run([sys.executable, "-P", "-c", look, name], stdin=subprocess.DEVNULL, capture_output=True)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1].partition(": ")[2] if done.returncode and said else ""


def place(directory: str, run: dict[str, str], ids: list[str], files: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Puts the files there, name: (text, permissions), unless peers run by others."""
    root = absolute(directory)
    own(os.path.dirname(root))
    own(root)
    os.chmod(root, 0o700)  # that of an earlier run may be open to readers
    for other in peers_in(root):
        if other.id not in ids and other.is_of_earlier(run):
            other.discard()
    peers = [Peer(root, id) for id in ids]
    for peer in peers:
        peer.claim(run)
    running = [peer.id for peer in peers if peer.runs()]
    for name, (text, mode) in files.items():
        path = os.path.join(root, name)
        old = read(path) if os.path.exists(path) else None
        if old != text:
            if running and name.endswith(".yaml"):
                raise Refused(
                    f"{', '.join(running)} still run by other settings; take them up with `dfl-launch attach`"
                )
            write(path, text, mode)
            if name.endswith(".yaml"):
                forget(directory, [id for id in ids if name in ("federation.yaml", f"{id}.yaml")])
    return {"root": root, **survey(directory, run, ids)}


def peers_in(root: str) -> list[Peer]:
    """All whose files are in the run's directory, whoever placed them."""
    names = os.listdir(root) if os.path.isdir(root) else []
    return [Peer(root, name[1:-4]) for name in sorted(names) if name.startswith(".") and name.endswith(".run")]


def discard(directory: str, run: dict[str, str], ids: list[str]) -> None:
    """Ends these peers and removes what is theirs; what they share, with the last. Those of other runs stay."""
    root = absolute(directory)
    for peer in peers_in(root):
        if peer.id in ids and not peer.obstacle(run):
            peer.discard()
    if os.path.isdir(root) and not peers_in(root):
        for name in ("federation.yaml", "ca.pem"):
            with suppress(FileNotFoundError):
                os.remove(os.path.join(root, name))
        with suppress(OSError):  # somebody has put something there
            os.rmdir(root)


def forget(directory: str, ids: list[str]) -> None:
    """How peers have ended that are to be started anew."""
    for peer in (Peer(absolute(directory), id) for id in ids):
        for path in (peer.exit, peer.lock):
            if os.path.exists(path) and not peer.runs():
                os.remove(path)


def start(directory: str, id: str, keeper: str) -> None:
    Peer(absolute(directory), id).start(keeper)


def send(directory: str, id: str, number: int) -> bool:
    return Peer(absolute(directory), id).signal(number)


def follow(directory: str, id: str, offsets: dict[str, int]) -> None:
    threading.Thread(target=Peer(absolute(directory), id).follow, args=(offsets,), daemon=True).start()
