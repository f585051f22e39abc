"""What is made of the views of a recorded run, and which recordings are refused."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies
from peer.runtime.membership.script import script

from peer.errors import InputError
from peer.network.streams.handshake import Identity
from peer.network.wire.messages import Hello, Refusal
from peer.spec.agreement import digests
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig, load_spec
from peer.spec.recorded_views import VIEWS, recorded_views
from peer.spec.run import Run
from peer.views.view import View

IDS, ROUNDS = ("peer0", "peer1", "peer2", "peer3"), 9
ALL = View(0, IDS, first=0)
WITHOUT = View(1, ("peer0", "peer1", "peer3"), first=3, reason="peer2 silent for 3 s")
BACK = View(2, IDS, first=6, planned=True, entrants=(("peer2", 2),), reason="peer2 taken in")


@strategies.composite
def chains(draw: strategies.DrawFn) -> list[View]:
    views = [ALL]
    for number in range(1, draw(strategies.integers(1, 6))):
        members = draw(strategies.lists(strategies.sampled_from(IDS), min_size=1, unique=True))
        views.append(View(number, tuple(sorted(members)), draw(strategies.integers(0, ROUNDS + 1))))
    return views


@given(chains())
def test_in_each_round_the_members_of_the_last_view_that_has_begun_take_part(views: list[View]) -> None:
    for id in IDS:
        found = {at: s.view.number for s in script(id, views, ROUNDS) for at in range(s.view.first, s.last + 1)}
        last = {round: [view for view in views if view.first <= round][-1] for round in range(ROUNDS + 1)}
        assert found == {round: view.number for round, view in last.items() if id in view.members}


def test_what_a_peer_will_need_again_is_known_before() -> None:
    first, second = script("peer2", [ALL, WITHOUT, BACK], ROUNDS)
    assert (first.last, first.brings, first.brings_later, first.ends) == (2, None, 2, False)
    assert (second.view.first, second.last, second.brings, second.ends) == (6, ROUNDS, 2, True)
    assert [scene.last for scene in script("peer0", [ALL, WITHOUT, BACK], ROUNDS)] == [2, 5, ROUNDS]


def federation(directory: Path, **keys: Any) -> Spec:
    protocol = {"name": "fedavg", "epochs": 1}
    content = {"name": "small", "protocol": protocol, "rounds": ROUNDS, "on_loss": "bypass", **keys}
    path = directory / "federation.yaml"
    path.write_text(json.dumps(content))
    return load_spec(path, peers=4)


def record(directory: Path, known: Mapping[str, Sequence[View]], **keys: Any) -> Spec:
    """A recording in which these peers know these views; the federation that replays it."""
    spec = federation(directory, **keys)
    for id, views in known.items():
        (directory / "run" / id).mkdir(parents=True)
        Run.of(spec, id, 1).write(directory / "run" / id)
        kept = {"acceptor": {"chain": [view.as_json() for view in views]}, "entered": 0, "promised": 0}
        (directory / "run" / id / VIEWS).write_text(json.dumps(kept))
    return federation(directory, views="replay", recording="run")


def found(spec: Spec, out: Path | None = None) -> tuple[View, ...] | None:
    return recorded_views(PeerConfig(federation=Path("federation.yaml"), id="peer0", out=out), spec)


def test_the_most_that_a_peer_knows_counts(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer2": [ALL], "peer0": [ALL, WITHOUT, BACK], "peer1": [ALL, WITHOUT]})
    assert found(spec) == (ALL, WITHOUT, BACK)
    (tmp_path / "run" / "peer2" / VIEWS).unlink()
    assert found(spec) == (ALL, WITHOUT, BACK)


def test_where_nobody_was_lost_all_are_members(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    (tmp_path / "run" / "peer0" / VIEWS).unlink()
    assert found(spec) == (ALL,)


def test_nothing_is_read_where_views_are_decided(tmp_path: Path) -> None:
    assert found(federation(tmp_path)) is None


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ([WITHOUT], "does not begin with everybody"),
        ([ALL, BACK], "view 2 follows view 0"),
        ([ALL, View(1, ("peer1", "peer0"), 3)], "other members than the ring"),
        ([ALL, View(1, (*IDS, "peer9"), 3)], "other members than the ring"),
        ([ALL, View(1, IDS, ROUNDS + 2)], "begins at round 11"),
        ([ALL, View(1, IDS[:3], 3, entrants=(("peer3", 1),))], "takes in who is no member"),
        ([ALL, View(1, IDS, 3, entrants=(("peer3", 3),))], "a round that it had not played"),
        ([ALL, WITHOUT, View(2, IDS, 6, entrants=(("peer2", 4),))], "peer2 brings a state of round 4"),
        ([ALL, WITHOUT, View(2, IDS, 6)], "peer2 brings a state of round 5"),
    ],
)
def test_what_no_members_would_have_decided_is_refused(tmp_path: Path, views: list[View], why: str) -> None:
    with pytest.raises(InputError, match=why):
        found(record(tmp_path, {"peer0": views}))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"acceptor": {"chain": 3}}', "[" * 100_000])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    (tmp_path / "run" / "peer0" / VIEWS).write_text(content)
    with pytest.raises(InputError, match="cannot be read"):
        found(spec)


def test_links_are_not_followed(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    path = tmp_path / "run" / "peer0" / VIEWS
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="it is a link"):
        found(spec)


def test_recordings_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no peer of this federation has left a run\.json"):
        found(federation(tmp_path, views="replay", recording="nowhere"))
    with pytest.raises(InputError, match="another federation, which differs in `seed`"):
        found(record(tmp_path, {"peer0": [ALL]}, seed=7))


def test_two_runs_in_one_recording_are_refused(tmp_path: Path) -> None:
    other = View(1, ("peer0", "peer1", "peer2"), first=3)
    with pytest.raises(InputError, match="peer0 and peer1 know different views"):
        found(record(tmp_path, {"peer0": [ALL, WITHOUT], "peer1": [ALL, other]}))


def test_the_recording_is_not_written_over(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    with pytest.raises(InputError, match="where this run itself writes"):
        found(spec, tmp_path / "run" / "peer0")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"views": "replay"}, "no run is named"),
        ({"views": "replay", "recording": "run", "on_loss": "wait"}, "on_loss: bypass"),
        ({"views": "replay", "recording": "run", "training": {"budget": {"seconds": 1}}}, "goes by the clock"),
        ({"views": "replay", "recording": "run", "protocol": "flexifed"}, "what `flexifed` measures differs"),
        ({"recording": "run"}, "`fedavg` does not go by `recording`"),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        federation(tmp_path, **keys)


def test_peers_with_different_recordings_refuse_each_other() -> None:
    told = [{"views": [view.as_json() for view in views]} for views in ([ALL, WITHOUT], [ALL])]
    one, other = (Identity(id, digests(said), "", settings=said) for id, said in zip(IDS[:2], told, strict=True))
    refusal = one.judge(Hello.FromString(other.hello("peer0")), None)
    assert refusal
    assert refusal.reason == Refusal.FEDERATION
    assert list(refusal.keys) == ["views"]
