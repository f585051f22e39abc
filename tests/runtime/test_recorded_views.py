"""What is made of the views of a recorded run, and which recordings are refused."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies
from keyrings import files, keyring

from launcher.reports.peer_files import decided_views
from peer.errors import FailedError, InputError
from peer.network.streams.handshake import Identity
from peer.network.wire.messages import Hello, Refusal
from peer.runtime.membership.replay import replay_plan
from peer.spec.agreement import Agreement, lasting_digest
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.spec.peer import TLS, PeerConfig
from peer.spec.recordings import VIEWS, RunIdentity, recorded_views
from peer.views.decision import Memory, Rules, Verifier
from peer.views.signing import CertifiedKeyring, Keyring
from peer.views.statements import Ballot, Decision, InvalidError, Vote, canonical
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
        found = {at: s.view.number for s in replay_plan(id, views, ROUNDS) for at in range(s.view.first, s.last + 1)}
        last = {round: [view for view in views if view.first <= round][-1] for round in range(ROUNDS + 1)}
        assert found == {round: view.number for round, view in last.items() if id in view.members}


def test_what_a_peer_will_need_again_is_known_before() -> None:
    first, second = replay_plan("peer2", [ALL, WITHOUT, BACK], ROUNDS)
    assert (first.last, first.brings, first.brings_later, first.ends) == (2, None, 2, False)
    assert (second.view.first, second.last, second.brings, second.ends) == (6, ROUNDS, 2, True)
    assert [scene.last for scene in replay_plan("peer0", [ALL, WITHOUT, BACK], ROUNDS)] == [2, 5, ROUNDS]


def federation(directory: Path, **keys: Any) -> Spec:
    protocol = {"name": "fedavg", "epochs": 1}
    content = {"name": "small", "protocol": protocol, "rounds": ROUNDS, "on_loss": "bypass", **keys}
    path = directory / "federation.yaml"
    path.write_text(json.dumps(content))
    return load_spec(path, peers=4)


def decisions(spec: Spec, views: Sequence[View], signed_by: str = "") -> list[Decision]:
    """With the votes of all, with certificates of that CA: what would be if they had decided these views, after the
    first."""
    federation = lasting_digest(spec.agreement.digests)
    rings = {id: keyring(id, federation, signed_by) if signed_by else Keyring(id, federation) for id in IDS}
    court, found = Verifier(Rules(spec.ids, spec.rounds), Keyring("", federation)), list[Decision]()
    for before, view in pairwise(views):
        vote = Vote("commit", view.number, Ballot(1, "peer0"), court.digest(before, view))
        found.append(Decision(view, vote.ballot, tuple(rings[id].sign(vote) for id in before.members)))
    return found


def kept(spec: Spec, id: str, views: Sequence[View], signed_by: str = "") -> Memory:
    authorities = (files("peer0", signed_by)[0].decode(),) if signed_by else ()
    return Memory(id, decisions(spec, views, signed_by), authorities=authorities)


def record(directory: Path, known: Mapping[str, Sequence[View]], **keys: Any) -> Spec:
    """A recording in which these peers know these views; the federation that replays it."""
    spec = federation(directory, **keys)
    for id, views in known.items():
        (directory / "run" / id).mkdir(parents=True)
        RunIdentity.from_spec(spec, id).write(directory / "run" / id)
        (directory / "run" / id / VIEWS).write_bytes(canonical(asdict(kept(spec, id, views))))
    return federation(directory, views="replay", recording="run")


def found(spec: Spec, out: Path | None = None) -> tuple[View, ...] | None:
    """The views after the first."""
    recorded = recorded_views(PeerConfig(federation=Path("federation.yaml"), id="peer0", out=out), spec)
    return None if recorded is None else tuple(one.view for one in recorded)


def test_the_most_that_a_peer_knows_counts(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer2": [ALL], "peer0": [ALL, WITHOUT, BACK], "peer1": [ALL, WITHOUT]})
    assert found(spec) == (WITHOUT, BACK)
    (tmp_path / "run" / "peer2" / VIEWS).unlink()
    assert found(spec) == (WITHOUT, BACK)


def test_where_nobody_was_lost_all_are_members(tmp_path: Path) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    (tmp_path / "run" / "peer0" / VIEWS).unlink()
    assert found(spec) == ()


def test_nothing_is_read_where_views_are_decided(tmp_path: Path) -> None:
    assert found(federation(tmp_path)) is None


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ([ALL, BACK], "view 2 after view 0"),
        ([ALL, View(1, ("peer1", "peer0"), 3)], "members in another order"),
        ([ALL, View(1, (*IDS, "peer9"), 3)], "members in another order"),
        ([ALL, View(1, IDS, ROUNDS + 2)], "a view from round 11 on"),
        ([ALL, View(1, IDS[:3], 3, entrants=(("peer3", 1),))], "strangers taken in"),
        ([ALL, View(1, IDS, 3, entrants=(("peer3", 3),))], "an entrant from a later round"),
        ([ALL, View(1, IDS[:3], 3, expelled=("peer3",))], "an expulsion without proof"),
        ([ALL, WITHOUT, View(2, IDS, 6, entrants=(("peer2", 4),))], "peer2 brings a state of round 4"),
        ([ALL, WITHOUT, View(2, IDS, 6)], "peer2 brings a state of round 5"),
    ],
)
def test_what_no_members_would_have_decided_is_refused(tmp_path: Path, views: list[View], why: str) -> None:
    with pytest.raises(InputError, match=why):
        found(record(tmp_path, {"peer0": views}))


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"acceptor": {"chain": 3}}', "[" * 100_000])
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    spec = record(tmp_path, {"peer0": [ALL]})
    (tmp_path / "run" / "peer0" / VIEWS).write_text(content)
    with pytest.raises(InputError, match="is damaged, or not proved"):
        found(spec)


def proved_recording(directory: Path, change: Callable[[Memory], Memory]) -> Spec:
    """The recording of a run with certificates, in which peer0's file was changed."""
    spec = record(directory, {"peer0": [ALL]})
    memory = change(kept(spec, "peer0", [ALL, WITHOUT, BACK], "CA"))
    (directory / "run" / "peer0" / VIEWS).write_bytes(canonical(asdict(memory)))
    return spec


def test_views_with_the_signatures_of_their_members_are_replayed(tmp_path: Path) -> None:
    assert found(proved_recording(tmp_path, lambda memory: memory)) == (WITHOUT, BACK)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: replace(one, votes=one.votes[:2]), "votes by too few members"),
        (lambda one: replace(one, votes=(one.votes[0],) * 4), "votes by too few members"),
        (lambda one: replace(one, votes=tuple(replace(vote, signature="") for vote in one.votes)), "the signature is"),
        (lambda one: replace(one, view=replace(one.view, first=4)), "votes that are not for the same"),
    ],
    ids=["two", "one-of-four", "unsigned", "changed"],
)
def test_views_that_are_not_proved_are_refused(
    tmp_path: Path, change: Callable[[Decision], Decision], why: str
) -> None:
    def changed(memory: Memory) -> Memory:
        return replace(memory, decisions=[change(memory.decisions[0]), *memory.decisions[1:]])

    with pytest.raises(InputError, match=rf"not proved \({why}"):
        found(proved_recording(tmp_path, changed))


def test_views_that_another_authority_proves_are_refused(tmp_path: Path) -> None:
    other = (files("peer0", "another")[0].decode(),)
    with pytest.raises(InputError, match=r"not proved \(the signature is not"):
        found(proved_recording(tmp_path, lambda memory: replace(memory, authorities=other)))


def test_a_peer_with_certificates_replays_what_a_ca_proves_that_it_knows(tmp_path: Path) -> None:
    """A recording that names a CA of its own, or none, could be made up by whoever can write it."""
    spec = proved_recording(tmp_path, lambda memory: memory)
    known, strange = tmp_path / "ca.pem", tmp_path / "strange.pem"
    known.write_bytes(files("peer0", "CA")[0])
    strange.write_bytes(files("peer0", "another")[0])
    for tls in (TLS(ca=known, cert=known, key=known), TLS(ca=strange, cert=known, key=known, earlier=(known,))):
        config = PeerConfig(federation=Path("federation.yaml"), id="peer0", tls=tls)
        assert recorded_views(config, spec) is not None
    config = PeerConfig(federation=Path("f"), id="peer0", tls=TLS(ca=strange, cert=known, key=known))
    with pytest.raises(InputError, match=r"no CA that this peer knows.*`tls: \{earlier"):
        recorded_views(config, spec)
    (tmp_path / "unsigned").mkdir()
    unsigned = record(tmp_path / "unsigned", {"peer0": [ALL, WITHOUT]})
    with pytest.raises(InputError, match="no CA that this peer knows"):
        recorded_views(config, unsigned)


@pytest.mark.parametrize("by", ["another", ""])
def test_a_summary_takes_no_peer_at_its_word_whose_own_ca_proves_its_views(tmp_path: Path, by: str) -> None:
    spec = record(tmp_path, {id: [ALL] for id in IDS})
    places = {id: tmp_path / "run" / id for id in IDS}
    for id in IDS[1:]:
        (places[id] / VIEWS).write_bytes(canonical(asdict(kept(spec, id, [ALL], "CA"))))
    (places["peer0"] / VIEWS).write_bytes(canonical(asdict(kept(spec, "peer0", [ALL, WITHOUT], "CA"))))
    assert decided_views(spec, places, ROUNDS).later == (WITHOUT,)
    (places["peer0"] / VIEWS).write_bytes(canonical(asdict(kept(spec, "peer0", [ALL, WITHOUT], by))))
    with pytest.raises(FailedError, match=r"without proof that it was decided \(the signature is not"):
        decided_views(spec, places, ROUNDS)


def test_what_was_signed_in_one_run_is_not_in_another(tmp_path: Path) -> None:
    first = record(tmp_path, {"peer0": [ALL, WITHOUT]}, run="first")
    assert found(first) == (WITHOUT,)
    second = federation(tmp_path, run="second")
    digest = lasting_digest(second.agreement.digests)
    court = Verifier(Rules(IDS, ROUNDS), CertifiedKeyring("", digest, None, (files("peer0", "CA")[0].decode(),)))
    court.check_decision(ALL, decisions(second, [ALL, WITHOUT], "CA")[0])
    with pytest.raises(InvalidError, match="votes that are not for the same"):
        court.check_decision(ALL, decisions(first, [ALL, WITHOUT], "CA")[0])


@pytest.mark.parametrize("run", ["second", None])
def test_views_signed_for_another_run_are_refused_with_its_name(tmp_path: Path, run: str | None) -> None:
    """A peer would play them to the end, and no summary would find the proofs in its own views.json."""
    spec, recorded = record(tmp_path, {"peer0": [ALL]}, run="first"), federation(tmp_path, run="first")
    (tmp_path / "run" / "peer0" / VIEWS).write_bytes(canonical(asdict(kept(recorded, "peer0", [ALL, WITHOUT], "CA"))))
    assert found(spec.model_copy(update={"run": "first"})) == (WITHOUT,)
    with pytest.raises(InputError, match="write `run: first`"):
        found(spec.model_copy(update={"run": run}))


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
    told = [Agreement({"views": [view.as_json() for view in views]}) for views in ([ALL, WITHOUT], [ALL])]
    one, other = (Identity(id, said.digests, "", settings=said.content) for id, said in zip(IDS[:2], told, strict=True))
    refusal = one.check(Hello.FromString(other.hello("peer0")), None)
    assert refusal
    assert refusal.reason == Refusal.FEDERATION
    assert list(refusal.keys) == ["views"]
