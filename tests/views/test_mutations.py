"""What the simulation is worth: with any one rule taken out, it finds something wrong within a few hundred seeds."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from machine import Machine
from world import World, violations

from peer.views import decision
from peer.views.decision import Acceptor, Court, Slot
from peer.views.view import View

ENOUGH = 400
"""Seeds within which each is found; most are within thirty."""
FIRST: dict[str, int] = {}
"""From which seed on that is so of what only few histories show: to be looked for anew if the simulation changes."""

RULES: dict[str, tuple[Any, str, str, str]] = {
    "a quorum without f": (View, "is_quorum", "twice > len(self.members) + f", "twice > len(self.members)"),
    "any half is a quorum": (View, "is_quorum", "and self.members[0] in those", ""),
    "who is outside counts": (View, "is_quorum", "{*ids} & {*self.members}", "{*ids}"),
    "a second vote in a ballot": (Acceptor, "_accept", "slot.vote.statement.ballot == ballot:", "False:"),
    "a lower ballot counts": (Slot, "admits", "ballot >= self.promised", "True"),
    "a released ballot counts again": (Slot, "admits", "ballot > self.released", "True"),
    "a promise tells of no lock": (Acceptor, "_promise", "slot.lock.ballot if slot.lock else None", "None"),
    "the lock is left behind": (Court, "check_proposal", "else None) == carried", "else carried) == carried"),
    "the lowest lock is carried": (Court, "check_proposal", "carried = max(", "carried = min("),
    "a lock may give way to no change": (Court, "check_proposal", "proposal.view is not None", "True"),
    "a view that does not follow": (Court, "check_proposal", "proposal.view in (None, view)", "True"),
    "too few promises": (Court, "check_proposal", "self.is_quorum(present, counted)", "True"),
    "promises of other ballots": (Court, "check_promise", "promise.ballot == ballot and ", ""),
    "a promise by two": (Court, "check_proposal", "len({*signers}) == len(signers)", "True"),
    "any signature": (Court, "check_signed", "self._authorities.is_valid(signed)", "True"),
    "a lock without votes": (Court, "check_lock", "self.check_votes(lock.votes, vote, present)", "pass"),
    "a decision without votes": (Court, "check_decision", "self.check_votes(decision.votes, vote, present)", "pass"),
    "a release without votes": (Court, "check_release", "self.check_votes(release.votes, vote, present)", "pass"),
    "votes for anything": (Court, "check_votes", "all(one.statement == vote for one in votes)", "True"),
    "a release of a lower ballot": (Acceptor, "_release", "release.ballot >= slot.promised", "True"),
    "a release by one alone": (Court, "check_release", "self.check_votes(release.votes, vote, present)",
                               "self.check_signed(release.votes[0])"),
    "consent of one": (Court, "check_evidence", "self.is_quorum(present, those - {id})", "True"),
    "guilt of equal votes": (Court, "check_guilt", "one.digest != other.digest and ", ""),
    "guilt of two ballots": (Court, "check_guilt", "replace(one, digest=other.digest) == other", "True"),
    "guilt of two members": (Court, "check_guilt", "guilt.one.signer == guilt.other.signer", "True"),
    "an expulsion without proof": (Court, "_check_follows", "{*view.expelled} <= proved.union(present.expelled)", "True"),
    "an expulsion is forgotten": (decision, "next_view", "proved.union(present.expelled)", "proved"),
    "planned although one was lost": (decision, "next_view", "standing.keys() == {*present.members}", "True"),
    "planned from the earliest round": (decision, "_after_all", "1 + max(", "1 + min("),
    "rounds ahead are not believed": (decision, "_after_all", "least + STALENESS_BOUND + len(present.members)", "least"),
    "back to the latest checkpoint": (decision, "next_view", "least = min(", "least = max("),
    "back behind the entry": (decision, "next_view", "if first <= promise.oldest", "if False"),
    "void private states count": (decision, "_counting", "private if private < first else -1", "private"),
    "what was announced is forgotten": (decision, "is_less", "promise.durable < (", "False and ("),
    "what was decided is forgotten": (decision, "_lost", "promise.durable < chain.floor(id)", "False"),
    "void rounds are held against one": (decision, "is_less", "min(announced.round, ceiling)", "announced.round"),
    "an entry by another": (Court, "_check_grounds", "self.check_signed(entry)", "pass"),
    "the held go on": (Slot, "held", "return self.promised is not None", "return False"),
    "voters object to nothing": (World, "objection", "return Objection(", "return None and Objection("),
    "voters know of no announcement": (Machine, "objection", "if less:", "if False:"),
    "those left out are not asked": (World, "objection", "if there else None", "if False else None"),
    "it is told although it is held": (Machine, "tellable", "if self.acceptor.held", "if False"),
    "more is promised after a restart": (Machine, "able", "if self.acceptor.held", "if False"),
    "what is void is told": (Machine, "announce", "if not self.is_over:", "if True:"),
    "less is told after a restart": (Machine, "read_back", "self.newest", "self.certain()"),
    "all have the round before a planned view": (Machine, "known_before", "{} if self.view.planned else ", ""),
    "the entry is forgotten in the next view": (Machine, "past", "[: (", "[(self.following or self.view).number : ("),
}  # fmt: skip
"""Each as it stands, and without it."""

LOSSES: dict[str, Callable[[Slot], Slot]] = {
    "a promise": lambda slot: replace(slot, promised=None, promise=None),
    "a vote": lambda slot: replace(slot, vote=None, proposers=None),
    "a lock": lambda slot: replace(slot, lock=None),
}


def change(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """One function, with a part of its text replaced."""
    was = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(was.fget if isinstance(was, property) else was))
    assert source.count(old) == 1, f"{name}: {old} is not there once"
    module = owner if inspect.ismodule(owner) else sys.modules[owner.__module__]
    made: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source.replace(old, new), vars(module), made)
    patch.setattr(owner, name, made[name])


def is_found(name: str) -> bool:
    first = FIRST.get(name, 0)
    return bool(list(islice(violations(range(first, first + ENOUGH)), 1)))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_taken_out_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, *RULES[rule])
    assert is_found(rule)


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_forgotten_in_a_crash_is_missed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reread = Machine.reread

    def forgetful(self: Machine) -> None:
        reread(self)
        self.memory.slot = LOSSES[what](self.memory.slot)

    monkeypatch.setattr(Machine, "reread", forgetful)
    assert is_found(what)


def test_a_consent_that_is_forgotten_in_a_crash_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    reread = Machine.reread

    def forgetful(self: Machine) -> None:
        reread(self)
        self.memory.consents.clear()

    monkeypatch.setattr(Machine, "reread", forgetful)
    assert is_found("a consent")


def test_a_promise_without_its_lock_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, Court, "check_promised", "(lock.ballot if lock else None) == named", "True")
    assert is_found("a promise without its lock")
