"""Real dfl-peer processes for tests: started from one preloaded fork server, in tiny federations on loopback."""

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from proxies import Proxies

from launcher.engines.local import PRELOAD, Child, ForkServer, ServerProcess, fork_server
from peer.runtime.in_process import run_in_process
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec

MINUTE = 60.0
T = TypeVar("T")


@dataclass
class RunningPeer:
    """One dfl-peer process."""

    process: Child
    ended: "Future[int]"
    nursery: "Nursery"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return not self.ended.done()

    def wait(self, seconds: float = MINUTE) -> int:
        """Its exit code; TimeoutError when it still runs after `seconds`."""
        return self.ended.result(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Does nothing when it has ended."""
        self.nursery.loop.call_soon_threadsafe(self.process.signal, number)


class Nursery:
    """A fork server with an event loop in a thread of its own, so that tests of every kind can use it."""

    entry = "peer.cli:main"
    preload = (*PRELOAD, "dp_accounting")
    """Importing the accountant takes more than a second of CPU."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._server: Future[ForkServer] = Future()
        self._thread = threading.Thread(target=self._run, name="fork server", daemon=True)
        self._thread.start()
        self._server.result(MINUTE)

    def start(self, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> RunningPeer:
        """dfl-peer with these arguments; its output is appended to `log`."""
        server = self._server.result()
        started = asyncio.run_coroutine_threadsafe(server.start(argv, log, env=env), self.loop)
        process = started.result(MINUTE)
        return RunningPeer(process, asyncio.run_coroutine_threadsafe(process.wait(), self.loop), self)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(MINUTE)
        self.loop.close()

    def _run(self) -> None:
        self.loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with fork_server(ServerProcess.spawned(self.entry, self.preload, 3.0)) as server:
            self._server.set_result(server)
            await self._closing.wait()


@dataclass
class SmallFederation:
    """A federation on disk whose peers can be started one by one; `listen` where not at the ring's address."""

    directory: Path
    spec: Spec
    nursery: Nursery
    peers: dict[str, RunningPeer] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    """The environment of individual peers."""

    @property
    def ids(self) -> tuple[str, ...]:
        return self.spec.ids

    def address(self, id: str) -> str:
        """Empty for one that dials out."""
        return self.spec.addresses[id] or ""

    def configure(self, id: str, **settings: Any) -> Path:
        """Write <id>.yaml."""
        config = {"federation": "federation.yaml", "id": id, "device": "cpu", **settings}
        path = self.directory / f"{id}.yaml"
        path.write_text(dump_yaml(config))
        return path

    def start(self, *ids: str) -> None:
        """Start these peers, or all of them."""
        for id in ids or self.ids:
            argv = ["--config", str(self.directory / f"{id}.yaml")]
            self.peers[id] = self.nursery.start(argv, self.directory / f"{id}.log", self.env.get(id))

    def wait(self, seconds: float = MINUTE) -> dict[str, int]:
        """The exit codes of all that were started."""
        deadline = time.monotonic() + seconds
        return {id: peer.wait(max(0.0, deadline - time.monotonic())) for id, peer in self.peers.items()}

    def run(self) -> dict[str, dict[str, Any]]:
        """All peers from start to end; their results by id."""
        self.start()
        codes = self.wait()
        assert codes == dict.fromkeys(self.ids, 0), self.account()
        return self.results()

    def undisturbed(self) -> dict[str, str]:
        """model_sha256 by id where nothing can happen: in one process, for a fraction of the CPU."""
        runtimes = asyncio.run(run_in_process(self.spec, self.directory / "memory"))
        return {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}

    def results(self) -> dict[str, dict[str, Any]]:
        return {id: json.loads((self.directory / id / "result.json").read_text()) for id in self.ids}

    def log(self, id: str) -> str:
        return (self.directory / f"{id}.log").read_text()

    def account(self) -> str:
        """Say for every started peer whether it runs, or its exit code, and show its log."""
        how = {id: "runs" if peer.running else f"ended with {peer.wait()}" for id, peer in self.peers.items()}
        return "\n".join(f"--- {id} {how[id]}\n{self.log(id)}" for id in how)

    def events(self, id: str, *names: str) -> list[dict[str, Any]]:
        """The events of a peer so far, of all kinds or of those named."""
        path = self.directory / id / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if not names or event["event"] in names]

    def await_event(self, id: str, name: str, seconds: float = 30, **fields: Any) -> dict[str, Any]:
        """The first event of that name with these fields."""
        return until(
            lambda: next((e for e in self.events(id, name) if fields.items() <= e.items()), None),
            seconds,
            f"{id} reports {name} {fields}",
        )

    def end(self) -> None:
        """Whatever still runs is killed."""
        for peer in self.peers.values():
            peer.signal(signal.SIGKILL)
        for peer in self.peers.values():
            peer.wait(10)


def until(look: Callable[[], T | None], seconds: float, what: str) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"within {seconds} s: {what}"
        time.sleep(0.02)  # files of other processes tell nobody that they have grown


def all_gone(pids: Sequence[int], seconds: float) -> None:
    """Within so many seconds every one of these processes has ended, whether or not anybody has reaped it."""
    until(lambda: not any(map(alive, pids)), seconds, f"none of {pids} is left")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def digests(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """model_sha256 by id."""
    return {id: result["model_sha256"] for id, result in results.items()}


Build = Callable[..., SmallFederation]
"""federation(protocol, peers=3, **keys of the spec)"""
BuildWatched = Callable[..., tuple[SmallFederation, Proxies]]
"""watched(protocol, peers=3, **keys of the spec)"""
