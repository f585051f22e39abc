"""Which release a neighbour runs: told when it differs, bounded, and seen in `dfl-launch status`."""

from typing import Any

from launcher.commands.watch import on_disk, releases
from peer.network.limits import Limits, Timeouts
from peer.network.neighbours import MAX_RELEASE_CHARACTERS, Neighbour
from peer.network.operator_client import PeerStatus
from peer.network.streams.heartbeat import LinkReporter
from peer.network.wire.messages import StatusReply
from peer.telemetry.events import Event
from peer.versions import release


def reported(*names: str) -> list[str]:
    """What is reported of a neighbour that claims these releases one after the other."""
    told: list[Event] = []
    news, other = LinkReporter(Limits(), Timeouts(), told.append), Neighbour("peer1", "127.0.0.1:7701")
    for name in names:
        other.note_release(name)
        news.catch_up(other)
        news.catch_up(other)
    return [str(event) for event in told]


async def test_another_release_is_told_once_and_again_when_it_changes() -> None:
    ours = release()
    assert reported(ours, ours) == reported("") == []
    assert reported("9.0+aa", "9.0+aa", ours) == [
        f"peer1 runs dfl 9.0+aa, and this peer {ours}",
        f"peer1 runs dfl {ours}, as this peer does",
    ]


async def test_ever_other_releases_fill_nothing() -> None:
    assert len(reported(*(f"{number}" for number in range(1000)))) <= Limits().news


async def test_a_claimed_release_is_cut_and_shown_in_one_line() -> None:
    (line,) = reported("9" * 1000)
    assert "9" * MAX_RELEASE_CHARACTERS in line
    assert "9" * (MAX_RELEASE_CHARACTERS + 1) not in line
    forged = status(release="9.0\n\x1b[31mforged")
    assert "\x1b" not in releases({"a": forged, "b": status(release="1.0")})
    assert "\n" not in releases({"a": forged})


def status(**fields: Any) -> PeerStatus:
    return PeerStatus.from_reply(StatusReply(id="a", state="training", round=3, rounds=9, **fields))


def test_status_names_the_releases_and_the_durable_round() -> None:
    new, old = status(release="0.2.0+ab", durable=2), status(release="0.1.0+cd", durable=-1)
    assert releases({"a": new, "b": new}) == "All run dfl 0.2.0+ab."
    assert releases({"a": new, "b": old, "c": new}) == "Different releases: a, c dfl 0.2.0+ab; b dfl 0.1.0+cd."
    assert releases({"a": status()}) == ""
    assert on_disk({"a": new, "b": old}) == "On disk at each peer that answers: nothing yet."
    assert on_disk({"a": new, "b": status()}) == "On disk at each peer that answers: round 2."
    assert on_disk({"a": status()}) == ""
