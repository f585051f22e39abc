"""Fixtures of the whole suite: one fork server a session, free ports, tiny federations of real peers."""

import gc
import itertools
import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from interpreter import Commands
from proxies import Proxies
from real_peers import Build, BuildWatched, Nursery, SmallFederation

from peer.network.transport.addresses import why_taken
from peer.spec.loading import load_spec

# A machine under load is no failure; and who sees one here sees it again.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# Tests run under `nohup` see closed terminals, too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Each worker has a core: with a thread for every core, they would spend most of their time waiting for one another's.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """What is imported by now stays: no collection of garbage needs to walk over it again."""
    import_module("torch._dynamo")  # the first optimiser imports it anyway, but after the freeze
    gc.collect()
    gc.freeze()


FIRST_PORT, LAST_PORT, WORKERS = 10_000, 32_000, 16
"""Below the ephemeral ports, or an outgoing connection takes a dead peer's; each xdist worker has a part."""


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """One fork server for the whole session; each worker of pytest-xdist has one."""
    nursery = Commands()
    yield nursery
    nursery.close()


@pytest.fixture(scope="session")
def fork_server(commands: Commands) -> Nursery:
    """The fork server of the peers, which can be told to die at an event, or to lie (faults.injected)."""
    return commands


@pytest.fixture(scope="session")
def ports(worker_id: str) -> Callable[[int], list[int]]:
    """ports(n): n free ports that nobody else in this session is given."""
    room = (LAST_PORT - FIRST_PORT) // WORKERS
    worker = int(worker_id.removeprefix("gw")) if worker_id != "master" else 0
    first = FIRST_PORT + worker % WORKERS * room
    # Another session on this machine begins elsewhere in its part.
    begin = os.getpid() * 97 % room
    candidates = itertools.cycle(first + (begin + step) % room for step in range(room))

    def block(count: int) -> list[int]:
        free = (port for port in candidates if not why_taken(f"127.0.0.1:{port}"))
        return list(itertools.islice(free, count))

    return block


@pytest.fixture
def federation(tmp_path: Path, fork_server: Nursery, ports: Callable[[int], list[int]]) -> Iterator[Build]:
    """federation("fibfl", peers=3, rounds=2, ...): a tiny one, ready to start; keywords are the spec's keys.

    Peers with None in place of an address dial out.
    """
    made: list[SmallFederation] = []

    def build(protocol: str | dict[str, Any], peers: int = 3, **spec: Any) -> SmallFederation:
        directory = tmp_path / spec.pop("directory", f"federation{len(made)}")
        directory.mkdir()
        addresses = spec.pop("addresses", None) or [f"127.0.0.1:{port}" for port in ports(peers)]
        content = {
            "name": "tiny",
            "rounds": 2,
            "protocol": protocol,
            "data": {"name": "digits", "limit": 300},
            "patience": 30,
            "ring": [
                {"id": f"peer{i}", **({"address": address} if address else {"dials_out": True})}
                for i, address in enumerate(addresses)
            ],
            **spec,
        }
        (directory / "federation.yaml").write_text(json.dumps(content))
        federation = SmallFederation(directory, load_spec(directory / "federation.yaml"), fork_server)
        for id in federation.ids:
            federation.configure(id)
        made.append(federation)
        return federation

    yield build
    try:
        for federation in made:
            print(federation.account())  # pytest shows it when the test has failed
    finally:
        for federation in made:
            federation.end()


@pytest.fixture
def watched(federation: Build, ports: Callable[[int], list[int]]) -> Iterator[BuildWatched]:
    """watched("fibfl", peers=3, ...): as `federation`, and the proxies through which alone its peers talk.

    The peers of the numbers in `dial_out` have no address.
    """
    made: list[Proxies] = []

    def build(
        protocol: str | dict[str, Any], peers: int = 3, dial_out: Collection[int] = (), **spec: Any
    ) -> tuple[SmallFederation, Proxies]:
        dialled, listening = ports(peers), ports(peers)
        addresses = [None if number in dial_out else f"127.0.0.1:{port}" for number, port in enumerate(dialled)]
        one = federation(protocol, peers, addresses=addresses, **spec)
        for id, port in zip(one.ids, listening, strict=True):
            if one.spec.addresses[id]:
                one.configure(id, listen=f"127.0.0.1:{port}")
        made.append(Proxies(dict(zip(dialled, listening, strict=True))))
        return one, made[-1]

    yield build
    for proxies in made:
        proxies.close()
