"""Which members must answer a peer that returns before it asks to enter, in virtual seconds."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from peer.errors import InputError
from peer.files import make_private
from peer.network.streams.handshake import Identity
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.transport.memory import MemoryNetwork
from peer.network.view_rpc import ViewRpc
from peer.runtime.lifecycle import ReportIntervals
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import Rejoin
from peer.runtime.membership.view_runner import ViewRunner
from peer.runtime.membership.view_store import ViewStore
from peer.runtime.run_directory import check_directory
from peer.runtime.setup import prepare
from peer.spec.agreement import lasting_digest
from peer.spec.loading import load_spec
from peer.spec.peer import PeerConfig, peer_data
from peer.spec.recordings import VIEWS
from peer.telemetry.events import Waiting
from peer.telemetry.telemetry import Telemetry
from peer.views.decision import Acceptor, Memory, Rules, Verifier
from peer.views.signing import Keyring
from peer.views.statements import Ballot, Behind, Decision, Enter, Heard, Reply, Request, Vote
from peer.views.view import View

IDS = ("peer0", "peer1", "peer2", "peer3")
ABSENCE, PATIENCE = 10.0, 40.0


class Members(ViewRpc):
    """They answer, but for those with a reason why they do not."""

    def __init__(self, silent: dict[str, str]) -> None:
        super().__init__(Identity("peer0", {}, manifest="", settings={}), {})
        self._silent = silent
        self.entering = asyncio.Event()

    async def ask(self, transport: Transport, member: str, asked: Request) -> Reply:
        if reason := self._silent.get(member):
            raise DisconnectedError(reason)
        if isinstance(asked, Enter):
            self.entering.set()
            return Heard()
        return Behind(-1)


class Idle:
    async def run(self) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("silent", "faulty", "earliest"),
    [
        ({}, 0, 0.0),
        ({"peer3": "timed out"}, 0, PATIENCE),
        ({"peer3": REFUSED}, 0, ABSENCE),  # a firewall may refuse, too: to be let in and lost again must not be quick
        ({"peer2": REFUSED, "peer3": "timed out"}, 0, PATIENCE),
        ({"peer3": "timed out"}, 1, 0.0),
    ],
)
async def test_who_need_not_answer(
    silent: dict[str, str], faulty: int, earliest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sleep, loop = [1000.0], asyncio.sleep, asyncio.get_running_loop()
    questions = Members(silent)
    rules = Rules(("peer0", *IDS[1:], "peer4"), rounds=9, faulty=faulty, absence=ABSENCE, patience=PATIENCE)
    acceptor = Acceptor(Memory("peer0"), rules, Keyring("peer0", ""))
    acceptor.chain.extend(View(1, (*IDS[1:], "peer4"), 3))
    membership = Membership(ViewStore(tmp_path / "views.json", acceptor.memory), acceptor, questions, [].append)

    async def second(_seconds: float) -> None:
        now[0] += 1
        await sleep(0)

    async def newest() -> int:
        return -1

    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", second)
    rejoin = Rejoin(membership, lambda: cast("Transport", Idle()), ReportIntervals())
    returning = asyncio.create_task(rejoin.next_view(newest))
    await questions.entering.wait()
    assert earliest <= now[0] - 1000.0 <= earliest + 3
    returning.cancel()
    with suppress(asyncio.CancelledError):
        await returning


async def test_a_peer_that_waits_to_be_admitted_keeps_other_processes_out(tmp_path: Path) -> None:
    """Two of one peer could sign what contradicts each other."""
    file = tmp_path / "federation.yaml"
    file.write_text(json.dumps({"on_loss": "bypass", "protocol": "fedavg", "data": {"name": "digits", "limit": 100}}))
    spec = load_spec(file, peers=3)
    config = PeerConfig(federation=file, id="peer0", out=tmp_path / "peer0", data=peer_data("peer0", spec, None))
    others, federation = spec.ids[1:], lasting_digest(spec.agreement.digests)
    without = View(1, others, 1, reason="peer0 silent for 30 s")
    digest = Verifier(Rules(spec.ids, spec.rounds), Keyring("", federation)).digest(View(0, spec.ids, 0), without)
    vote = Vote("commit", 1, Ballot(1, "peer1"), digest)
    decision = Decision(without, vote.ballot, tuple(Keyring(id, federation).sign(vote) for id in others))
    make_private(config.directory)
    ViewStore(config.directory / VIEWS, Memory("peer0")).write(Memory("peer0", decisions=[decision]))
    setup, waits, telemetry = prepare(config, spec), asyncio.Event(), Telemetry()
    telemetry.subscribe(lambda event: waits.set() if isinstance(event, Waiting) else None)
    transport = partial(MemoryNetwork().transport, spec.addresses["peer0"])
    with ThreadPoolExecutor(1) as executor:
        running = asyncio.create_task(ViewRunner(setup, transport, executor, telemetry).run())
        await waits.wait()
        with pytest.raises(InputError, match="this peer is running already"):
            check_directory(config, spec)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    check_directory(config, spec)
