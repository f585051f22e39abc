"""What is seen of a run whose members change: one line a change, and who is lost is not waited for."""

import io
from typing import Any

import pytest
from rich.console import Console

from launcher.commands.watch import status_cells
from launcher.dashboard.feed import LiveSnapshot
from launcher.headline import Headline
from launcher.monitor.federation import FederationView, News
from launcher.monitor.live_table import render
from launcher.monitor.polled_federation import PolledFederation
from peer.network.operator_client import LinkStatus, PeerStatus
from peer.network.wire.messages import StatusReply
from peer.telemetry.events import (
    Awaited,
    Departed,
    Event,
    LinkChanged,
    Resumed,
    RoundDone,
    Shortage,
    StateChanged,
    StoppedEarly,
    ViewDecided,
    Waiting,
)

MATCHED = Headline(test="matched")
IDS = ("a", "b", "c")


def view(number: int, members: str, first: int, **parts: Any) -> ViewDecided:
    said = {"planned": False, "entrants": (), "reason": "c silent for 3 s", **parts}
    return ViewDecided(number=number, members=tuple(members), first=first, **said)


def federation() -> FederationView:
    """Everybody has three rounds behind it and is in the fourth; c is silent."""
    seen = FederationView(IDS, 9, MATCHED)
    seen.update([(id, RoundDone(round=n, accuracy={"matched": n / 10})) for id in IDS for n in (1, 2, 3)], 1.0)
    seen.update([(id, StateChanged(state="communicating", round=4)) for id in IDS], 1.0)
    return seen


def all_tell(told: Event, *ids: str) -> list[News]:
    return [(id, told) for id in ids]


def test_what_no_more_peers_tell_than_may_lie_is_not_believed() -> None:
    seen = FederationView("abcd", 9, MATCHED, faulty=1)
    for forged in (view(1, "", 0), view(1, "a", 3), view(2, "a", 3)):
        assert seen.update(all_tell(forged, "a"), 1.0) == []
    assert seen.update(all_tell(view(1, "abd", 3), "b"), 1.0) == []
    assert seen.update(all_tell(view(1, "abd", 3), "d"), 1.0) == ["view 1 from round 3: c lost (c silent for 3 s)"]
    assert seen.views.finishers == ["a", "b", "d"]


def test_where_nobody_can_be_lost_nobody_is() -> None:
    seen = FederationView(IDS, 9, MATCHED, faulty=None)
    news = all_tell(view(1, "a", 0), "a") + all_tell(StoppedEarly(round=-1, best_round=1, figure="loss"), "a")
    assert seen.update(news, 1.0) == []
    assert seen.views.finishers == [*IDS]


def test_a_change_is_told_once() -> None:
    seen = federation()
    assert seen.update(all_tell(view(1, "ab", 3), "a"), 2.0) == ["view 1 from round 3: c lost (c silent for 3 s)"]
    assert seen.update(all_tell(view(1, "ab", 3), "b"), 2.5) == []
    back = view(2, "abc", 6, planned=True, entrants=(("c", 2),), reason="c taken in")
    assert seen.update(all_tell(back, *IDS), 3.0) == ["view 2 from round 6: c back (c taken in)"]
    again = view(3, "abc", 6, reason="its proposer was lost")
    assert seen.update(all_tell(again, *IDS), 3.0) == [
        "view 3 from round 6: later rounds rolled back (its proposer was lost)"
    ]


def test_who_leaves_and_who_is_voted_out_are_told_apart_from_the_lost() -> None:
    seen = federation()
    left = view(1, "ab", 5, planned=True, reason="c leaves")
    assert seen.update(all_tell(left, "a", "b"), 2.0) == ["view 1 from round 5: c left (c leaves)"]
    assert seen.update([("c", Departed(sentence="left: view 1 goes on"))], 2.5) == ["c left: view 1 goes on"]
    assert seen.status_of("c") == "left"
    seen = federation()
    out = view(1, "ab", 3, reason="c voted out by a, b", expelled=("c",))
    assert seen.update(all_tell(out, "a", "b"), 2.0) == ["view 1 from round 3: c voted out (c voted out by a, b)"]
    assert seen.status_of("c") == "expelled"


def test_the_figures_are_those_of_the_members_and_void_rounds_are_gone() -> None:
    seen = federation()
    seen.update(all_tell(view(1, "ab", 3), "a", "b"), 2.0)
    assert seen.round == 2
    assert [*seen.rounds_after(1)] == [2]
    seen.update([(id, RoundDone(round=n, accuracy={"matched": 0.5})) for id in "ab" for n in (3, 4, 5)], 3.0)
    assert (seen.round, seen.mean_figure(5)) == (5, 0.5)


def test_who_is_lost_waits_for_nobody_and_is_waited_for_by_nobody() -> None:
    seen = federation()
    waits = Waiting(cause="stalled", awaited=(Awaited("c", "c:1", "no sign of life"),), sentence="")
    seen.update(all_tell(waits, "a", "b"), 2.0)
    seen.update([("c", Waiting(cause="stalled", awaited=(Awaited("a", "a:1", ""),), sentence="", time=2.0))], 2.0)
    seen.update(all_tell(view(1, "ab", 3), "a", "b"), 2.0)
    for id in IDS:
        seen.update([(id, StateChanged(state="ready", round=3))] if id != "c" else [], 3.0)
    assert seen.update([], 100.0) == []
    assert not seen.peers["a"].waiting
    table = drawn(seen)
    assert "lost" in next(line for line in table.splitlines() if line.strip().startswith("c"))
    assert "round 2/9" in table
    assert "3 peers, 1 lost, mean matched accuracy" in table
    assert table.rstrip().endswith("view 1")


def drawn(seen: FederationView) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=100, height=24)
    console.print(render(seen, console))
    return screen.getvalue()


def test_a_return_is_seen() -> None:
    seen = federation()
    seen.update(all_tell(view(1, "ab", 3), "a", "b"), 2.0)
    assert seen.status_of("c") == "lost"
    seen.update([("c", StateChanged(state="joining", round=3))], 3.0)
    assert seen.status_of("c") == "returning"
    seen.update(all_tell(view(2, "abc", 6), *IDS), 4.0)
    seen.update([("c", StateChanged(state="training", round=6))], 4.0)
    assert seen.status_of("c") == "training"


def test_that_links_go_down_and_all_go_back_is_no_news_of_its_own() -> None:
    seen = federation()
    seen.update([("a", LinkChanged(neighbour=id, state="up")) for id in ("b", "c")], 1.0)
    move = [view(1, "ab", 3), LinkChanged(neighbour="b", state="down"), Resumed(round=2)]
    joins = [StateChanged(state="joining", round=3), LinkChanged(neighbour="b", state="up")]
    told = seen.update([("a", one) for one in (*move, *joins)] + all_tell(view(1, "ab", 3), "b"), 2.0)
    assert told == ["view 1 from round 3: c lost (c silent for 3 s)"]
    down = LinkChanged(neighbour="b", state="down", reason="connection closed")
    assert seen.update([("a", down)], 3.0) == ["link a - b is down (connection closed)"]


def short(seconds: float = 1.0, *awaited: str) -> Waiting:
    return Waiting.for_quorum(
        Shortage(1, 3, 2, seconds=seconds), tuple(Awaited(id, f"{id}:1", "gone") for id in awaited)
    )


def test_that_too_few_are_left_to_decide_is_told_once_and_then_ever_more_seldom() -> None:
    seen = federation()
    [line] = seen.update(all_tell(short(1.0, "b", "c"), "a"), 2.0)
    assert line == (
        "a: too few members for a decision: 1 of 3 are here, 2 are needed; waiting for b at b:1 (gone), c at c:1 (gone)"
    )
    told = [
        seen.update(all_tell(short(at, "b", "c"), "a"), 2.0 + at) for at in (2.0, 59.0, 61.0, 90.0, 119.0, 130.0, 200.0)
    ]
    assert [len(lines) for lines in told] == [0, 0, 1, 0, 0, 1, 0]
    table = drawn(seen)
    assert "b, c" in next(line for line in table.splitlines() if line.strip().startswith("a"))
    assert table.rstrip().endswith("too few members for a decision: 1 of 3 are here, 2 are needed")
    assert LiveSnapshot.from_federation(seen, IDS, 0.0).said.endswith(
        "Too few members for a decision: 1 of 3 are here, 2 are needed."
    )
    over = Waiting(cause="quorum", awaited=(), sentence="")
    assert seen.update(all_tell(over, "a"), 300.0) == ["no decision waits for members any more"]
    assert "too few" not in drawn(seen)


def test_for_whom_the_federation_does_not_have_no_decision_waits() -> None:
    """A member may say that it waits for anybody."""
    seen = federation()
    assert [seen.update(all_tell(short(1.0, f"z{n}"), "a"), 2.0) for n in range(3)] == [[], [], []]
    assert len(seen.update(all_tell(short(1.0, "b", "z"), "a"), 2.0)) == 1
    assert seen.update(all_tell(short(1.0, "b", "y"), "a"), 2.0) == []


def status(id: str, state: str = "training", round: int = 4, **parts: Any) -> PeerStatus:
    links = tuple(LinkStatus(other, f"{other}:1", "up", "", round - 2) for other in IDS if other != id)
    figures = {"accuracy": 0.5, "figure": 0.5, "bytes_sent": 1, "bytes_received": 1, "resources": {}}
    return PeerStatus(id=id, state=state, round=round, rounds=9, neighbours=links, **figures, **parts)


@pytest.fixture
def asked() -> PolledFederation:
    seen = PolledFederation(IDS, 9, MATCHED)
    seen.record({id: status(id) for id in IDS}, 0.0)
    return seen


def test_peers_that_are_asked_tell_who_is_outside(asked: PolledFederation) -> None:
    asked.record({"c": "connection refused"}, 1.0)
    lost = {id: status(id, round=3, view=1, first=3, outside=("c",)) for id in ("a", "b")}
    assert asked.record(lost, 2.0) == ["view 1 from round 3: c lost"]
    assert (asked.status_of("c"), asked.outside, asked.round) == ("lost", ["c"], 2)
    assert asked.record(lost, 3.0) == []
    asked.record({id: status(id, "serving", 9, view=1, first=3, outside=("c",)) for id in ("a", "b")}, 4.0)
    asked.record(dict.fromkeys("ab", "connection refused"), 5.0)
    assert asked.all_unreachable()
    assert asked.unfinished == []


def test_who_is_asked_is_back_when_the_others_say_so(asked: PolledFederation) -> None:
    asked.record({id: status(id, view=1, first=3, outside=("c",)) for id in ("a", "b")}, 2.0)
    assert asked.record({"a": status("a", view=3, first=6)}, 3.0) == ["view 3 from round 6: c back"]
    assert asked.outside == []


def test_of_those_that_are_asked_one_alone_excludes_nobody(asked: PolledFederation) -> None:
    """Nor does it all, or itself, in whatever view; it may say so in each answer."""
    for outside in (IDS, ("a",)):
        for now in (1.0, 2.0):
            assert asked.record({"a": status("a", view=1, first=1, outside=outside)}, now) == []
    assert not asked.outside
    assert not asked.all_unreachable()
    assert len(asked.peers["a"].history.runs) == 1
    seen = PolledFederation("abcd", 9, MATCHED, faulty=1)
    alone = status("a", view=1, first=3, outside=("c", "d"))
    assert [seen.record({"a": alone, "b": status("b")}, now) for now in (1.0, 2.0)] == [[], []]
    assert seen.outside == []
    told = status("b", view=1, first=3, outside=("c", "d"))
    assert seen.record({"a": alone, "b": told}, 3.0) == ["view 1 from round 3: c and d lost"]


def test_where_nobody_can_be_lost_no_answer_excludes_one() -> None:
    seen = PolledFederation(IDS, 9, MATCHED, faulty=None)
    for now in (1.0, 2.0):
        assert seen.record({id: status(id, view=1, first=3, outside=("c",)) for id in "ab"}, now) == []
    assert seen.outside == []
    assert len(seen.peers["a"].history.runs) == 1


def test_one_is_believed_where_the_others_cannot_be_asked() -> None:
    seen = PolledFederation("abcd", 9, MATCHED, unasked=["b", "c", "d"], faulty=1)
    told = status("a", view=1, first=3, outside=("d",))
    assert seen.record({"a": told}, 1.0) == ["view 1 from round 3: d lost"]


def test_one_that_is_asked_says_for_whom_a_decision_waits(asked: PolledFederation) -> None:
    waits = status("a", shortage=Shortage(1, 3, 2, seconds=90.0), awaited=(Awaited("c", "c:1", "gone"),))
    sentence = "too few members for a decision: 1 of 3 are here, 2 are needed"
    assert asked.record({"a": waits}, 2.0) == [f"a: {sentence}; after 90 s still waiting for c at c:1 (gone)"]
    assert asked.peers["a"].waiting == ["c"]
    trouble = status_cells("a:1", "a", waits)[-1]
    assert trouble.startswith(f"{sentence}; waiting for c since ")
    assert trouble.endswith(" (1 min 30 s)")
    assert asked.record({"a": status("a")}, 3.0) == ["no decision waits for members any more"]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_wait_that_cannot_be_is_none(seconds: float) -> None:
    reply = StatusReply(id="a", shortage=StatusReply.Shortage(here=1, members=3, needed=2, seconds=seconds))
    said = PeerStatus.from_reply(reply)
    assert said.shortage == Shortage(1, 3, 2)
    assert status_cells("a:1", "a", said)[-1]
