"""One member's certificate in the wrong hands, and views: no other peer ends, splits, rolls back or forgets by it.

The thief speaks beside the honest process of that member, or in its place. All that it says is well-formed.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from certified import secured
from healing import ABSENCE, await_view, begin, end, healing, kill
from real_peers import Build, SmallFederation
from thief import Thief

from peer.spec.recordings import VIEWS
from peer.views.decision import Rules, Verifier
from peer.views.statements import (
    HIGHEST,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Confirm,
    Decided,
    Decision,
    Denied,
    Grounds,
    Heard,
    Lock,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Release,
    Reply,
    Request,
    Vote,
)
from peer.views.view import View

pytestmark = pytest.mark.long

THIEF = "peer4"


@pytest.fixture
def five(federation: Build) -> tuple[SmallFederation, Path]:
    """Members with certificates, of whom one may lie."""
    made = healing(federation, 5)
    return made, secured(made)


def decision(thief: Thief, federation: SmallFederation, view: View, as_if_by: int = 1) -> Decision:
    """With its own vote, and with that vote in the names of so many members."""
    spec = federation.spec
    court = Verifier(Rules(spec.ids, spec.rounds, 1), thief.keyring)
    before = View(view.number - 1, spec.ids, 0)
    ballot = Ballot(1, thief.id)
    vote = thief.keyring.sign(Vote("commit", view.number, ballot, court.digest(before, view)))
    return Decision(view, ballot, tuple(replace(vote, signer=id) for id in (thief.id, *spec.ids)[:as_if_by]))


def honest(federation: SmallFederation) -> list[str]:
    return [id for id in federation.ids if id != THIEF]


def is_not_believed(federation: SmallFederation) -> None:
    """Nobody has written down a view, and whoever spoke is named."""
    for id in honest(federation):
        path = federation.directory / id / VIEWS
        assert not path.exists() or json.loads(path.read_text())["decisions"] == []
        assert {event["caller"] for event in federation.events(id, "refused")} == {THIEF}


def test_invented_views_are_believed_by_none(five: tuple[SmallFederation, Path]) -> None:
    """Views that expel everybody else, halves for two halves, forty in a row, and one far away."""
    run, certs = five
    begin(run)
    with Thief(run, certs, THIEF) as thief:
        for to in honest(run):
            alone = View(1, (THIEF,), 3, expelled=tuple(honest(run)))
            half = run.ids[:3] if to in run.ids[:2] else run.ids[2:]
            many = tuple(decision(thief, run, View(number, run.ids[:4], 20)) for number in range(1, 41))
            for said in (
                (decision(thief, run, alone),),
                (decision(thief, run, alone, as_if_by=5),),
                (decision(thief, run, View(1, half, 20), as_if_by=4),),
                many,
                (replace(many[0], votes=()),),
            ):
                assert isinstance(thief.ask(to, Decided(said)), Denied)
            assert thief.ask(to, Decided((many[7],))) == Behind(0)
            assert thief.ask(to, Ask(0)) == Decided(())
    is_not_believed(run)
    assert len(end(run)) == 1


def test_no_ballot_and_no_promise_beyond_what_can_be(five: tuple[SmallFederation, Path]) -> None:
    """Attempts with the highest ballots, a lock, a release, and a proposal that rest on nothing."""
    run, certs = five
    begin(run)
    with Thief(run, certs, THIEF) as thief:
        sign, view = thief.keyring.sign, View(1, run.ids[:4], 20)
        digest = Verifier(Rules(run.ids, run.spec.rounds, 1), thief.keyring).digest(View(0, run.ids, 0), view)
        ballot = Ballot(1, THIEF)
        promise = sign(Promise(1, ballot, -1, run.spec.rounds))
        vote, commit = (sign(Vote(phase, 1, ballot, digest)) for phase in ("accept", "commit"))  # type: ignore[arg-type]
        for to in honest(run):
            for request in (
                AskPromise(sign(Prepare(1, Ballot(HIGHEST, THIEF)))),
                AskPromise(replace(sign(Prepare(1, Ballot(1, "peer0"))), signer="peer0")),
                Propose(Proposal(view, vote, Grounds((promise,)))),
                Confirm(Lock(1, ballot, view, (vote,))),
                Release(1, ballot, (commit,)),
            ):
                assert isinstance(thief.ask(to, request), Denied | Heard | Refused), request
    is_not_believed(run)
    assert len(end(run)) == 1


def test_attempts_without_end_hold_the_rest_less_and_less(federation: Build) -> None:
    """The thief begins a decision wherever it is listened to, again and again; each comes to nothing, and between two
    the others train on."""
    run = healing(federation, 5, rounds=60)
    certs = secured(run)
    begin(run)
    held: list[int] = []
    with Thief(run, certs, THIEF) as thief:
        counter, promised = 0, 0
        while promised < 2 * len(honest(run)):
            counter += 1
            prepare = AskPromise(thief.keyring.sign(Prepare(1, Ballot(counter, THIEF))))
            for to in honest(run):
                reply = thief.ask(to, prepare)
                counter = max(counter, reply.promised.counter) if isinstance(reply, Refused) else counter
                if isinstance(reply, Promised):
                    promised += 1
                    held.append(run.events(to, "round")[-1]["round"])
    assert held[-1] - held[0] > 20
    assert len(end(run)) == 1


class Answering:
    """To all questions of honest members."""

    def __init__(self) -> None:
        self.thief: Thief
        self.view0 = View(0, ("peer4",), 0)

    def false_chain(self, request: Request) -> Reply | None:
        """Another chain than that of all, from another view 0 on."""
        promises = (Decision(self.view0, Ballot(1, THIEF), ()),)
        return Decided(promises)

    def far_away(self, request: Request) -> Reply | None:
        return Behind(1 << 31)

    def never(self, request: Request) -> Reply | None:
        """It listens to another ballot, always."""
        if isinstance(request, AskPromise):
            ballot = request.prepare.statement.ballot
            return Refused(request.prepare.statement.number, Ballot(ballot.counter + 1, THIEF))
        return None

    def _promise(self, request: Request, **standing: int) -> Reply | None:
        if not isinstance(request, AskPromise):
            return Heard()
        prepare = request.prepare.statement
        said = {"durable": -1, "started": 0} | standing
        return Promised(self.thief.keyring.sign(Promise(prepare.number, prepare.ballot, **said)))

    def begun_all(self, request: Request) -> Reply | None:
        """It has begun all rounds, and can go back to the start only."""
        return self._promise(request, started=40)

    def has_nothing(self, request: Request) -> Reply | None:
        return self._promise(request)

    def silent(self, request: Request) -> Reply | None:
        return None


@pytest.mark.parametrize("how", ["false_chain", "far_away", "never", "begun_all", "has_nothing", "silent"])
def test_false_answers_neither_end_nor_hold_nor_roll_back(five: tuple[SmallFederation, Path], how: str) -> None:
    """The thief answers in the place of a member that was killed, and another one is lost meanwhile."""
    run, certs = five
    answering = Answering()
    begin(run)
    for id in run.ids:
        run.await_event(id, "round", 40, round=8)
    kill(run, THIEF)
    with Thief(run, certs, THIEF, getattr(answering, how)) as answering.thief:
        await_view(run, "peer0", honest(run), 60 + 6 * ABSENCE)
        assert answering.thief.asked
        views = end(run, *honest(run))
    assert all(not view.planned and view.first > 2 for view in views[1:]), "nobody goes back for it"


def test_what_was_signed_is_checked_at_the_start_too(five: tuple[SmallFederation, Path]) -> None:
    """Somebody puts a view into a peer's views.json: the peer says so, and what to do."""
    run, _ = five
    begin(run)
    kill(run, THIEF)
    await_view(run, "peer1", honest(run))
    kill(run, "peer1")
    path = run.directory / "peer1" / VIEWS
    kept = json.loads(path.read_text())
    kept["decisions"][0]["view"]["members"] = ["peer1"]
    path.write_text(json.dumps(kept, sort_keys=True, separators=(",", ":")))
    run.start("peer1")
    assert run.peers.pop("peer1").wait(30) == 1
    assert "without proof that it was decided" in run.log("peer1").splitlines()[-1]
