"""Which members must answer a peer that returns before it asks to enter, in virtual seconds."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from peer.network.streams.handshake import Identity
from peer.network.transport import REFUSED, DisconnectedError, Transport
from peer.network.view_rpc import ViewRpc
from peer.runtime.lifecycle import ReportIntervals
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.proposer import Rejoin
from peer.runtime.membership.view_store import ViewStore
from peer.views.decision import Acceptor, Memory, Rules
from peer.views.signing import Keyring
from peer.views.statements import Behind, Enter, Heard, Reply, Request
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
