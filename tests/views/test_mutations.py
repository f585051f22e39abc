"""What the simulation is worth: with one rule taken out, it finds something wrong within a few hundred seeds.

Rules that only few histories need have tests of their own: test_views.py, test_votes.py, test_false_*.py.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from machine import Machine
from world import violations

from peer.views import decision
from peer.views.decision import Acceptor, Slot, Verifier
from peer.views.view import View

ENOUGH = 400
"""Seeds within which each is found; most are within thirty."""
FIRST: dict[str, int] = {
    "any half is a quorum": 30,
    "planned from the earliest round": 50,
    "rounds ahead are not believed": 50,
    "an expulsion is forgotten in a rewind": 100,
    "less is told after a restart": 280,
    "guilt of two ballots": 300,
    "back behind the entry": 330,
    "one is missing twice": 490,
}
"""From which seed on that is so of what only few histories show: to be looked for anew if the simulation changes."""

RULES: dict[str, tuple[Any, str, str, str]] = {
    "any half is a quorum": (View, "is_quorum", "and self.members[0] in those", ""),
    "any evidence for no change": (Verifier, "check_lock", "self.check_evidence(present, lock.evidence)", "pass"),
    "one is missing twice": (Verifier, "_check_grounds", "len({*grounds.missing}) == len(grounds.missing)", "True"),
    "a promise tells of no lock": (Acceptor, "_promise", "slot.lock.ballot if slot.lock else None", "None"),
    "the lowest lock is carried": (Verifier, "check_proposal", "carried = max(", "carried = min("),
    "any signature": (Verifier, "check_signed", "self._keyring.is_valid(signed)", "True"),
    "a decision without votes": (Verifier, "check_decision", "self.check_votes(decision.votes, vote, present)", "pass"),
    "guilt of equal votes": (Verifier, "check_guilt", "one.digest != other.digest and ", ""),
    "guilt of two ballots": (Verifier, "check_guilt", "replace(one, digest=other.digest) == other", "True"),
    "an expulsion is forgotten": (decision, "next_view", "proved.union(present.expelled)", "proved"),
    "planned although one was lost": (decision, "next_view", "standing.keys() == {*present.members}", "True"),
    "planned from the earliest round": (decision, "_after_all", "1 + max(", "1 + min("),
    "rounds ahead are not believed": (decision, "_after_all", "least + STALENESS_BOUND + len(present.members)",
                                       "least"),
    "back to the latest checkpoint": (decision, "next_view", "least = min(", "least = max("),
    "back behind the entry": (decision, "next_view", "if first <= earliest", "if False"),
    "void rounds are held against one": (decision, "is_less", "chain.valid(announced.round, announced.view)",
                                         "announced.round"),
    "an expulsion is forgotten in a rewind": (Verifier, "rewind_after", "expelled=present.expelled", "expelled=()"),
    "the held go on": (Slot, "held", "return self.promised is not None", "return False"),
    "less is told after a restart": (Machine, "read_back", "self.newest", "self.certain()"),
}  # fmt: skip
"""Each as it stands, and without it."""

LOSSES: dict[str, Callable[[Slot], Slot]] = {
    "a promise": lambda slot: replace(slot, promised=None, promise=None),
    "a lock": lambda slot: replace(slot, lock=None),
}


def change(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """One function, with a part of its text replaced."""
    was: Any = inspect.getattr_static(owner, name)
    function: Any = was.fget if isinstance(was, property) else was
    source = textwrap.dedent(inspect.getsource(function))
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
