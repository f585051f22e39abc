"""A neighbour that lives and does not send what is waited for is named, with what it says that it does."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from peer.errors import FailedError
from peer.network.neighbours import Neighbour, SignsOfLife
from peer.network.wire.frames import Key
from peer.runtime import lifecycle
from peer.runtime.in_process import run_in_process
from peer.runtime.lifecycle import ReportIntervals, RuntimeLimits, drain, watch_stalled
from peer.spec.loading import load_spec
from peer.telemetry.events import Event, Waiting

UNEVEN = """
from peer import Protocol, Share
from peer import SGD, Phase
LAST = 2
class Uneven(Protocol):
    paper, min_peers = "none", 3
    def shares(self, rounds): return (Share("extractor"),)
    def local(self): return (Phase("model", 1, SGD()),)
    async def round(self, peer):
        await peer.train(*self.local())
        await peer.exchange("extractor")
        if peer.id != "peer1" and peer.round == LAST:
            await peer.exchange("extractor")
"""


async def test_a_protocol_with_uneven_exchanges_in_its_last_round_does_not_stand_still_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    monkeypatch.syspath_prepend(tmp_path)
    soon = RuntimeLimits(reminders=ReportIntervals(stalled=0.5, stalled_again=0.5))
    data = {"name": "digits", "limit": 100}
    (tmp_path / "federation.yaml").write_text(json.dumps({"rounds": 2, "protocol": "uneven:Uneven", "data": data}))
    run = asyncio.create_task(run_in_process(load_spec(tmp_path / "federation.yaml", peers=3), tmp_path, soon))

    def told(peer: str) -> bool:
        path = tmp_path / peer / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return any(
            one["id"] == "peer1"
            and one["reason"].startswith("nothing more of round 2 for ")
            and one["reason"].endswith("it says that it is serving in round 2")
            for line in lines
            if line["event"] == "waiting"
            for one in line["for"]
        )

    async with asyncio.timeout(30):
        while not told("peer0") or not told("peer2"):  # noqa: ASYNC110 (a file tells nobody that it has grown)
            await asyncio.sleep(0.05)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


@pytest.mark.parametrize("on_loss", ["wait", "bypass"])
async def test_one_call_more_than_a_neighbour_makes_ends_the_run_in_a_sentence(
    on_loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process with `bypass`, too: nobody could vote there."""
    (tmp_path / "one_more.py").write_text(UNEVEN.replace("== LAST", "< LAST"))
    monkeypatch.syspath_prepend(tmp_path)
    spec = {"rounds": 2, "protocol": "one_more:Uneven", "data": {"name": "digits", "limit": 100}, "on_loss": on_loss}
    (tmp_path / "federation.yaml").write_text(json.dumps(spec))
    with pytest.raises(ExceptionGroup) as ended:
        await run_in_process(load_spec(tmp_path / "federation.yaml", peers=3), tmp_path)
    said = r"^peer1 has gone on to round 2, and this peer still calls exchange\(`extractor`\) in round 1;"
    assert ended.group_contains(FailedError, match=said)


class Owing:
    """One neighbour, and the message that it owes; a virtual second passes with each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.said = 0.0, list[tuple[float, str]]()
        self.neighbour, self.message = Neighbour("b", "b:1", signs=SignsOfLife(0.0)), (Key(0, 3, 1), 0)
        self.neighbour.state, self.neighbour.signs.activity = "up", "training in round 3"
        loop, sleep = asyncio.get_running_loop(), asyncio.sleep

        async def second(_seconds: float) -> None:
            self.now += 1
            await sleep(0)

        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(lifecycle.asyncio, "sleep", second)  # type: ignore[attr-defined]
        self._sleep = sleep

    def stalled_messages(self) -> list[tuple[Neighbour, Key, int]]:
        return [(self.neighbour, *self.message)]

    def report(self, event: Event) -> None:
        self.said.append((self.now, str(event)))

    async def minded(self, seconds: int) -> list[tuple[float, str]]:
        """What is said until so many seconds have passed."""
        task = asyncio.create_task(watch_stalled(self, self.report, ReportIntervals()))  # type: ignore[arg-type]
        while self.now < seconds:
            await self._sleep(0)
        task.cancel()
        return self.said


async def test_it_is_told_after_half_a_minute_and_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    said = await Owing(monkeypatch).minded(1300)
    assert [now for now, _ in said] == [31, 631, 1231]
    assert said[0][1] == (
        "waiting for b at b:1 (nothing more of round 3 for 30 s; it says that it is training in round 3)"
    )


async def test_its_coming_is_told_and_a_new_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Owing):
        def stalled_messages(self) -> list[tuple[Neighbour, Key, int]]:
            return [] if self.now == 50 else [(self.neighbour, Key(0, 3 if self.now < 50 else 4, 1), 0)]

    said = await Late(monkeypatch).minded(100)
    assert [now for now, _ in said] == [31, 50, 81]
    assert said[1][1] == "b sends again"
    assert "nothing more of round 4 for 30 s" in said[2][1]


async def test_every_report_names_all_who_are_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(Owing):
        """`c` is stalled ten seconds after `b`, which sends again after fifty."""

        def __init__(self) -> None:
            super().__init__(monkeypatch)
            self.other = Neighbour("c", "c:1", state="up", signs=SignsOfLife(0.0, activity="training in round 3"))
            self.reported: list[tuple[float, list[str]]] = []

        def stalled_messages(self) -> list[tuple[Neighbour, Key, int]]:
            late = [(self.other, Key(0, 3, 1), int(self.now > 10))]
            return late if self.now >= 50 else [*super().stalled_messages(), *late]

        def report(self, event: Event) -> None:
            assert isinstance(event, Waiting)
            assert event.cause == "stalled"
            self.reported.append((self.now, [one.id for one in event.awaited]))
            super().report(event)

    two = Two()
    said = await two.minded(100)
    assert two.reported == [(31, ["b"]), (41, ["b", "c"]), (50, ["c"])]
    assert said[2][1].startswith("b sends again; still waiting for c at c:1 (nothing more of round 3 for 39 s")


async def test_a_message_that_grows_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Owing):
        def stalled_messages(self) -> list[tuple[Neighbour, Key, int]]:
            return [(self.neighbour, self.message[0], int(self.now // 20))]

    assert await Slow(monkeypatch).minded(300) == []


async def test_one_that_is_gone_is_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Owing(monkeypatch)
    gone.neighbour.state = "suspected"
    assert await gone.minded(300) == []


async def test_who_has_finished_says_for_whom_it_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that sends heartbeats may have more to train; it may also never say that it has its last round."""
    now, durable, said = 0.0, 2, list[tuple[float, Event]]()
    neighbour = Neighbour("b", "b:1", state="up", signs=SignsOfLife(0.0, activity="serving in round 3"))

    async def never() -> None: ...

    async def within(seconds: float, awaited: Coroutine[Any, Any, None]) -> bool:
        nonlocal now, durable
        await awaited
        now += seconds
        neighbour.signs.last_heartbeat = now
        durable = 3 if now > 1000 else 2
        return False

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    monkeypatch.setattr(lifecycle, "within", within)
    network = Mock(last_round=3, report=lambda event: said.append((now, event)))
    network.edges = Mock(neighbours={"b": neighbour}, last=lambda *_: 3)
    network.durability = Mock(of=lambda _: durable, changed=Mock(next=never))
    assert await drain(network, patience=60) == []
    assert [at for at, _ in said[:2]] == [30, 630]
    why = "it has not said that its last round is on disk, but that it is serving in round 3"
    assert str(said[0][1]) == f"cannot end: waiting for b at b:1 ({why})"
    assert str(said[-1][1]) == "all neighbours have on disk what they need"
    assert len(said) == 3
