"""What a member hears of views stands, whatever becomes of the connection on which it has heard it."""

import asyncio
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

from peer.runtime.membership.register import Register
from peer.views.acceptor import Acceptor
from peer.views.messages import Decided, Expel, Heard

from peer.network.streams.handshake import Identity
from peer.network.views.questions import Questions
from peer.runtime.membership.membership import Membership
from peer.runtime.membership.moving_seat import Terms
from peer.telemetry.events import Event, ViewDecided
from peer.views.view import Chain, View

ALL = ("peer0", "peer1", "peer2", "peer3")
FIRST, SECOND = View(0, ALL, 0), View(1, ALL[:3], 3)


@dataclass
class SlowRegister(Register):
    """On a disk that waits for `let_go`."""

    let_go: threading.Event = field(default_factory=threading.Event)
    writing: list[bytes] = field(default_factory=list)
    at_once: int = 0
    """The most writes that were under way at a time."""

    def write(self, content: bytes) -> None:
        self.writing.append(content)
        self.at_once = max(self.at_once, len(self.writing))
        assert self.let_go.wait(10)
        super().write(content)
        self.writing.remove(content)


async def test_who_asks_may_go_before_the_answer_is_on_disk(tmp_path: Path) -> None:
    """Two that wrote views.json at a time ended a peer: the first took away what the second was about to rename."""
    register = SlowRegister(tmp_path / "views.json", Acceptor("peer0", Chain([FIRST])))
    questions = Questions(Identity("peer0", {}, manifest="", settings={}), {})
    told = list[Event]()
    terms = Terms(patience=60.0, begins_with_some=False, at_least=2)
    membership = Membership(register, questions, told.append, terms)
    moved = asyncio.create_task(membership.moved(FIRST))
    gone = asyncio.create_task(membership.hear(Decided((SECOND,))))
    while not register.writing:  # noqa: ASYNC110 (a thread tells this loop nothing)
        await asyncio.sleep(0.01)
    gone.cancel()
    stays = asyncio.create_task(membership.hear(Expel(1, "peer2")))
    await asyncio.sleep(0.05)
    assert len(register.writing) == 1
    register.let_go.set()
    assert await stays == Heard()
    await asyncio.wait([gone])
    assert gone.cancelled()
    async with asyncio.timeout(10):
        await moved
    assert register.at_once == 1
    kept = json.loads((tmp_path / "views.json").read_text())
    assert [view["number"] for view in kept["acceptor"]["chain"]] == [0, 1]
    assert kept["acceptor"]["consents"] == ["peer2"]
    assert told == [ViewDecided(**SECOND.as_json())]
