"""Which run the files on the hosts are of, so that no launcher takes another's for its own."""

import getpass
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from launcher.engines.base import Run
from launcher.engines.ssh.hosts import Host
from launcher.engines.ssh.placement import Place
from peer.errors import InputError
from peer.files import write_atomically
from peer.reading import SETTINGS, read_plain


def known(run: Run) -> dict[str, str]:
    """The run's owner and token; the token is empty before the first launch, which makes one."""
    written = _read(run)
    owner = f"{getpass.getuser()}@{socket.gethostname()}:{run.files.path}"
    return {"owner": written.get("owner", owner), "token": written.get("token", "")}


def settled(run: Run, places: Mapping[str, Place]) -> dict[str, str]:
    """The same, with a token. InputError when a peer is to go on where its checkpoints are not."""
    hosts = {id: _where(place.host) for id, place in places.items()}
    earlier = _read(run).get("hosts", {})
    for id, host in hosts.items():
        if earlier.get(id, host) != host:
            raise InputError(
                f"--hosts: {id} was on {earlier[id]}, where its checkpoints are, and cannot go on at {host}; put it "
                "back, or begin again with --fresh"
            )
    machines = {place.host.host: place.host.model_dump(mode="json") for place in places.values()}
    whose = known(run)
    whose["token"] = whose["token"] or secrets.token_hex(16)
    write_atomically(
        run.files.place, json.dumps({**whose, "hosts": hosts, "machines": machines}).encode(), permissions=0o600
    )
    return whose


def earlier(run: Run) -> dict[str, tuple[Host, list[str]]]:
    """On which hosts the run's peers were placed last, by name, and which of them on each."""
    written = _read(run)
    found = {name: Host.model_validate(content) for name, content in written.get("machines", {}).items()}
    ids: dict[str, str] = written.get("hosts", {})
    return {name: (host, [id for id in ids if ids[id] == _where(host)]) for name, host in found.items()}


def _where(host: Host) -> str:
    return f"{host.host}:{host.directory}"


def _read(run: Run) -> dict[str, Any]:
    try:
        written: dict[str, Any] = json.loads(read_plain(run.files.place, SETTINGS))
    except FileNotFoundError:
        return {}
    return written
